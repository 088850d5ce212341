"""What nodes say to each other about a queue, in bytes: what a door was asked for, for the partitions that the other
one leads. Values are those that doors know; on the wire they are arrays, for they go by the hundred.

Every request names the queue's group; the topic and the partitions are on the envelope.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import msgspec

from penstock.broker.queue.messages import Message, PeekedMessage, QueueUnavailable, ReceivedMessages, Source
from penstock.broker.queue.settling import ReceiptSettlement, SettleOutcome
from penstock.codec.batch.records import Headers, StoredRecord
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.machine import QueueStats
from penstock.domain.queue.receipt import Receipt
from penstock.domain.queue.values import HoldKind, Limit

_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(body: msgspec.Struct) -> bytes:
    return _ENCODER.encode(body)


# Receive


class Take(msgspec.Struct, frozen=True, array_like=True):
    group: str
    consumer: str
    count_max: int
    lease_ms: int


# Offset, date, key, value, headers; deliveries, lane, first delivery.
_Row = tuple[int, int, bytes | None, bytes | None, Headers, int, int, int]


class _Delivery(msgspec.Struct, frozen=True, array_like=True):
    source: Source
    rows: list[_Row]


class _Taken(msgspec.Struct, frozen=True, array_like=True):
    deliveries: list[_Delivery] = []
    limit: Limit = Limit.NONE
    has_more: bool = False
    problem: QueueUnavailable | None = None


def encode_taken(received: ReceivedMessages | QueueUnavailable) -> bytes:
    if isinstance(received, QueueUnavailable):
        return encode(_Taken(problem=received))
    deliveries = [
        _Delivery(messages[0].source, [_row(message) for message in messages])
        for messages in _by_source(received.messages)
    ]
    return encode(_Taken(deliveries, received.limit, received.has_more))


def _by_source(messages: Sequence[Message]) -> Iterator[list[Message]]:
    for _, shared in groupby(messages, key=lambda message: id(message.source)):
        yield list(shared)


def _row(message: Message) -> _Row:
    record = message.record
    return (
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        record.headers,
        message.delivery_count,
        message.lane,
        message.first_delivery_ms,
    )


def decode_taken(data: bytes) -> ReceivedMessages | QueueUnavailable:
    taken = _TAKEN.decode(data)
    if taken.problem is not None:
        return taken.problem
    messages = [
        Message(delivery.source, StoredRecord(offset, date_ms, key, value, headers), count, lane, first_ms)
        for delivery in taken.deliveries
        for offset, date_ms, key, value, headers, count, lane, first_ms in delivery.rows
    ]
    return ReceivedMessages(tuple(messages), taken.limit, taken.has_more)


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """Answered when there may be something to take, and after the time in any case."""

    group: str
    consumer: str


class Woken(msgspec.Struct, frozen=True, array_like=True):
    may_have_some: bool


# Settle


class _Item(msgspec.Struct, frozen=True, array_like=True):
    partition: int
    offset: int
    number: int
    act: Act
    delay_ms: int | None
    text: str


class Settlements(msgspec.Struct, frozen=True, array_like=True):
    group: str
    items: list[_Item]


class _Settled(msgspec.Struct, frozen=True, array_like=True):
    outcomes: list[Outcome]
    # By place: those that nothing was decided about.
    problems: dict[int, QueueUnavailable] = {}


def encode_settlements(group: str, items: Sequence[ReceiptSettlement]) -> bytes:
    rows = [
        _Item(item.receipt.partition, item.receipt.offset, item.receipt.number, item.act, item.delay_ms, item.text)
        for item in items
    ]
    return encode(Settlements(group, rows))


def items_of(settlements: Settlements, topic_id: bytes) -> list[ReceiptSettlement]:
    return [
        ReceiptSettlement(
            Receipt(settlements.group, topic_id, item.partition, item.offset, item.number),
            item.act,
            item.delay_ms,
            item.text,
        )
        for item in settlements.items
    ]


def encode_settled(outcomes: Sequence[SettleOutcome]) -> bytes:
    decided = [each if isinstance(each, Outcome) else Outcome.NOT_HELD for each in outcomes]
    problems = {place: each for place, each in enumerate(outcomes) if isinstance(each, QueueUnavailable)}
    return encode(_Settled(decided, problems))


def decode_settled(data: bytes) -> list[SettleOutcome]:
    settled = _SETTLED.decode(data)
    return [settled.problems.get(place, outcome) for place, outcome in enumerate(settled.outcomes)]


# Looking


class Peek(msgspec.Struct, frozen=True, array_like=True):
    group: str
    count_max: int


class _Peeked(msgspec.Struct, frozen=True, array_like=True):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    state: HoldKind | None
    delivery_count: int
    consumer: str
    until_ms: int


class Seen(msgspec.Struct, frozen=True, array_like=True):
    rows: list[_Peeked] = []
    problem: QueueUnavailable | None = None


def encode_seen(seen: Sequence[PeekedMessage] | QueueUnavailable) -> bytes:
    if isinstance(seen, QueueUnavailable):
        return encode(Seen(problem=seen))
    rows = []
    for each in seen:
        record = each.record
        row = (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        rows.append(_Peeked(each.partition, *row, each.state, each.delivery_count, each.consumer, each.until_ms))
    return encode(Seen(rows))


def decode_seen(data: bytes) -> list[PeekedMessage] | QueueUnavailable:
    seen = _SEEN.decode(data)
    if seen.problem is not None:
        return seen.problem
    return [
        PeekedMessage(
            row.partition,
            StoredRecord(row.offset, row.timestamp_ms, row.key, row.value, row.headers),
            row.state,
            row.delivery_count,
            row.consumer,
            row.until_ms,
        )
        for row in seen.rows
    ]


class Count(msgspec.Struct, frozen=True, array_like=True):
    group: str


class Counted(msgspec.Struct, frozen=True, array_like=True):
    partitions: list[tuple[int, QueueStats]] = []
    backlog_count: int = 0
    delayed_count: int = 0
    problem: QueueUnavailable | None = None


_TAKEN: Final[msgspec.msgpack.Decoder[_Taken]] = msgspec.msgpack.Decoder(_Taken)
_SETTLED: Final[msgspec.msgpack.Decoder[_Settled]] = msgspec.msgpack.Decoder(_Settled)
_SEEN: Final[msgspec.msgpack.Decoder[Seen]] = msgspec.msgpack.Decoder(Seen)
TAKES: Final[msgspec.msgpack.Decoder[Take]] = msgspec.msgpack.Decoder(Take)
WAITS: Final[msgspec.msgpack.Decoder[Wait]] = msgspec.msgpack.Decoder(Wait)
WOKEN: Final[msgspec.msgpack.Decoder[Woken]] = msgspec.msgpack.Decoder(Woken)
SETTLEMENTS: Final[msgspec.msgpack.Decoder[Settlements]] = msgspec.msgpack.Decoder(Settlements)
PEEKS: Final[msgspec.msgpack.Decoder[Peek]] = msgspec.msgpack.Decoder(Peek)
COUNTS: Final[msgspec.msgpack.Decoder[Count]] = msgspec.msgpack.Decoder(Count)
COUNTED: Final[msgspec.msgpack.Decoder[Counted]] = msgspec.msgpack.Decoder(Counted)
