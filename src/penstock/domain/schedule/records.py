"""What a schedule must not forget, as records of the companion log of its partition: one record, one row of the log.

A message's place is its offset in that log. Rows have keys, and the log may be compacted:

    row                     key                                     value
    Scheduled               `entry_key`: the first place, and       the message itself, with its due time
                            the producer's batch, if it has one
    Ended                   the same                                none: a tombstone, with the record in a header
    MoveIntended, MoveDone  "!move": only the last one counts       the record
    CronDefined             "!cron/" and the name                   the record, and the message itself
    CronDeleted             the same                                none, with the record in a header
    CronFired               "!fired/" and the name                  the record
    TransactionEnded        a control batch of the log, not a row of ours

A message that gets another time is written anew under its key; what is pending has no tombstone, so it is kept.
A sequence number comes again after two thousand million messages, and a delay may be longer than that: so the place
is in the key, and a repetition is found by `producers` instead.
"""

from __future__ import annotations

import struct
from enum import StrEnum
from typing import Final

import msgspec

NO_POSITION: Final = -1
MOVE_KEY: Final = b"!move"
# Headers of rows: what a tombstone cannot say in its value.
RECORD_HEADER: Final = "penstock-schedule"

_ENTRY_KEY: Final = struct.Struct(">qqhiI")


class Missed(StrEnum):
    """What becomes of the times that nobody was there for. Written into journals: never renamed."""

    SKIP = "skip"
    # The last of them alone.
    ONCE = "once"
    ALL = "all"


class End(StrEnum):
    CANCELLED = "cancelled"
    RELEASED = "released"


class ProducerBatch(msgspec.Struct, frozen=True, array_like=True):
    """Whose batch a delayed message came in, if that can be sent again."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    # Of the message in the batch.
    index: int = 0
    # Of all that is delayed in the batch. Whoever has given a batch up may send another under its sequence: what is not
    # the same is no repetition. 0: not known.
    checksum: int = 0


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One batch of the mover: these go into the partition's own log, in this order, with this producer sequence."""

    batch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    sources: tuple[int, ...]


class _Event(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """A record of the journal."""


class Scheduled(_Event, frozen=True, array_like=True, tag="scheduled"):
    position: int
    due_ms: int
    at_ms: int
    # It had another time, and these were its first place and its last one.
    origin: int = NO_POSITION
    replaces: int = NO_POSITION
    producer: ProducerBatch | None = None
    # It does not count before its transaction is committed.
    is_transactional: bool = False
    # Made by the schedule of that name.
    cron: str = ""


class Ended(_Event, frozen=True, array_like=True, tag="ended"):
    position: int
    # Its first place.
    origin: int
    end: End
    at_ms: int


class TransactionEnded(_Event, frozen=True, array_like=True, tag="transaction-ended"):
    producer_id: int
    producer_epoch: int
    is_commit: bool
    at_ms: int


class MoveIntended(_Event, frozen=True, array_like=True, tag="move-intended"):
    move: Move
    at_ms: int


class MoveDone(_Event, frozen=True, array_like=True, tag="move-done"):
    # Whole: the row takes the place of the intent, and the next batch goes on from its sequence.
    move: Move
    at_ms: int


class CronDefined(_Event, frozen=True, array_like=True, tag="cron-defined"):
    name: str
    # Of this row: the message is in it.
    position: int
    expression: str
    zone: str
    missed: Missed
    # Times up to then are past: the definition before this one, and what it fired, may be compacted away.
    fired_ms: int
    at_ms: int
    # Of two definitions in two partitions, which a crash has left, the higher one counts.
    version: int = 0


class CronDeleted(_Event, frozen=True, array_like=True, tag="cron-deleted"):
    name: str
    at_ms: int


class CronFired(_Event, frozen=True, array_like=True, tag="cron-fired"):
    name: str
    due_ms: int
    at_ms: int


class StoredBucket(msgspec.Struct, frozen=True, array_like=True):
    """A file of the shell's: `count` entries of it are good, whatever is behind them is not."""

    number: int
    level: int
    index: int
    count: int


class StoredBatch(msgspec.Struct, frozen=True, array_like=True):
    """A producer's batch with delayed messages, and how many of them are here."""

    producer_epoch: int
    base_sequence: int
    count: int
    checksum: int = 0


class StoredCron(msgspec.Struct, frozen=True, array_like=True):
    name: str
    position: int
    expression: str
    zone: str
    missed: Missed
    fired_ms: int
    version: int = 0


class Stored(_Event, frozen=True, array_like=True, tag="stored"):
    """Everything that is remembered, but for the times: those are in the bucket files. Kept beside the log."""

    # Whatever the log holds from here on is to be applied after it.
    next_position: int
    pending: tuple[tuple[int, bytes], ...]
    places: tuple[tuple[int, bytes, bytes], ...]
    origins: tuple[tuple[int, bytes, bytes], ...]
    # By producer: place and due time of messages whose transaction is open, and the epoch.
    held: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
    # Whoever was silent for longest comes first.
    producers: tuple[tuple[int, tuple[StoredBatch, ...]], ...]
    crons: tuple[StoredCron, ...]
    move: Move | None
    is_moving: bool
    buckets: tuple[StoredBucket, ...]
    next_bucket: int
    # In which the row before `next_position` was written; -1: not known.
    epoch: int = -1


ScheduleRecord = (
    Scheduled | Ended | TransactionEnded | MoveIntended | MoveDone | CronDefined | CronDeleted | CronFired | Stored
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final[msgspec.msgpack.Decoder[ScheduleRecord]] = msgspec.msgpack.Decoder(ScheduleRecord)


def write_record(record: ScheduleRecord) -> bytes:
    return _ENCODER.encode(record)


def read_record(value: bytes | memoryview) -> ScheduleRecord:
    """Raises msgspec.DecodeError (a ValidationError is one): the journal holds what no schedule has written."""
    return _DECODER.decode(value)


def entry_key(origin: int, producer: ProducerBatch | None = None) -> bytes:
    """Of a message that was first written at `origin`."""
    if producer is None:
        return _ENTRY_KEY.pack(origin, -1, -1, -1, 0)
    return _ENTRY_KEY.pack(
        origin, producer.producer_id, producer.producer_epoch, producer.base_sequence, producer.index
    )


def read_entry_key(key: bytes) -> tuple[int, ProducerBatch | None] | None:
    """None: the key of another kind of row."""
    if len(key) != _ENTRY_KEY.size or key.startswith(b"!"):
        return None
    origin, producer_id, producer_epoch, base_sequence, index = _ENTRY_KEY.unpack(key)
    if producer_id < 0:
        return origin, None
    return origin, ProducerBatch(producer_id, producer_epoch, base_sequence, index)


def key_of(record: ScheduleRecord, *, entry: bytes = b"") -> bytes | None:
    """The key of a record's row; `entry` is that of the message. None: it has no row of its own."""
    match record:
        case Scheduled() | Ended():
            return entry
        case MoveIntended() | MoveDone():
            return MOVE_KEY
        case CronDefined() | CronDeleted():
            return b"!cron/" + record.name.encode()
        case CronFired():
            return b"!fired/" + record.name.encode()
        case _:
            return None
