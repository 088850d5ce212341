"""Delayed messages over HTTP: which are pending and when, how many, and for each by its id: show, cancel, another time.

They are made by publishing with `delay_ms` or `deliver_at`. A cancelled or released message is gone from here; one that
is being released can no longer be stopped.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.partition.outcome import Refusal
from penstock.broker.schedule.elsewhere import PendingMessages
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.values import (
    ChangeOutcome,
    DueCursor,
    NotScheduled,
    PendingMessage,
    read_cursor,
    write_cursor,
)
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.http import schedules as bodies
from penstock.codec.http.fields import readable_headers, text_or_base64
from penstock.codec.http.schedules import PAGE_MAX, PendingCount, PendingCounts, PendingPage, RescheduleRequest
from penstock.domain.queue.receipt import read_scheduled_id
from penstock.domain.schedule.commands import Done, ScheduleProblem
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.domain.topic_rules import is_internal
from penstock.gateways.http.door import HttpDoor, caller_of, endpoint, json_response, not_taken, number_of
from penstock.gateways.http.problem import ProblemError, bad_request, not_found

PAGE_COUNT: Final = 100
# Of values and keys; a page ends with the message that is more than this.
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024
_MISSING: Final = frozenset({ScheduleProblem.NOT_PENDING, ScheduleProblem.NO_SUCH_CRON})


class ScheduleRoutes:
    def __init__(self, door: HttpDoor, schedules: NodeSchedules, pending: PendingMessages | None = None) -> None:
        self._door = door
        self._schedules = schedules
        self._pending = pending or PendingMessages(schedules, lambda: None)

    def routes(self) -> list[Route]:
        one = "/v1/schedules/{message_id}"
        return [
            Route("/v1/schedules", endpoint(self._list), methods=["GET"]),
            Route("/v1/schedule-counts", endpoint(self._count), methods=["GET"]),
            Route(one, endpoint(self._show), methods=["GET"]),
            Route(one, endpoint(self._reschedule), methods=["PATCH"]),
            Route(one, endpoint(self._cancel), methods=["DELETE"]),
        ]

    async def _list(self, request: Request) -> Response:
        topic = self._topic(request)
        count = _count_of(request)
        page = await self._pending.list_due(topic, _cursor_of(request), count, by=caller_of(request))
        if isinstance(page, NotScheduled):
            raise not_taken(page.refusal, page.reason)
        shown = _first_that_fit(page.messages)
        cursor = page.next if len(shown) == len(page.messages) else _place_of(shown[-1])
        messages = [pending_reply(message) for message in shown]
        return json_response(PendingPage(messages, None if cursor is None else write_cursor(cursor)))

    async def _count(self, request: Request) -> Response:
        caller, may = caller_of(request), self._door.is_allowed
        topics = [topic for topic in self._door.broker.topics() if may(caller, Operation.DESCRIBE, topic.resource)]
        damage = next((found for topic in topics if (found := self._schedules.damage_of(topic))), None)
        if damage is not None:
            raise not_taken(Refusal.DAMAGED, damage)
        counts = [
            PendingCount(topic.name, count) for topic in topics if (count := self._schedules.pending_count(topic))
        ]
        return self._door.listing(caller, PendingCounts(sum(each.pending_count for each in counts), counts))

    async def _show(self, request: Request) -> Response:
        return json_response(await self._found(request, self._message_id(request, Operation.READ)))

    async def _reschedule(self, request: Request) -> Response:
        message_id = self._message_id(request, Operation.WRITE)
        body = await self._door.read(request, RescheduleRequest)
        now_ms = self._door.broker.clock.now_ms()
        due_ms = body.due_ms(now_ms)
        if due_ms is None:
            raise bad_request("delay_ms or deliver_at is missing: when is it meant to be delivered?")
        # Looked at before: when it is due at once, it may be gone before anybody can look.
        message = await self._found(request, message_id)
        outcome = await self._pending.reschedule(message_id, max(due_ms, now_ms), by=caller_of(request))
        require_done(outcome, f"message {message_id}")
        return json_response(bodies.with_due(message, max(due_ms, now_ms)))

    async def _cancel(self, request: Request) -> Response:
        message_id = self._message_id(request, Operation.WRITE)
        outcome = await self._pending.cancel(message_id, by=caller_of(request))
        require_done(outcome, f"message {message_id}")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    # Inside

    async def _found(self, request: Request, message_id: str) -> bodies.PendingMessage:
        message = await self._pending.show(message_id, by=caller_of(request))
        if isinstance(message, NotScheduled):
            raise not_taken(message.refusal, message.reason)
        if message is None:
            raise not_found(f"message {message_id}: {ScheduleProblem.NOT_PENDING.value}")
        return pending_reply(message)

    def _topic(self, request: Request) -> ServedTopic:
        name = request.query_params.get("topic")
        if not name:
            raise bad_request("which topic? It is said by the parameter `topic`")
        self._door.allow(caller_of(request), Operation.READ, access.topic(name))
        if is_internal(name):
            raise not_found(f"{name!r} is the broker's own: nothing is delayed in it")
        return self._door.topic(name)

    def _message_id(self, request: Request, operation: Operation) -> str:
        text: str = request.path_params["message_id"]
        place = read_scheduled_id(text)
        if place is None:
            raise not_found(f"{text[:100]!r} is not the id of a message that was delayed")
        topic = self._door.broker.topic_by_id(place.topic_id)
        if topic is None:
            raise not_found(f"message {text}: its topic is gone")
        self._door.allow(caller_of(request), operation, topic.resource)
        return text


def require_done(outcome: ChangeOutcome, what: str) -> None:
    if isinstance(outcome, Done):
        return
    if isinstance(outcome, NotScheduled):
        raise not_taken(outcome.refusal, outcome.reason)
    detail = f"{what}: {outcome.problem.value}" + (f" ({outcome.detail})" if outcome.detail else "")
    if outcome.problem in _MISSING:
        raise not_found(detail)
    if outcome.problem is ScheduleProblem.BEING_RELEASED:
        raise ProblemError(HTTPStatus.CONFLICT, "Too late", detail)
    raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "Refused", detail)


def pending_reply(message: PendingMessage) -> bodies.PendingMessage:
    value, value_base64 = text_or_base64(message.value)
    key, key_base64 = text_or_base64(message.key)
    return bodies.PendingMessage(
        id=message.message_id,
        topic=message.topic,
        partition=message.partition,
        due_ms=message.due_ms,
        scheduled_ms=message.arrived_ms,
        timestamp_ms=message.written_ms,
        cron=message.cron or None,
        value=value,
        value_base64=value_base64,
        key=key,
        key_base64=key_base64,
        headers=readable_headers(message.headers),
    )


def _first_that_fit(messages: list[PendingMessage]) -> list[PendingMessage]:
    """At least one, or nobody would ever come past it."""
    size_bytes = 0
    for place, message in enumerate(messages):
        size_bytes += len(message.value or b"") + len(message.key or b"")
        if size_bytes > PAGE_BYTES_MAX:
            return messages[: place + 1]
    return messages


def _place_of(message: PendingMessage) -> DueCursor:
    return DueCursor(message.due_ms, message.partition, message.position)


def _count_of(request: Request) -> int:
    return number_of(request.query_params.get("count", str(PAGE_COUNT)), "count", lowest=1, highest=PAGE_MAX)


def _cursor_of(request: Request) -> DueCursor | None:
    text = request.query_params.get("cursor")
    if text is None:
        return None
    cursor = read_cursor(text)
    if cursor is None:
        raise bad_request(f"cursor {text[:60]!r} is not one that a page returned")
    return cursor
