"""Publishing over HTTP: `POST /v1/topics/{topic}/messages`, one message or many, JSON or the bytes themselves."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.base.typed_values import convert
from penstock.broker.publisher import Delayed, NotPublished, Publisher, PublishOutcome
from penstock.broker.served_topic import ServedTopic
from penstock.domain import access
from penstock.domain.access import Operation
from penstock.domain.queue_receipt import MessageId, write_message_id
from penstock.domain.trace_context import context_of, with_context
from penstock.gateways.http_door import JSON, UNREADABLE, HttpDoor, endpoint, json_response, not_taken, whole_numbers
from penstock.gateways.http_messages import (
    NewMessage,
    PublishedMessage,
    PublishReply,
    PublishRequest,
    outgoing_of,
)
from penstock.gateways.http_problem import bad_request, not_found

_HEADER_PREFIX: Final = "penstock-header-"


class TopicRoutes:
    def __init__(self, door: HttpDoor, publisher: Publisher) -> None:
        self._door = door
        self._publisher = publisher

    def routes(self) -> list[Route]:
        return [Route("/v1/topics/{topic}/messages", endpoint(self._publish), methods=["POST"])]

    async def _publish(self, request: Request) -> Response:
        name = request.path_params["topic"]
        self._door.allow(Operation.WRITE, access.topic(name))
        messages = await self._messages(request)
        topic = await self._door.topic_to_publish(name)
        for message in messages:
            if message.partition is not None and topic.partition(message.partition) is None:
                count = len(topic.partitions)
                raise not_found(f"partition {message.partition} of {name!r}, which has {count} of them")
        now_ms = self._door.broker.clock.now_ms()
        has_headers = topic.config.penstock_delivery_headers
        context = context_of(request.headers)
        if context:
            messages = [structs.replace(each, headers=with_context(each.headers, context)) for each in messages]
        outgoing = [outgoing_of(message, now_ms, has_delivery_headers=has_headers) for message in messages]
        return self._answer(topic, await self._publisher.publish(topic, outgoing))

    async def _messages(self, request: Request) -> list[NewMessage]:
        content_type = request.headers.get("content-type", JSON).partition(";")[0].strip()
        data = await self._door.read_bytes(request)
        if content_type.lower() != JSON:
            return [_from_bytes(request, data)]
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

    def _answer(self, topic: ServedTopic, outcomes: list[PublishOutcome]) -> Response:
        refused = [outcome for outcome in outcomes if isinstance(outcome, NotPublished)]
        if len(refused) == len(outcomes):
            raise not_taken(refused[0].refusal, refused[0].reason)
        answers = [_published(topic, outcome) for outcome in outcomes]
        status = HTTPStatus.MULTI_STATUS if refused else HTTPStatus.CREATED
        return json_response(PublishReply(answers), status)


def _published(topic: ServedTopic, outcome: PublishOutcome) -> PublishedMessage:
    if isinstance(outcome, NotPublished):
        return PublishedMessage(error=outcome.reason)
    if isinstance(outcome, Delayed):
        return PublishedMessage(outcome.message_id, outcome.partition, due_ms=outcome.due_ms)
    name = write_message_id(MessageId(topic.topic_id, outcome.partition, outcome.offset))
    return PublishedMessage(name, outcome.partition, outcome.offset)


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
