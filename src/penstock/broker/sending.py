"""Messages on their way into partitions, whoever leads them: what doors send, what becomes of it, and one request for
each other node that leads some of them.

The partition of a message is chosen by the node that was asked. Where nobody knows what became of it, it is told so and
not sent again: only FIFO queues know what they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from penstock.broker.partition.outcome import Refusal
from penstock.broker.relay.asking import Relay, Unanswered
from penstock.broker.relay.envelope import SENT_BYTES_MAX
from penstock.broker.topic.not_here import NotHere
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.batch.records import Record
from penstock.domain.replication.exchange import ForwardKind
from penstock.domain.security.caller import Caller

# As long as whoever writes here waits for the replicas.
SEND_MS_MAX: Final = 30_000

# What a record needs beside keys, values and headers, generously.
_RECORD_BYTES: Final = 32
_HEADER_BYTES: Final = 8


class Outgoing(msgspec.Struct, frozen=True):
    record: Record
    # Where it must go; None leaves it to its key.
    partition: int | None = None
    # In the future; None: now.
    due_ms: int | None = None


class Published(msgspec.Struct, frozen=True):
    partition: int
    offset: int


class Delayed(msgspec.Struct, frozen=True):
    """Durable in the schedule of its partition."""

    partition: int
    # Its place there, which its id is made of.
    origin: int
    message_id: str
    due_ms: int


class NotPublished(msgspec.Struct, frozen=True):
    refusal: Refusal
    reason: str


PublishOutcome = Published | Delayed | NotPublished


def size_of(record: Record) -> int:
    headers = sum(len(name) * 4 + len(value or b"") + _HEADER_BYTES for name, value in record.headers)
    return _RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


# In bytes


class Send(msgspec.Struct, frozen=True, array_like=True):
    messages: list[Outgoing]


class SendFifo(msgspec.Struct, frozen=True, array_like=True):
    group: str
    is_by_group: bool
    messages: list[Outgoing]


class _Outcome(msgspec.Struct, frozen=True, array_like=True):
    partition: int = -1
    # Or its place in the schedule.
    offset: int = -1
    message_id: str = ""
    due_ms: int | None = None
    refusal: Refusal | None = None
    reason: str = ""


class _Sent(msgspec.Struct, frozen=True, array_like=True):
    outcomes: list[_Outcome]


_ENCODER: Final = msgspec.msgpack.Encoder()
_SENT: Final[msgspec.msgpack.Decoder[_Sent]] = msgspec.msgpack.Decoder(_Sent)
SENDS: Final[msgspec.msgpack.Decoder[Send]] = msgspec.msgpack.Decoder(Send)
FIFO_SENDS: Final[msgspec.msgpack.Decoder[SendFifo]] = msgspec.msgpack.Decoder(SendFifo)


def encode_outcomes(outcomes: Iterable[PublishOutcome]) -> bytes:
    return _ENCODER.encode(_Sent([_row(outcome) for outcome in outcomes]))


def _row(outcome: PublishOutcome) -> _Outcome:
    match outcome:
        case Published(partition, offset):
            return _Outcome(partition, offset)
        case Delayed(partition, origin, message_id, due_ms):
            return _Outcome(partition, origin, message_id, due_ms)
        case NotPublished(refusal, reason):
            return _Outcome(refusal=refusal, reason=reason)


def _outcome(row: _Outcome) -> PublishOutcome:
    if row.refusal is not None:
        return NotPublished(row.refusal, row.reason)
    if row.due_ms is not None:
        return Delayed(row.partition, row.offset, row.message_id, row.due_ms)
    return Published(row.partition, row.offset)


# To every leader

SendHere = Callable[[Sequence[Outgoing]], Coroutine[object, object, list[PublishOutcome]]]
WriteBody = Callable[[list[Outgoing]], msgspec.Struct]


async def send_everywhere(
    relay: Relay,
    topic: ServedTopic,
    messages: Sequence[Outgoing],
    here: SendHere,
    *,
    kind: ForwardKind = ForwardKind.PUBLISH,
    body_of: WriteBody = Send,
    by: Caller | None = None,
) -> list[PublishOutcome]:
    """One outcome for each, durable. Every message names its partition."""
    near = [place for place, each in enumerate(messages) if not _is_away(topic, each)]
    far = [place for place, each in enumerate(messages) if _is_away(topic, each)]

    async def send_far() -> dict[int, PublishOutcome]:
        found: dict[int, PublishOutcome] = {}
        for places in _portions(messages, far):
            found.update(await _send_far(relay, topic, messages, places, kind, body_of, by))
        return found

    async def send_near() -> list[PublishOutcome]:
        return await here([messages[place] for place in near]) if near else []

    outcomes, kept = await asyncio.gather(send_far(), send_near())
    outcomes.update(zip(near, kept, strict=True))
    return [outcomes[place] for place in range(len(messages))]


def _is_away(topic: ServedTopic, message: Outgoing) -> bool:
    assert message.partition is not None
    found = topic.find(message.partition)
    return isinstance(found, NotHere) and not found.is_unknown


def _portions(messages: Sequence[Outgoing], places: Sequence[int]) -> Iterator[list[int]]:
    """Of a size that one request may have; one message always fits."""
    portion: list[int] = []
    size_bytes = 0
    for place in places:
        message_bytes = size_of(messages[place].record)
        if portion and size_bytes + message_bytes > SENT_BYTES_MAX:
            yield portion
            portion, size_bytes = [], 0
        portion.append(place)
        size_bytes += message_bytes
    if portion:
        yield portion


async def _send_far(
    relay: Relay,
    topic: ServedTopic,
    messages: Sequence[Outgoing],
    places: Sequence[int],
    kind: ForwardKind,
    body_of: WriteBody,
    by: Caller | None,
) -> dict[int, PublishOutcome]:
    by_partition: dict[int, list[int]] = {}
    for place in places:
        partition = messages[place].partition
        assert partition is not None
        by_partition.setdefault(partition, []).append(place)

    def places_of(indexes: Iterable[int]) -> list[int]:
        return [place for index in indexes for place in by_partition[index]]

    def write(indexes: Sequence[int]) -> bytes:
        return _ENCODER.encode(body_of([messages[place] for place in places_of(indexes)]))

    answers = await relay.spread(
        kind,
        topic.topic_id,
        by_partition,
        write,
        by=by,
        is_repeatable=kind is ForwardKind.FIFO,
        timeout_ms=SEND_MS_MAX,
    )
    outcomes: dict[int, PublishOutcome] = {}
    for answer in answers:
        own = places_of(answer.partitions)
        if isinstance(answer.body, Unanswered):
            refusal = Refusal.TIMED_OUT if answer.body.is_unsure else Refusal.NOT_LEADER
            outcomes.update(dict.fromkeys(own, NotPublished(refusal, answer.body.reason)))
        else:
            found = [_outcome(row) for row in _SENT.decode(answer.body).outcomes]
            outcomes.update(zip(own, found, strict=True))
    return outcomes
