"""Publishing over HTTP: `POST /v1/topics/{topic}/messages`, one message or many, JSON or the bytes themselves."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.append_outcome import Refusal
from penstock.broker.publisher import NotPublished, Published, Publisher, PublishOutcome
from penstock.broker.served_topic import ServedTopic
from penstock.cluster.topic_catalog import InvalidName
from penstock.domain import access
from penstock.domain.access import Operation
from penstock.domain.queue_receipt import MessageId, write_message_id
from penstock.domain.topic_rules import is_internal
from penstock.gateways.http_door import JSON, HttpDoor, endpoint, json_response, whole_numbers
from penstock.gateways.http_messages import (
    NewMessage,
    PublishedMessage,
    PublishReply,
    PublishRequest,
    record_of,
)
from penstock.gateways.http_problem import ProblemError, bad_request, not_found, unavailable

_HEADER_PREFIX: Final = "penstock-header-"
# Nothing is wrong with the message: another time it may be taken.
_PASSING: Final = frozenset({Refusal.DISK_FULL, Refusal.OFFLINE})


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
        topic = await self._topic(name)
        for message in messages:
            if message.partition is not None and topic.partition(message.partition) is None:
                count = len(topic.partitions)
                raise not_found(f"partition {message.partition} of {name!r}, which has {count} of them")
        now_ms = self._door.broker.clock.now_ms()
        records = [record_of(message, now_ms) for message in messages]
        outcomes = await self._publisher.publish(topic, records, [message.partition for message in messages])
        return self._answer(topic, outcomes)

    async def _messages(self, request: Request) -> list[NewMessage]:
        content_type = request.headers.get("content-type", JSON).partition(";")[0].strip()
        data = await self._door.read_bytes(request)
        if content_type != JSON:
            return [_from_bytes(request, data)]
        try:
            fields = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise bad_request(f"the body cannot be used: {error}") from error
        try:
            return _convert(fields)
        except msgspec.ValidationError:
            pass
        try:
            return _convert(whole_numbers(fields))
        except msgspec.ValidationError as error:
            raise bad_request(f"the body cannot be used: {error}") from error

    async def _topic(self, name: str) -> ServedTopic:
        broker = self._door.broker
        topic = broker.topic(name)
        if topic is None and broker.config.auto_create_topics:
            outcome = await broker.create_topic_by_default(name)
            if isinstance(outcome, InvalidName):
                raise bad_request(outcome.reason)
            topic = broker.topic(name)
        if topic is None or is_internal(name):
            raise not_found(f"there is no topic {name!r} to publish to")
        return topic

    def _answer(self, topic: ServedTopic, outcomes: list[PublishOutcome]) -> Response:
        refused = [outcome for outcome in outcomes if isinstance(outcome, NotPublished)]
        if len(refused) == len(outcomes):
            if refused[0].refusal in _PASSING:
                raise unavailable(refused[0].reason)
            raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "Refused", refused[0].reason)
        answers = [_published(topic, outcome) for outcome in outcomes]
        status = HTTPStatus.MULTI_STATUS if refused else HTTPStatus.CREATED
        return json_response(PublishReply(answers), status)


def _published(topic: ServedTopic, outcome: PublishOutcome) -> PublishedMessage:
    if not isinstance(outcome, Published):
        return PublishedMessage(error=outcome.reason)
    name = write_message_id(MessageId(topic.topic_id, outcome.partition, outcome.offset))
    return PublishedMessage(name, outcome.partition, outcome.offset)


def _convert(fields: object) -> list[NewMessage]:
    """A body with `messages` is many; anything else is one."""
    if isinstance(fields, dict) and "messages" in fields:
        return msgspec.convert(fields, PublishRequest).messages
    return [msgspec.convert(fields, NewMessage)]


def _from_bytes(request: Request, data: bytes) -> NewMessage:
    """The body is the value; what belongs to it comes with the query, further headers as `penstock-header-NAME`."""
    import base64

    query = request.query_params
    fields: dict[str, object] = {"value_base64": base64.b64encode(data).decode()}
    for name in ("key", "priority", "ttl_ms", "partition", "timestamp_ms"):
        if name in query:
            fields[name] = query[name]
    fields["headers"] = {
        name.removeprefix(_HEADER_PREFIX): value
        for name, value in request.headers.items()
        if name.startswith(_HEADER_PREFIX)
    }
    try:
        return msgspec.convert(fields, NewMessage, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"the query cannot be used: {error}") from error
