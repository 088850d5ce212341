"""What every route of the HTTP door shares: reading a body into its struct, finding topics, answering with JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.base.log_events import get_logger
from penstock.broker.broker import Broker
from penstock.broker.served_topic import ServedTopic
from penstock.cluster.metadata_store import StoreUnavailableError
from penstock.domain.access import ANONYMOUS, Authorizer, Operation, Resource
from penstock.gateways.http_problem import ProblemError, bad_request, not_found, problem_response, unavailable
from penstock.gateways.http_server import BodyTooLargeError, read_body

log = get_logger("http")

JSON: Final = "application/json"

BodyT = TypeVar("BodyT")
Endpoint = Callable[[Request], Awaitable[Response]]


class HttpDoor:
    def __init__(self, broker: Broker, authorizer: Authorizer, *, request_bytes_max: int) -> None:
        self.broker = broker
        self._authorizer = authorizer
        self._request_bytes_max = request_bytes_max

    async def read(self, request: Request, kind: type[BodyT]) -> BodyT:
        data = await self.read_bytes(request)
        try:
            return msgspec.json.decode(data or b"{}", type=kind)
        except msgspec.DecodeError as error:
            raise bad_request(f"the body cannot be used: {error}") from error

    async def read_bytes(self, request: Request) -> bytes:
        declared = request.headers.get("content-length", "")
        try:
            return await read_body(
                request.receive,
                declared_bytes=int(declared) if declared.isdigit() else None,
                bytes_max=self._request_bytes_max,
            )
        except BodyTooLargeError as error:
            raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Too large", f"the body: {error}") from error

    def allow(self, operation: Operation, resource: Resource) -> None:
        if not self._authorizer.authorize(ANONYMOUS, operation, resource):
            detail = f"{operation.name.lower()} of {resource.name} is not allowed"
            raise ProblemError(HTTPStatus.FORBIDDEN, "Forbidden", detail)

    def topic(self, name: str) -> ServedTopic:
        topic = self.broker.topic(name)
        if topic is None:
            raise not_found(f"there is no topic {name!r}")
        return topic


def endpoint(handler: Endpoint) -> Endpoint:
    """Every problem becomes an answer; what nobody thought of is logged, and its text is not shown."""

    @wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ProblemError as error:
            return problem_response(error.problem)
        except StoreUnavailableError as error:
            return problem_response(unavailable(str(error)).problem)
        except Exception as error:  # edge of a request
            log.error("request failed", path=request.url.path, error=repr(error), exc_info=error)
            failed = ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error", "the node's log says more")
            return problem_response(failed.problem)

    return answer


def json_response(value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type=JSON)
