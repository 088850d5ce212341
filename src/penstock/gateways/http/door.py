"""What every route of the HTTP door shares: reading a body into its struct, finding topics, answering with JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import wraps
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.long_work import LongWork
from penstock.base.tasks import TaskSupervisor
from penstock.base.typed_values import convert, read_json
from penstock.broker.machine.portions import JournalDamagedError
from penstock.broker.partition.outcome import PASSING, Refusal
from penstock.broker.queue.delivery import Receiver
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.cluster.catalog.topics import InvalidName
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.codec.http.fields import ANSWERED_AS
from penstock.codec.http.long_json import NotJsonError, TooManyError, check_count
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation, Resource
from penstock.domain.topic_rules import is_internal
from penstock.gateways.admission import Admission
from penstock.gateways.caller import Caller
from penstock.gateways.http.asgi import CALLER
from penstock.gateways.http.problem import ProblemError, bad_request, damaged, not_found, problem_response, unavailable
from penstock.gateways.http.server import (
    BodyCutOffError,
    BodyMemory,
    BodyTooLargeError,
    HttpServerConfig,
    read_body,
)

log = get_logger("http")

JSON: Final = "application/json"
_JSON_HEADER: Final = (b"content-type", JSON.encode())
_encode_json: Final = msgspec.json.Encoder().encode
# How a body that is no JSON, or none that fits, is told by who reads it: text that is not UTF-8 and nesting without end
# have errors of their own.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# More digits than any number that is taken; a longer text is not even read.
_DIGITS_MAX: Final = 18
# What uvicorn holds of any body before it stops reading.
_SMALL_BYTES_MAX: Final = 64 * 1024
# Of every body but those that publish: ten thousand receipts have half of it.
COMMAND_BYTES_MAX: Final = 1024 * 1024
# Values in one of them, and in one message: decoded in five milliseconds.
VALUES_MAX: Final = 50_000

BodyT = TypeVar("BodyT")
Endpoint = Callable[[Request], Awaitable[Response]]


class HttpDoor:
    def __init__(self, broker: Broker, admission: Admission, config: HttpServerConfig, clock: Clock) -> None:
        self.broker = broker
        self._admission = admission
        self._request_bytes_max = config.request_bytes_max
        self._memory = BodyMemory(config.request_bytes_total_max)
        self._tasks = TaskSupervisor(log)
        self.work = LongWork(clock.monotonic_seconds)
        # Rules are on, and have denied somebody something at this door.
        self._has_denied = False

    async def read(self, request: Request, kind: type[BodyT]) -> BodyT:
        declared = _declared_bytes(request)
        if declared is not None and declared <= _SMALL_BYTES_MAX:
            # Nearly every one: no memory to be held for it, and so nothing to be given back.
            bytes_max = min(COMMAND_BYTES_MAX, self._request_bytes_max)
            return _read(await _receive(request, declared, bytes_max), kind)
        async with self.body(request, bytes_max=COMMAND_BYTES_MAX) as data:
            await self.check_values(data)
            return _read(data, kind)

    async def check_values(self, data: bytes) -> None:
        """A body with very many values would keep everybody waiting while it is decoded."""
        if len(data) <= _SMALL_BYTES_MAX:
            return
        try:
            await self.work.run(check_count(data, VALUES_MAX))
        except TooManyError as error:
            raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Too large", f"the body: {error}") from error
        except NotJsonError as error:
            raise bad_request(f"the body cannot be used: {error}") from error

    @asynccontextmanager
    async def body(self, request: Request, *, bytes_max: int | None = None) -> AsyncIterator[bytes]:
        """At most `bytes_max`, and never more than the door takes at all. Of a large one the memory counts until the
        caller is done with it: what waits for its turn to be worked on is held as well."""
        bytes_max = self._request_bytes_max if bytes_max is None else min(bytes_max, self._request_bytes_max)
        declared = _declared_bytes(request)
        async with AsyncExitStack() as held:
            if declared is None or declared > _SMALL_BYTES_MAX:
                # One that is too large is refused before it waits for anything.
                size_bytes = bytes_max if declared is None else min(declared, bytes_max)
                await held.enter_async_context(self._memory.of(size_bytes))
            yield await _receive(request, declared, bytes_max)

    @contextmanager
    def attend(self, request: Request) -> Iterator[Receiver]:
        """Who asked, and whether he is still there: uvicorn lets a handler run on when its client has gone. The body
        must have been read before."""
        caller = Receiver()
        watching = self._tasks.start("http caller", _watch(request, caller))
        try:
            yield caller
        finally:
            watching.cancel()

    def is_allowed(self, caller: Caller, operation: Operation, resource: Resource) -> bool:
        is_allowed = self._admission.may(caller, operation, resource)
        self._has_denied = self._has_denied or not is_allowed
        return is_allowed

    def allow(self, caller: Caller, operation: Operation, resource: Resource) -> None:
        if not self.is_allowed(caller, operation, resource):
            kind = resource.type.name.lower().replace("_", " ")
            detail = f"{caller} may not {operation.name} {kind} {resource.name!r}"
            raise ProblemError(HTTPStatus.FORBIDDEN, "Forbidden", detail)

    def listing(self, caller: Caller, value: object) -> Response:
        """What the caller may see of something. Where rules are on a header tells as whom it was asked, so that a short
        list is no riddle; not whether anything was left out of this one, which would tell of it."""
        response = json_response(value)
        if self._has_denied:
            response.headers[ANSWERED_AS] = str(caller)
        return response

    def topic(self, name: str) -> ServedTopic:
        topic = self.broker.topic(name)
        if topic is None:
            raise not_found(f"there is no topic {name!r}")
        return topic

    async def topic_to_publish(self, caller: Caller, name: str) -> ServedTopic:
        """Made, if it is not there and the node makes topics by itself."""
        topic = self.broker.topic(name)
        if topic is None and self.broker.config.auto_create_topics:
            if not self.is_allowed(caller, Operation.CREATE, CLUSTER):
                self.allow(caller, Operation.CREATE, access.topic(name))
            outcome = await self.broker.create_topic_by_default(name)
            if isinstance(outcome, InvalidName):
                raise bad_request(outcome.reason)
            topic = self.broker.topic(name)
        if topic is None or is_internal(name):
            raise not_found(f"there is no topic {name!r} to publish to")
        return topic


def caller_of(request: Request) -> Caller:
    """As the guard has written it down."""
    caller: Caller = request.scope[CALLER]
    return caller


def not_here(found: NotHere) -> ProblemError:
    return not_found(found.detail) if found.is_unknown else unavailable(found.detail)


def not_taken(refusal: Refusal, reason: str) -> ProblemError:
    if refusal is Refusal.DAMAGED:
        return damaged(reason)
    if refusal in PASSING:
        return unavailable(reason)
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "Refused", reason)


def _declared_bytes(request: Request) -> int | None:
    """As the first header says that names it; None: nobody knows, or it cannot be read."""
    for name, text in request.scope["headers"]:
        if name == b"content-length":
            return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else None
    return None


async def _receive(request: Request, declared_bytes: int | None, bytes_max: int) -> bytes:
    try:
        return await read_body(request.receive, declared_bytes=declared_bytes, bytes_max=bytes_max)
    except BodyTooLargeError as error:
        raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Too large", f"the body: {error}") from error
    except BodyCutOffError as error:
        raise bad_request(str(error)) from error


def _read(data: bytes, kind: type[BodyT]) -> BodyT:
    try:
        return read_json(data or b"{}", kind)
    except UNREADABLE as error:
        if b"." in data and isinstance(error, msgspec.ValidationError):
            return _read_again(data, kind)
        raise bad_request(f"the body cannot be used: {error}") from error


def _read_again(data: bytes, kind: type[BodyT]) -> BodyT:
    """3.0 is a whole number for JSON Schema, and for languages that have no other numbers."""
    try:
        return convert(whole_numbers(msgspec.json.decode(data)), kind)
    except UNREADABLE as error:
        raise bad_request(f"the body cannot be used: {error}") from error


def whole_numbers(value: Any) -> Any:
    """The same, with every whole number as one. What somebody publishes as `value` is left as it was written."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return [whole_numbers(each) for each in value]
    if isinstance(value, dict):
        return {name: each if name == "value" else whole_numbers(each) for name, each in value.items()}
    return value


def number_of(text: str, name: str, *, lowest: int = 0, highest: int) -> int:
    """A whole number of a path or a query."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    if not is_number or not lowest <= int(text) <= highest:
        raise bad_request(f"{name} is {text[:40]!r}, a number from {lowest} to {highest} is meant")
    return int(text)


async def _watch(request: Request, caller: Receiver) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    caller.leave()


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
        except JournalDamagedError as error:
            return problem_response(damaged(str(error)).problem)
        except Exception as error:  # edge of a request
            log.error("request failed", path=request.url.path, error=repr(error), exc_info=error)
            failed = ProblemError(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error", "the node's log says more")
            return problem_response(failed.problem)

    return answer


class _JsonResponse(Response):
    """As any other, and made in a third of the time: nearly every request ends with one."""

    media_type = JSON

    def __init__(self, body: bytes, status: int) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), _JSON_HEADER]


def json_response(value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return _JsonResponse(_encode_json(value), status)
