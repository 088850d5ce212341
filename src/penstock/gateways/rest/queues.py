"""Queues over HTTP: receive, ack, nack, extend, peek, stats, and for the owner: define, pause, resume, purge, delete.

Batch first: every call takes many receipts. A queue that is received from for the first time is made with the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import Final, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.broker.queue.delivery import (
    Message,
    NoSuchQueue,
    PeekedMessage,
    QueueDelivery,
    ReceiptSettlement,
    Source,
    is_worth_waiting,
)
from penstock.broker.queue.node import NodeQueues, QueueUnavailable
from penstock.codec.http.fields import COUNT_MAX, readable_headers, text_or_base64
from penstock.codec.http.queues import SettledReceipt, SettledText, SettleReply
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueDefinition, QueueName, QueueOptions, check_group, check_options
from penstock.domain.queue.receipt import ReceiptWriter, receipt_reader
from penstock.domain.queue.values import HoldKind
from penstock.domain.schedule.headers import MESSAGE_ID_HEADER
from penstock.domain.security import access
from penstock.domain.security.access import Operation, Resource
from penstock.domain.topic_rules import is_internal
from penstock.gateways.http.door import HttpDoor, caller_of, endpoint, json_response, number_of
from penstock.gateways.http.problem import bad_request, damaged, not_found, unavailable
from penstock.gateways.rest.messages import (
    RECEIPT_TEXT,
    AckRequest,
    DeliveredMessage,
    ExtendRequest,
    NackRequest,
    PeekReply,
    ReceiveReply,
    ReceiveRequest,
    SeenMessage,
)
from penstock.gateways.rest.queue_settings import QueueSettings

PEEK_COUNT: Final = 10
# Receipts that a queue decides about at once: a few milliseconds.
SETTLED_AT_ONCE: Final = 1_000
# Receipts that are read without asking for the time: a fraction of a millisecond.
READ_AT_ONCE: Final = 50
# Queues that are asked for at one time. Few: nobody has looked yet how long their names are.
_NAMES_REMEMBERED: Final = 256
_RECEIPT: Final = re.compile(RECEIPT_TEXT)
_OUTCOMES: Final[dict[Outcome, SettledText]] = {
    Outcome.DONE: "done",
    Outcome.NOT_HELD: "not-held",
    Outcome.FINISHED: "finished",
}
StateText = Literal["ready", "leased", "waiting", "blocked", "dying"]
_STATES: Final[dict[HoldKind, StateText]] = {
    HoldKind.LEASED: "leased",
    HoldKind.WAITING: "waiting",
    HoldKind.BLOCKED: "blocked",
    HoldKind.DYING: "dying",
}


class QueueRoutes:
    def __init__(self, door: HttpDoor, queues: NodeQueues, delivery: QueueDelivery) -> None:
        self._door = door
        self._queues = queues
        self._delivery = delivery

    def routes(self) -> list[Route]:
        base = "/v1/queues/{topic}/{group}"
        return [
            Route("/v1/queues", endpoint(self._list), methods=["GET"]),
            Route(base, endpoint(self._describe), methods=["GET"]),
            Route(base, endpoint(self._define), methods=["PUT"]),
            Route(base, endpoint(self._delete), methods=["DELETE"]),
            Route(f"{base}/receive", endpoint(self._receive), methods=["POST"]),
            Route(f"{base}/ack", endpoint(self._ack), methods=["POST"]),
            Route(f"{base}/nack", endpoint(self._nack), methods=["POST"]),
            Route(f"{base}/extend", endpoint(self._extend), methods=["POST"]),
            Route(f"{base}/peek", endpoint(self._peek), methods=["GET"]),
            Route(f"{base}/stats", endpoint(self._stats), methods=["GET"]),
            Route(f"{base}/pause", endpoint(self._pause), methods=["POST"]),
            Route(f"{base}/resume", endpoint(self._resume), methods=["POST"]),
            Route(f"{base}/purge", endpoint(self._purge), methods=["POST"]),
        ]

    # Messages

    async def _receive(self, request: Request) -> Response:
        name = self._name(request, Operation.READ)
        body = await self._door.read(request, ReceiveRequest)
        lease_ms, consumer, count = body.lease_ms or 0, body.consumer, body.count
        is_first, by = body.wait_ms > 0, caller_of(request)
        received = await self._delivery.receive(
            name, consumer=consumer, count_max=count, lease_ms=lease_ms, is_first=is_first, by=by
        )
        if isinstance(received, NoSuchQueue):
            await self._make(name, QueueOptions())
            received = await self._delivery.receive(
                name, consumer=consumer, count_max=count, lease_ms=lease_ms, is_first=is_first, by=by
            )
        if body.wait_ms and is_worth_waiting(received):
            with self._door.attend(request) as caller:
                received = await self._delivery.receive(
                    name,
                    consumer=consumer,
                    count_max=count,
                    wait_ms=body.wait_ms,
                    lease_ms=lease_ms,
                    caller=caller,
                    by=by,
                )
        if isinstance(received, NoSuchQueue | QueueUnavailable):
            raise _refusal(received)
        return json_response(ReceiveReply(_delivered(received.messages), received.limit.value))

    async def _ack(self, request: Request) -> Response:
        body = await self._door.read(request, AckRequest)
        return await self._settle(request, body.receipts, Act.ACCEPT)

    async def _nack(self, request: Request) -> Response:
        body = await self._door.read(request, NackRequest)
        act = Act.REJECT if body.reject else Act.RELEASE
        return await self._settle(request, body.receipts, act, body.delay_ms, body.error)

    async def _extend(self, request: Request) -> Response:
        body = await self._door.read(request, ExtendRequest)
        return await self._settle(request, body.receipts, Act.RENEW, body.lease_ms)

    async def _settle(
        self, request: Request, receipts: Sequence[str], act: Act, delay_ms: int | None = None, text: str = ""
    ) -> Response:
        name = self._name(request, Operation.READ)
        items: list[ReceiptSettlement] = []
        # Of another queue: nobody here holds what they stand for.
        foreign: set[int] = set()
        reader = receipt_reader(name.group)
        pace = self._door.work.pace() if len(receipts) >= READ_AT_ONCE else None
        for place, written in enumerate(receipts):
            if pace is not None and place % READ_AT_ONCE == READ_AT_ONCE - 1:
                await pace.rest_if_due()
            receipt = reader.read(written)
            if receipt is not None:
                items.append(ReceiptSettlement(receipt, act, delay_ms, text))
            elif _RECEIPT.fullmatch(written):
                foreign.add(place)
            else:
                raise bad_request(f"{written[:100]!r} is no receipt")
        settled: list[Outcome | QueueUnavailable] = []
        for first in range(0, max(len(items), 1), SETTLED_AT_ONCE):
            portion = await self._delivery.settle(name, items[first : first + SETTLED_AT_ONCE], by=caller_of(request))
            if isinstance(portion, NoSuchQueue):
                raise _refusal(portion)
            settled += portion
        outcomes = iter(settled)
        results = [
            _settled(written, Outcome.NOT_HELD if place in foreign else next(outcomes))
            for place, written in enumerate(receipts)
        ]
        if all(result.outcome == "failed" for result in results):
            raise _refusal(next(outcome for outcome in settled if isinstance(outcome, QueueUnavailable)))
        return json_response(SettleReply(results))

    async def _peek(self, request: Request) -> Response:
        name = self._name(request, Operation.READ)
        told = request.query_params.get("count", str(PEEK_COUNT))
        count = number_of(told, "count", lowest=1, highest=COUNT_MAX)
        seen = await self._delivery.peek(name, count, by=caller_of(request))
        if isinstance(seen, NoSuchQueue | QueueUnavailable):
            raise _refusal(seen)
        return json_response(PeekReply([_seen(message) for message in seen]))

    # Queues

    async def _list(self, request: Request) -> Response:
        caller = caller_of(request)
        shown = [
            definition
            for definition in self._queues.all()
            if self._door.is_allowed(caller, Operation.DESCRIBE, access.topic(definition.name.topic))
            and self._door.is_allowed(caller, Operation.DESCRIBE, access.group(definition.name.group))
        ]
        return self._door.listing(caller, {"queues": [_description(definition) for definition in shown]})

    async def _describe(self, request: Request) -> Response:
        name = self._name(request, Operation.DESCRIBE)
        definition = self._queues.get(name)
        if definition is None:
            raise _refusal(NoSuchQueue(name))
        return json_response(_description(definition))

    async def _define(self, request: Request) -> Response:
        name = self._name(request, Operation.ALTER_CONFIGS)
        settings = await self._door.read(request, QueueSettings)
        options = settings.options()
        problem = check_options(options, name.topic)
        if problem is not None:
            raise bad_request(problem)
        if options.dead_letter_topic:
            # The broker writes there on behalf of whoever says so.
            self._door.allow(caller_of(request), Operation.WRITE, access.topic(options.dead_letter_topic))
        is_new = self._queues.get(name) is None
        if is_new:
            definition = await self._make(name, options)
        else:
            changed = await self._queues.change(name, lambda _: options)
            if changed is None:
                raise _refusal(NoSuchQueue(name))
            definition = changed
        return json_response(_description(definition), HTTPStatus.CREATED if is_new else HTTPStatus.OK)

    async def _delete(self, request: Request) -> Response:
        name = self._name(request, Operation.DELETE)
        if not await self._queues.delete(name):
            raise _refusal(NoSuchQueue(name))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _stats(self, request: Request) -> Response:
        name = self._name(request, Operation.DESCRIBE)
        totals = await self._delivery.totals(name, by=caller_of(request))
        if isinstance(totals, NoSuchQueue | QueueUnavailable):
            raise _refusal(totals)
        partitions = [{"partition": index, **msgspec.to_builtins(stats)} for index, stats in totals.partitions]
        told = {**msgspec.to_builtins(totals), "partitions": partitions}
        if not totals.incomplete:
            del told["incomplete"]
        return json_response(told)

    async def _pause(self, request: Request) -> Response:
        return await self._set_paused(request, is_paused=True)

    async def _resume(self, request: Request) -> Response:
        return await self._set_paused(request, is_paused=False)

    async def _set_paused(self, request: Request, *, is_paused: bool) -> Response:
        name = self._name(request, Operation.ALTER_CONFIGS)
        return _done(await self._delivery.pause(name, is_paused=is_paused, by=caller_of(request)))

    async def _purge(self, request: Request) -> Response:
        name = self._name(request, Operation.DELETE)
        return _done(await self._delivery.purge(name, by=caller_of(request)))

    # Inside

    def _name(self, request: Request, operation: Operation) -> QueueName:
        params, caller = request.scope["path_params"], caller_of(request)
        name, group, topic, problem = _named(params["topic"], params["group"])
        self._door.allow(caller, operation, group)
        self._door.allow(caller, Operation.READ, topic)
        if problem is not None:
            raise bad_request(problem)
        return name

    async def _make(self, name: QueueName, options: QueueOptions) -> QueueDefinition:
        self._door.topic(name.topic)
        if is_internal(name.topic):
            raise not_found(f"{name.topic!r} is the broker's own: there are no queues on it")
        return await self._queues.define(name, options)


@lru_cache(_NAMES_REMEMBERED)
def _named(topic: str, group: str) -> tuple[QueueName, Resource, Resource, str | None]:
    """A queue, its group and its topic as rules name them, and what is wrong with its name."""
    return QueueName(topic, group), access.group(group), access.topic(topic), check_group(group)


def _done(outcome: NoSuchQueue | QueueUnavailable | None) -> Response:
    if outcome is not None:
        raise _refusal(outcome)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def _refusal(problem: NoSuchQueue | QueueUnavailable) -> Exception:
    if isinstance(problem, NoSuchQueue):
        return not_found(f"there is no queue {problem.name.group!r} on topic {problem.name.topic!r}")
    return (damaged if problem.is_damaged else unavailable)(problem.reason)


def _description(definition: QueueDefinition) -> dict[str, object]:
    return {
        "topic": definition.name.topic,
        "group": definition.name.group,
        "created_ms": definition.created_ms,
        "changed_ms": definition.changed_ms,
        "dead_letter_topic": definition.options.dead_letters_of(definition.name.topic),
        "options": {
            name: msgspec.to_builtins(getattr(definition.options, name)) for name in QueueOptions.__struct_fields__
        },
    }


def _delivered(messages: Sequence[Message]) -> list[DeliveredMessage]:
    delivered: list[DeliveredMessage] = []
    source: Source | None = None
    for message in messages:
        record = message.record
        if message.source is not source:
            source = message.source
            writer = ReceiptWriter(source.group, source.topic_id, source.partition, source.number)
        value, value_base64 = text_or_base64(record.value)
        key, key_base64 = (None, None) if record.key is None else text_or_base64(record.key)
        headers = readable_headers(record.headers) if record.headers else {}
        delivered.append(
            # By position: names cost a third of it, and there may be ten thousand. The order is that of the struct.
            DeliveredMessage(
                # A copy carries the name of the first one.
                headers.get(MESSAGE_ID_HEADER) or writer.message_id(record.offset),
                writer.receipt(record.offset),
                source.partition,
                record.offset,
                record.timestamp_ms,
                message.delivery_count,
                source.until_ms,
                value,
                value_base64,
                key,
                key_base64,
                headers,
            )
        )
    return delivered


def _settled(receipt: str, outcome: Outcome | QueueUnavailable) -> SettledReceipt:
    if isinstance(outcome, QueueUnavailable):
        return SettledReceipt(receipt, "failed", outcome.reason)
    return SettledReceipt(receipt, _OUTCOMES[outcome])


def _seen(message: PeekedMessage) -> SeenMessage:
    value, value_base64 = text_or_base64(message.record.value)
    key, key_base64 = text_or_base64(message.record.key)
    return SeenMessage(
        partition=message.partition,
        offset=message.record.offset,
        timestamp_ms=message.record.timestamp_ms,
        state="ready" if message.state is None else _STATES[message.state],
        delivery_count=message.delivery_count,
        consumer=message.consumer,
        until_ms=message.until_ms,
        value=value,
        value_base64=value_base64,
        key=key,
        key_base64=key_base64,
        headers=readable_headers(message.record.headers),
    )
