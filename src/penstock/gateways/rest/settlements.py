"""`GET /v1/queues/{topic}/{group}/settlements`: when messages were finished, for whoever reports on a queue."""

from __future__ import annotations

from concurrent.futures import Executor

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.settlements import read_settlements
from penstock.broker.topic.not_here import NotHere
from penstock.codec.http.fields import NUMBER_MAX
from penstock.domain.queue.definition import QueueName
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.gateways.http.door import HttpDoor, caller_of, endpoint, json_response, not_here, number_of
from penstock.gateways.http.problem import not_found


class SettlementRoutes:
    def __init__(self, door: HttpDoor, queues: NodeQueues, readers: Executor) -> None:
        self._door = door
        self._queues = queues
        self._readers = readers

    def routes(self) -> list[Route]:
        path = "/v1/queues/{topic}/{group}/settlements"
        return [Route(path, endpoint(self._settlements), methods=["GET"])]

    async def _settlements(self, request: Request) -> Response:
        name = QueueName(request.path_params["topic"], request.path_params["group"])
        self._door.allow(caller_of(request), Operation.READ, access.topic(name.topic))
        self._door.allow(caller_of(request), Operation.READ, access.group(name.group))
        if self._queues.get(name) is None:
            raise not_found(f"there is no queue {name.group!r} on topic {name.topic!r}")
        number = _number(request, "partition") or 0
        partition = self._door.broker.find(name.topic, number)
        if isinstance(partition, NotHere):
            raise not_here(partition)
        page = await read_settlements(
            self._door.broker, partition, name.group, after=_number(request, "after"), readers=self._readers
        )
        return json_response(page)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    return None if text is None else number_of(text, name, highest=NUMBER_MAX)
