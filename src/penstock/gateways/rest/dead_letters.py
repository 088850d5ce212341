"""Dead letters over HTTP: which topics hold some, what they are, and back with them, or away.

A dead-letter topic is a topic like any other. What is pending there is what its queue `penstock-redrive` has not
finished; a caller may name another queue of the topic instead, such as `sqs`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.queue.node import QueueUnavailable
from penstock.broker.queue.redrive import CannotRedrive, NoSuchLetters, Redrives, TaskOver, TaskRunning
from penstock.broker.queue.redrive_scan import UnreadableQueueError
from penstock.codec.http.dead_letters import DeadLetterList, DeadLetterMessages, DryRun, Purged, RedriveList
from penstock.codec.http.fields import COUNT_MAX, MOMENT_MS_MAX
from penstock.domain.queue.definition import QueueName, check_group
from penstock.domain.queue.redrive import REDRIVE_GROUP, Choice, RedriveFilter, RedriveTask
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.domain.topic_rules import is_internal
from penstock.gateways.caller import Caller
from penstock.gateways.http.door import HttpDoor, caller_of, endpoint, json_response, number_of
from penstock.gateways.http.problem import ProblemError, bad_request, damaged, not_found, unavailable
from penstock.gateways.rest.dead_letters_bodies import (
    REASON_CHARACTERS_MAX,
    RedriveRequest,
    message_reply,
    task_reply,
    topic_reply,
)

SHOW_COUNT: Final = 10
BASE: Final = "/v1/dead-letters/{topic}"


class DeadLetterRoutes:
    def __init__(self, door: HttpDoor, redrives: Redrives) -> None:
        self._door = door
        self._redrives = redrives

    def routes(self) -> list[Route]:
        return [
            Route("/v1/dead-letters", endpoint(self._list), methods=["GET"]),
            Route(BASE, endpoint(self._show), methods=["GET"]),
            Route(f"{BASE}/redrive", endpoint(self._redrive), methods=["POST"]),
            Route(f"{BASE}/purge", endpoint(self._purge), methods=["POST"]),
            Route(f"{BASE}/redrives", endpoint(self._tasks), methods=["GET"]),
            Route(f"{BASE}/redrives/{{task}}", endpoint(self._task), methods=["GET"]),
            Route(f"{BASE}/redrives/{{task}}", endpoint(self._cancel), methods=["DELETE"]),
        ]

    # Looking

    async def _list(self, request: Request) -> Response:
        found = await self._redrives.scan.topics()
        caller = caller_of(request)
        shown = [each for each in found if self._door.is_allowed(caller, Operation.DESCRIBE, access.topic(each.topic))]
        return self._door.listing(caller, DeadLetterList([topic_reply(each) for each in shown]))

    async def _show(self, request: Request) -> Response:
        name = self._name(request, Operation.READ)
        count = number_of(request.query_params.get("count", str(SHOW_COUNT)), "count", lowest=1, highest=COUNT_MAX)
        messages = []
        try:
            async for letter in self._redrives.scan.letters(name, _filter_of(request)):
                messages.append(message_reply(letter))
                if len(messages) >= count:
                    break
        except UnreadableQueueError as error:
            raise unavailable(str(error)) from error
        return json_response(DeadLetterMessages(messages))

    # Doing

    async def _redrive(self, request: Request) -> Response:
        name = self._name(request, Operation.READ)
        body = await self._door.read(request, RedriveRequest)
        name = QueueName(name.topic, body.group)
        caller = caller_of(request)
        self._door.allow(caller, Operation.READ, access.group(name.group))
        only = RedriveFilter(body.reason, body.key, body.since_ms, body.until_ms)
        if body.dry_run:
            return await self._count(name, only, body.offsets)
        await self._allow_targets(caller, name.topic, body.target)
        outcome = await self._redrives.begin(
            name, author=caller.principal, target=body.target, only=only, choices=body.offsets, rate=body.rate
        )
        if isinstance(outcome, TaskRunning):
            detail = f"{name.topic!r} is being redriven already, by {outcome.task.id}"
            raise ProblemError(HTTPStatus.CONFLICT, "Running already", detail)
        if not isinstance(outcome, RedriveTask):
            raise _refusal(outcome)
        return json_response(task_reply(outcome), HTTPStatus.ACCEPTED)

    async def _count(self, name: QueueName, only: RedriveFilter, choices: list[Choice] | None) -> Response:
        try:
            found = await self._redrives.count(name, only, choices)
        except UnreadableQueueError as error:
            raise unavailable(str(error)) from error
        if isinstance(found, NoSuchLetters):
            raise _refusal(found)
        return json_response(DryRun(name.topic, found.pending_count, found.fitting_count))

    async def _allow_targets(self, caller: Caller, topic: str, target: str | None) -> None:
        if target is not None:
            self._door.allow(caller, Operation.WRITE, access.topic(target))
            return
        found = await self._redrives.scan.describe(topic)
        sources = sorted({source.topic for source in found.sources}) if found is not None else []
        # Each message is asked for when it goes; here only so that whoever may do nothing is told at once.
        if sources and not any(self._door.is_allowed(caller, Operation.WRITE, access.topic(name)) for name in sources):
            self._door.allow(caller, Operation.WRITE, access.topic(sources[0]))

    async def _purge(self, request: Request) -> Response:
        outcome = await self._redrives.purge(self._name(request, Operation.DELETE))
        if isinstance(outcome, NoSuchLetters | QueueUnavailable):
            raise _refusal(outcome)
        return json_response(Purged(outcome))

    # Tasks

    async def _tasks(self, request: Request) -> Response:
        found = self._redrives.tasks_of(self._name(request, Operation.DESCRIBE))
        return json_response(RedriveList([task_reply(task) for task in found]))

    async def _task(self, request: Request) -> Response:
        return json_response(task_reply(self._find(request, Operation.DESCRIBE)))

    async def _cancel(self, request: Request) -> Response:
        """Of one that is over already: as it is."""
        outcome = await self._redrives.cancel(self._find(request, Operation.READ).id)
        if isinstance(outcome, NoSuchLetters):
            raise _refusal(outcome)
        return json_response(task_reply(outcome.task if isinstance(outcome, TaskOver) else outcome))

    def _find(self, request: Request, operation: Operation) -> RedriveTask:
        topic, task_id = self._topic(request, operation), request.path_params["task"]
        task = self._redrives.get(task_id)
        if task is None or task.source.topic != topic:
            raise not_found(f"there is no redrive {task_id[:100]!r} of {topic!r}")
        return task

    # Inside

    def _topic(self, request: Request, operation: Operation) -> str:
        topic: str = request.path_params["topic"]
        self._door.allow(caller_of(request), operation, access.topic(topic))
        if is_internal(topic):
            raise not_found(f"{topic!r} is the broker's own: there are no dead letters in it")
        self._door.topic(topic)
        return topic

    def _name(self, request: Request, operation: Operation) -> QueueName:
        name = QueueName(self._topic(request, operation), request.query_params.get("group", REDRIVE_GROUP))
        problem = check_group(name.group)
        if problem is not None:
            raise bad_request(problem)
        # The queue that redrives use is nobody's; any other is its group's.
        if name.group != REDRIVE_GROUP:
            self._door.allow(caller_of(request), operation, access.group(name.group))
        return name


def _filter_of(request: Request) -> RedriveFilter:
    query = request.query_params
    reason = query.get("reason")
    if reason is not None and len(reason) > REASON_CHARACTERS_MAX:
        raise bad_request(f"reason has {len(reason)} characters, more than {REASON_CHARACTERS_MAX}")
    return RedriveFilter(reason, query.get("key"), _moment_of(request, "since_ms"), _moment_of(request, "until_ms"))


def _moment_of(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    return None if text is None else number_of(text, name, highest=MOMENT_MS_MAX)


def _refusal(problem: NoSuchLetters | CannotRedrive | QueueUnavailable) -> Exception:
    if isinstance(problem, NoSuchLetters):
        return not_found(problem.reason)
    if isinstance(problem, CannotRedrive):
        return ProblemError(HTTPStatus.CONFLICT, "Makes no sense", problem.reason)
    return (damaged if problem.is_damaged else unavailable)(problem.reason)
