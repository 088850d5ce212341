"""Journeys over HTTP: `GET /v1/trace/{message_id}`, by topic, partition and offset, and by key between two times; and
`GET /v1/why/…`: why a message has not been delivered.

`format` makes a text or a picture of it: text, mermaid, svg; json is the default.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.trace.node import NodeTrace, NoSuchMessage, Sight
from penstock.codec.http.fields import MOMENT_MS_MAX, NUMBER_MAX
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.domain.trace.events import Journey, JourneyList, Place
from penstock.domain.trace.picture import FORMATS, render
from penstock.gateways.caller import Caller
from penstock.gateways.http.door import HttpDoor, caller_of, endpoint, number_of
from penstock.gateways.http.problem import ProblemError, bad_request, not_found, unavailable

SINCE_MS_DEFAULT: Final = 3_600_000


class TraceRoutes:
    def __init__(self, door: HttpDoor, trace: NodeTrace) -> None:
        self._door = door
        self._trace = trace

    def routes(self) -> list[Route]:
        place = "{topic}/{partition}/{offset}"
        return [
            Route("/v1/trace", endpoint(self._search), methods=["GET"]),
            Route("/v1/trace/{message_id}", endpoint(self._trace_id), methods=["GET"]),
            Route(f"/v1/trace/{place}", endpoint(self._trace_place), methods=["GET"]),
            Route("/v1/why/{message_id}", endpoint(self._why_id), methods=["GET"]),
            Route(f"/v1/why/{place}", endpoint(self._why_place), methods=["GET"]),
        ]

    async def _trace_id(self, request: Request) -> Response:
        return await self._answer(request, self._named(request))

    async def _trace_place(self, request: Request) -> Response:
        return await self._answer(request, _placed(request))

    async def _why_id(self, request: Request) -> Response:
        return await self._explain(request, self._named(request))

    async def _why_place(self, request: Request) -> Response:
        return await self._explain(request, _placed(request))

    async def _search(self, request: Request) -> Response:
        query = request.query_params
        topic, key = query.get("topic"), query.get("key")
        if topic is None or key is None:
            raise bad_request("topic and key are needed, and since_ms and until_ms say between which times")
        self._door.allow(caller_of(request), Operation.READ, access.topic(topic))
        now_ms = self._door.broker.clock.now_ms()
        since_ms = _number(query.get("since_ms", str(now_ms - SINCE_MS_DEFAULT)), "since_ms", MOMENT_MS_MAX)
        until_ms = _number(query.get("until_ms", str(now_ms)), "until_ms", MOMENT_MS_MAX)
        found = await self._trace.search(topic, key.encode(), since_ms=since_ms, until_ms=until_ms)
        if isinstance(found, NoSuchMessage):
            raise _missing(found)
        sight = self._sight(caller_of(request))
        journeys = [await self._trace.trace(place, sight) for place in found.places]
        return self._door.listing(
            caller_of(request), JourneyList([each for each in journeys if isinstance(each, Journey)], list(found.notes))
        )

    def _named(self, request: Request) -> Place:
        place = self._trace.place_of(request.path_params["message_id"])
        if isinstance(place, NoSuchMessage):
            raise not_found(place.reason)
        return place

    async def _answer(self, request: Request, place: Place) -> Response:
        self._door.allow(caller_of(request), Operation.READ, access.topic(place.topic))
        wanted = request.query_params.get("format", "json")
        if wanted != "json" and wanted not in FORMATS:
            raise bad_request(f"format is {wanted[:40]!r}; there are json, {', '.join(FORMATS)}")
        journey = await self._trace.trace(place, self._sight(caller_of(request)))
        if isinstance(journey, NoSuchMessage):
            raise _missing(journey)
        if wanted == "json":
            return self._door.listing(caller_of(request), journey)
        return Response(render(journey, wanted), media_type=FORMATS[wanted])

    async def _explain(self, request: Request, place: Place) -> Response:
        self._door.allow(caller_of(request), Operation.READ, access.topic(place.topic))
        answer = await self._trace.why(place, self._sight(caller_of(request)))
        if isinstance(answer, NoSuchMessage):
            raise _missing(answer)
        return self._door.listing(caller_of(request), answer)

    def _sight(self, caller: Caller) -> Sight:
        return Sight(
            topic=lambda name: self._door.is_allowed(caller, Operation.READ, access.topic(name)),
            group=lambda name: self._door.is_allowed(caller, Operation.DESCRIBE, access.group(name)),
        )


def _missing(found: NoSuchMessage) -> ProblemError:
    return unavailable(found.reason) if found.is_elsewhere else not_found(found.reason)


def _placed(request: Request) -> Place:
    path = request.path_params
    return Place(path["topic"], _number(path["partition"], "partition"), _number(path["offset"], "offset"))


def _number(text: str, name: str, number_max: int = NUMBER_MAX) -> int:
    return number_of(text, name, highest=number_max)
