"""`GET /v1/node`: what the node tells of itself, for whoever measures it."""

from __future__ import annotations

from time import process_time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock import __version__
from penstock.codec.http.node import NodeFacts
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.http.door import HttpDoor, caller_of, endpoint, json_response


class NodeRoutes:
    def __init__(self, door: HttpDoor) -> None:
        self._door = door

    def routes(self) -> list[Route]:
        return [Route("/v1/node", endpoint(self._describe), methods=["GET"])]

    async def _describe(self, request: Request) -> Response:
        self._door.allow(caller_of(request), Operation.DESCRIBE, CLUSTER)
        return json_response(NodeFacts(__version__, process_time()))
