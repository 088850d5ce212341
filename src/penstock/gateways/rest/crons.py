"""Cron schedules over HTTP: `/v1/crons/{topic}/{name}`, a message that its topic gets whenever a clock says so."""

from __future__ import annotations

import re
from datetime import datetime
from http import HTTPStatus
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.schedule.values import CronFacts, CronMessage, NotScheduled
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.http.fields import readable_headers, text_or_base64
from penstock.codec.http.schedules import NAME_TEXT, Cron, CronList, CronRequest, CronRun
from penstock.domain.schedule.cron import dues_after
from penstock.domain.schedule.headers import DELAY_HEADER, DELIVER_AT_HEADER
from penstock.domain.schedule.records import Missed
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.http.door import HttpDoor, caller_of, endpoint, json_response, not_taken
from penstock.gateways.http.problem import bad_request, not_found
from penstock.gateways.rest.messages import key_of, value_of
from penstock.gateways.rest.schedules import require_done

BASE: Final = "/v1/crons/{topic}/{name}"
# Enough to see whether the expression means what was meant.
RUNS_SHOWN: Final = 5
_NAME: Final = re.compile(NAME_TEXT)


class CronRoutes:
    def __init__(self, door: HttpDoor, schedules: NodeSchedules) -> None:
        self._door = door
        self._schedules = schedules

    def routes(self) -> list[Route]:
        return [
            Route("/v1/crons", endpoint(self._list), methods=["GET"]),
            Route(BASE, endpoint(self._show), methods=["GET"]),
            Route(BASE, endpoint(self._define), methods=["PUT"]),
            Route(BASE, endpoint(self._delete), methods=["DELETE"]),
        ]

    async def _list(self, request: Request) -> Response:
        wanted = request.query_params.get("topic")
        found = _known(await self._schedules.crons(None if wanted is None else self._door.topic(wanted)))
        caller = caller_of(request)
        shown = [
            facts for facts in found if self._door.is_allowed(caller, Operation.DESCRIBE, access.topic(facts.topic))
        ]
        return self._door.listing(caller, CronList([self._reply(facts, None, 1) for facts in shown]))

    async def _show(self, request: Request) -> Response:
        topic, name = self._named(request, Operation.READ)
        return json_response(await self._described(self._door.topic(topic), name))

    async def _define(self, request: Request) -> Response:
        topic_name, name = self._named(request, Operation.WRITE)
        body = await self._door.read(request, CronRequest)
        for header in (DELAY_HEADER, DELIVER_AT_HEADER):
            if header in body.headers:
                raise bad_request(f"header {header}: a message of a schedule is due when the schedule says")
        message = CronMessage(
            key_of(body), value_of(body), tuple((header, text.encode()) for header, text in body.headers.items())
        )
        topic = await self._door.topic_to_publish(caller_of(request), topic_name)
        is_new = await self._facts(topic, name) is None
        outcome = await self._schedules.define_cron(
            topic, name, message, expression=body.cron, zone=body.timezone, missed=Missed(body.missed)
        )
        require_done(outcome, f"schedule {name!r}")
        status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
        return json_response(await self._described(topic, name), status)

    async def _delete(self, request: Request) -> Response:
        topic, name = self._named(request, Operation.WRITE)
        require_done(await self._schedules.delete_cron(self._door.topic(topic), name), f"schedule {name!r}")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    # Inside

    def _named(self, request: Request, operation: Operation) -> tuple[str, str]:
        topic: str = request.path_params["topic"]
        name: str = request.path_params["name"]
        self._door.allow(caller_of(request), operation, access.topic(topic))
        if not _NAME.fullmatch(name):
            raise bad_request(
                f"{name[:100]!r}: a schedule's name has 1 to 100 letters, digits, dots, hyphens, underscores"
            )
        return topic, name

    async def _facts(self, topic: ServedTopic, name: str) -> CronFacts | None:
        found = _known(await self._schedules.crons(topic))
        return next((facts for facts in found if facts.name == name), None)

    async def _described(self, topic: ServedTopic, name: str) -> Cron:
        facts = await self._facts(topic, name)
        message = None if facts is None else await self._schedules.cron_message(topic, name)
        if isinstance(message, NotScheduled):
            raise not_taken(message.refusal, message.reason)
        if facts is None or message is None:
            raise not_found(f"there is no schedule {name!r} on topic {topic.name!r}")
        return self._reply(facts, message, RUNS_SHOWN)

    def _reply(self, facts: CronFacts, message: CronMessage | None, run_count: int) -> Cron:
        value, value_base64 = text_or_base64(None if message is None else message.value)
        key, key_base64 = text_or_base64(None if message is None else message.key)
        return Cron(
            name=facts.name,
            topic=facts.topic,
            partition=facts.partition,
            cron=facts.expression,
            timezone=facts.zone,
            missed=facts.missed.value,
            next_runs=self._runs(facts, run_count),
            value=value,
            value_base64=value_base64,
            key=key,
            key_base64=key_base64,
            headers={} if message is None else readable_headers(message.headers),
        )

    def _runs(self, facts: CronFacts, count: int) -> list[CronRun]:
        if facts.next_ms is None:
            return []
        zone = ZoneInfo(facts.zone)
        dues_ms = [facts.next_ms, *islice(dues_after(facts.expression, zone, facts.next_ms), count - 1)]
        return [CronRun(due_ms, datetime.fromtimestamp(due_ms / 1000, zone).isoformat()) for due_ms in dues_ms]


def _known(found: list[CronFacts] | NotScheduled) -> list[CronFacts]:
    if isinstance(found, NotScheduled):
        raise not_taken(found.refusal, found.reason)
    return found
