"""Publishing over HTTP: `POST /v1/topics/{topic}/messages`, one message or many, JSON or the bytes themselves.

A large body is taken apart, turned into records, written and answered in slices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.base.long_work import Steps
from penstock.base.typed_values import convert, read_json
from penstock.broker.publisher import Delayed, NotPublished, Outgoing, Publisher, PublishOutcome
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.http.fields import COUNT_MAX
from penstock.codec.http.long_json import NotJsonError, TooManyError, check_count, rough_count, split_array
from penstock.domain.queue.receipt import MessageId, write_message_id
from penstock.domain.security import access
from penstock.domain.security.access import Operation
from penstock.domain.trace.context import context_of, with_context
from penstock.gateways.http.door import (
    JSON,
    UNREADABLE,
    VALUES_MAX,
    HttpDoor,
    caller_of,
    endpoint,
    json_response,
    not_taken,
    whole_numbers,
)
from penstock.gateways.http.problem import ProblemError, bad_request, not_found
from penstock.gateways.rest.messages import (
    NewMessage,
    PublishedMessage,
    PublishReply,
    PublishRequest,
    outgoing_of,
)

_HEADER_PREFIX: Final = "penstock-header-"
# A body of so many bytes is decoded at once.
_WHOLE_BYTES_MAX: Final = 64 * 1024
_MANY: Final = re.compile(rb'\s*\{\s*"messages"\s*:\s*\[')
_END: Final = re.compile(rb"\s*\}\s*")


class TopicRoutes:
    def __init__(self, door: HttpDoor, publisher: Publisher) -> None:
        self._door = door
        self._publisher = publisher

    def routes(self) -> list[Route]:
        return [Route("/v1/topics/{topic}/messages", endpoint(self._publish), methods=["POST"])]

    async def _publish(self, request: Request) -> Response:
        name = request.path_params["topic"]
        self._door.allow(caller_of(request), Operation.WRITE, access.topic(name))
        # Until they are written: their values are as large as the body.
        async with self._door.body(request) as data:
            return await self._publish_all(name, request, await self._messages(request, data))

    async def _publish_all(self, name: str, request: Request, messages: list[NewMessage]) -> Response:
        topic = await self._door.topic_to_publish(caller_of(request), name)
        for message in messages:
            if message.partition is not None and not topic.has_partition(message.partition):
                count = topic.partition_count
                raise not_found(f"partition {message.partition} of {name!r}, which has {count} of them")
        context = context_of(request.headers)
        outgoing = await self._door.work.run(self._outgoing(topic, messages, context))
        outcomes = await self._publisher.publish(topic, outgoing, by=caller_of(request))
        return await self._door.work.run(self._answer(topic, outcomes))

    def _outgoing(
        self, topic: ServedTopic, messages: list[NewMessage], context: Mapping[str, str]
    ) -> Steps[list[Outgoing]]:
        now_ms = self._door.broker.clock.now_ms()
        has_headers = topic.config.penstock_delivery_headers
        outgoing = []
        for message in messages:
            told = structs.replace(message, headers=with_context(message.headers, context)) if context else message
            outgoing.append(outgoing_of(told, now_ms, has_delivery_headers=has_headers))
            yield
        return outgoing

    async def _messages(self, request: Request, data: bytes) -> list[NewMessage]:
        content_type = request.headers.get("content-type", JSON).partition(";")[0].strip()
        if content_type.lower() != JSON:
            return [_from_bytes(request, data)]
        if len(data) > _WHOLE_BYTES_MAX and (await self._door.work.run(rough_count(data))) > VALUES_MAX:
            return await self._take_apart(data)
        try:
            fields = msgspec.json.decode(data)
        except UNREADABLE as error:
            raise bad_request(f"the body cannot be used: {error}") from error
        try:
            return _convert(fields)
        except msgspec.ValidationError:
            pass
        try:
            return _convert(whole_numbers(fields))
        except UNREADABLE as error:
            raise bad_request(f"the body cannot be used: {error}") from error

    async def _take_apart(self, data: bytes) -> list[NewMessage]:
        many = _MANY.match(data)
        try:
            if many is None:
                # One message, or one whose place is taken by something else: as large as one may be.
                await self._door.check_values(data)
                return [_read_one(data, "")]
            return await self._door.work.run(_read_many(data, many.end()))
        except TooManyError as error:
            raise ProblemError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Too large", f"messages: {error}") from error
        except NotJsonError as error:
            raise bad_request(f"the body cannot be used: {error}") from error

    def _answer(self, topic: ServedTopic, outcomes: list[PublishOutcome]) -> Steps[Response]:
        refused = [outcome for outcome in outcomes if isinstance(outcome, NotPublished)]
        if len(refused) == len(outcomes):
            raise not_taken(refused[0].refusal, refused[0].reason)
        answers = []
        for outcome in outcomes:
            answers.append(_published(topic, outcome))
            yield
        status = HTTPStatus.MULTI_STATUS if refused else HTTPStatus.CREATED
        return json_response(PublishReply(answers), status)


def _published(topic: ServedTopic, outcome: PublishOutcome) -> PublishedMessage:
    if isinstance(outcome, NotPublished):
        return PublishedMessage(error=outcome.reason)
    if isinstance(outcome, Delayed):
        return PublishedMessage(outcome.message_id, outcome.partition, due_ms=outcome.due_ms)
    name = write_message_id(MessageId(topic.topic_id, outcome.partition, outcome.offset))
    return PublishedMessage(name, outcome.partition, outcome.offset)


def _read_many(data: bytes, start: int) -> Steps[list[NewMessage]]:
    pieces, end = yield from split_array(data, start, count_max=COUNT_MAX)
    if _END.fullmatch(data, end) is None:
        raise NotJsonError("something is behind the messages")
    if not pieces:
        raise bad_request("the body cannot be used: messages is empty")
    messages = []
    for number, piece in enumerate(pieces):
        if len(piece) > _WHOLE_BYTES_MAX:
            yield from check_count(piece, VALUES_MAX)
        messages.append(_read_one(piece, f" - at `$.messages[{number}]`"))
        yield
    return messages


def _read_one(data: bytes, place: str) -> NewMessage:
    try:
        try:
            return read_json(data, NewMessage)
        except msgspec.ValidationError:
            return convert(whole_numbers(msgspec.json.decode(data)), NewMessage)
    except UNREADABLE as error:
        raise bad_request(f"the body cannot be used: {error}{place}") from error


def _convert(fields: object) -> list[NewMessage]:
    """A body with `messages` is many; anything else is one."""
    if isinstance(fields, dict) and "messages" in fields:
        return convert(fields, PublishRequest).messages
    return [convert(fields, NewMessage)]


def _from_bytes(request: Request, data: bytes) -> NewMessage:
    """The body is the value; what belongs to it comes with the query, further headers as `penstock-header-NAME`."""
    import base64

    query = request.query_params
    fields: dict[str, object] = {"value_base64": base64.b64encode(data).decode()}
    for name in ("key", "priority", "ttl_ms", "delay_ms", "deliver_at", "partition", "timestamp_ms"):
        if name in query:
            fields[name] = query[name]
    fields["headers"] = {
        name.removeprefix(_HEADER_PREFIX): value
        for name, value in request.headers.items()
        if name.startswith(_HEADER_PREFIX)
    }
    try:
        return convert(fields, NewMessage, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"the query cannot be used: {error}") from error
