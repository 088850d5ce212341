"""What a queue must not forget, as records of the companion log of its partition.

Each says what became of which messages, so that a queue is rebuilt without knowing its settings, and a message's whole
journey can be read from them. `Stored` is the whole queue: whatever was written before it is no longer needed to
rebuild it. The record's key in the log is the queue's name; it is not in the value.

    Opened · Stored · Closed                the queue begins, is as follows, is gone
    Leased · Passed                         messages are seen: delivered, or passed over
    Finished · Returned · Renewed · Died    what became of a delivery
    StartMoved · Trimmed                    the start is set by hand; the log has lost its beginning
    Paused · Resumed
    MoveIntended · MoveDone · MoveDropped   the mover: see `dead_letter`
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.domain.queue.values import NO_OFFSET, Cause, Failure, Range


class Take(msgspec.Struct, frozen=True, array_like=True):
    """A lane has been looked at up to `upto`: these are in flight, whatever else lies below is not its business."""

    lane: int
    upto: int
    ranges: tuple[Range, ...] = ()
    # Of the messages in `ranges`, one after the other; only with ordering by key.
    keys: tuple[int, ...] = ()
    # Offset and key of those that wait for an earlier one of their key.
    blocked: tuple[tuple[int, int], ...] = ()
    # Too old to be delivered, but kept as dead letters.
    dying: tuple[Range, ...] = ()
    # Offset and time, of those of the above that have one.
    expiries: tuple[tuple[int, int], ...] = ()


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One batch of the mover: from here to there, with a producer sequence that makes a repetition harmless."""

    batch: int
    target_topic_id: bytes
    target_partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    sources: tuple[Range, ...]


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", kw_only=False):
    """A record of the journal."""


class Opened(_Event, frozen=True, array_like=True, tag="opened"):
    start_offset: int
    # Of the first delivery.
    number: int
    at_ms: int


class Closed(_Event, frozen=True, array_like=True, tag="closed"):
    at_ms: int


class Leased(_Event, frozen=True, array_like=True, tag="leased"):
    number: int
    consumer: str
    until_ms: int
    at_ms: int
    takes: tuple[Take, ...]
    # Those that were delivered before.
    again: tuple[Range, ...] = ()


class Passed(_Event, frozen=True, array_like=True, tag="passed"):
    takes: tuple[Take, ...]
    at_ms: int


class Finished(_Event, frozen=True, array_like=True, tag="finished"):
    ranges: tuple[Range, ...]
    cause: Cause
    at_ms: int


class Returned(_Event, frozen=True, array_like=True, tag="returned"):
    ranges: tuple[Range, ...]
    # 0: at once.
    available_ms: int
    cause: Cause
    at_ms: int
    text: str = ""
    # Not counted: the consumer went away before it can have looked at them.
    is_counted: bool = True


class Renewed(_Event, frozen=True, array_like=True, tag="renewed"):
    ranges: tuple[Range, ...]
    until_ms: int
    at_ms: int


class Died(_Event, frozen=True, array_like=True, tag="died"):
    ranges: tuple[Range, ...]
    cause: Cause
    at_ms: int
    text: str = ""


class StartMoved(_Event, frozen=True, array_like=True, tag="start-moved"):
    start_offset: int
    at_ms: int


class Trimmed(_Event, frozen=True, array_like=True, tag="trimmed"):
    log_start: int
    at_ms: int


class Paused(_Event, frozen=True, array_like=True, tag="paused"):
    at_ms: int


class Resumed(_Event, frozen=True, array_like=True, tag="resumed"):
    at_ms: int


class MoveIntended(_Event, frozen=True, array_like=True, tag="move-intended"):
    move: Move
    at_ms: int


class MoveDone(_Event, frozen=True, array_like=True, tag="move-done"):
    batch: int
    at_ms: int
    # Where the copies begin in the target, one behind the other: so that whoever traces a message finds its copy.
    base_offset: int = NO_OFFSET


class MoveDropped(_Event, frozen=True, array_like=True, tag="move-dropped"):
    batch: int
    at_ms: int


class StoredHold(msgspec.Struct, frozen=True, array_like=True):
    kind: int
    number: int
    consumer: str
    until_ms: int
    lease_ms: int = 0


class StoredSpan(msgspec.Struct, frozen=True, array_like=True):
    first: int
    last: int
    count: int
    # Places in the lists of `Stored`; a failure below 0 is none.
    hold: int
    failure: int
    lane: int


class Stored(_Event, frozen=True, array_like=True, tag="stored"):
    """Everything that is remembered. Its size is that of what is in flight."""

    is_open: bool
    is_paused: bool
    log_start: int
    next_number: int
    delivered_count: int
    cursors: tuple[tuple[int, int], ...]
    holds: tuple[StoredHold, ...]
    failures: tuple[Failure, ...]
    spans: tuple[StoredSpan, ...]
    # Offset and key, offset and time, in order.
    keys: tuple[tuple[int, int], ...]
    expiries: tuple[tuple[int, int], ...]
    # The last intent of the mover, and whether it still is one.
    move: Move | None
    is_moving: bool


QueueRecord = (
    Opened
    | Closed
    | Leased
    | Passed
    | Finished
    | Returned
    | Renewed
    | Died
    | StartMoved
    | Trimmed
    | Paused
    | Resumed
    | MoveIntended
    | MoveDone
    | MoveDropped
    | Stored
)

_WHOLE: Final = frozenset((b"opened", b"stored", b"closed"))
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[QueueRecord]] = msgspec.msgpack.Decoder(QueueRecord)


def write_record(record: QueueRecord) -> bytes:
    return _ENCODER.encode(record)


def is_whole(value: bytes) -> bool:
    """Of a written record: whether it makes all earlier ones of its queue unnecessary. Only its name is looked at, so
    that a start need not read what it does not need: one byte for the list, one for the length of the name."""
    return value[2:8] in _WHOLE


def read_record(value: bytes | memoryview) -> QueueRecord:
    """Raises msgspec.DecodeError (a ValidationError is one): the journal holds what no queue has written."""
    return _DECODER.decode(value)
