"""What the records of internal logs speak of, in the numbers that side files of zones hold (`storage/segment/zones`).

    journal of queues   WIDE or NARROW   buckets of 64 message offsets
    schedule            NARROW           buckets of 64 first places
                        producer         lowest and highest base sequence of its batches
    committed offsets   topic, partition and group, as two checksums      lowest and highest position

Neighbours are told together, so a journal whose queues go through a topic in order says little per zone, however many
messages it speaks of. A stretch of many messages is WIDE and is looked at one by one: there are few of them; the others
are found by where they begin, because none is longer than `NARROW_BUCKETS_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

import msgspec

from penstock.domain.group.records import NO_PRODUCER, OffsetStored
from penstock.domain.queue.records import (
    Closed,
    Died,
    Finished,
    Leased,
    Move,
    MoveDone,
    MoveDropped,
    MoveIntended,
    Opened,
    Passed,
    Paused,
    QueueRecord,
    Renewed,
    Resumed,
    Returned,
    StartMoved,
    Take,
    read_record,
)
from penstock.domain.queue.values import Range
from penstock.domain.schedule.records import MOVE_KEY, read_entry_key
from penstock.domain.schedule.records import MoveIntended as Intent
from penstock.domain.schedule.records import read_record as read_schedule_record

BUCKET_BITS: Final = 6
NARROW: Final = 0
WIDE: Final = 1
NARROW_BUCKETS_MAX: Final = 1_024
# Of a record that is about all messages of a queue.
EVERYTHING: Final[Range] = (0, (1 << 62) - 1)

# Offset in the log, key, value.
Row = tuple[int, bytes | None, bytes | None]
# Key, low, high.
ZoneEntry = tuple[int, int, int]

_STORED: Final = b"stored"
_TRIMMED: Final = b"trimmed"


class QueueZones:
    """Of the journal of a partition's queues. Remembers the last move of each queue, whose end names no messages."""

    def __init__(self) -> None:
        self._moves: dict[bytes | None, Move] = {}

    def entries(self, rows: Iterable[Row]) -> list[ZoneEntry]:
        ranges: list[Range] = []
        for _offset, key, value in rows:
            # Two bytes of a list and of a name's length stand before the name.
            if value is None or value[2:8] == _STORED or value[2:9] == _TRIMMED:
                continue
            try:
                record = read_record(value)
            except msgspec.DecodeError:
                continue  # told by whoever replays it
            # Nearly all of them, without another call.
            if type(record) is Finished:
                ranges += record.ranges
                continue
            if type(record) is Leased and not record.again:
                for take in record.takes:
                    ranges += _taken(take)
                continue
            if isinstance(record, MoveIntended):
                self._moves[key] = record.move
            elif isinstance(record, MoveDone | MoveDropped):
                move = self._moves.get(key)
                if move is not None and move.batch == record.batch:
                    ranges += move.sources
                continue
            ranges += touched(record)
        return bucketed(ranges)


class ScheduleZones:
    """Of the schedule beside a partition: the first places of messages, the places that are to be released, and whose
    batches they came in."""

    def entries(self, rows: Iterable[Row]) -> list[ZoneEntry]:
        ranges: list[Range] = []
        sequences: dict[int, tuple[int, int]] = {}
        for _offset, key, value in rows:
            found = None if key is None else read_entry_key(key)
            if found is not None:
                origin, batch = found
                ranges.append((origin, origin))
                if batch is not None:
                    producer, sequence = producer_key(batch.producer_id), batch.base_sequence
                    low, high = sequences.get(producer, (sequence, sequence))
                    sequences[producer] = min(low, sequence), max(high, sequence)
            elif key == MOVE_KEY and value is not None:
                intent = _read_intent(value)
                ranges += [] if intent is None else [(position, position) for position in intent.move.sources]
        return bucketed(ranges) + [(producer, low, high) for producer, (low, high) in sequences.items()]


def producer_key(producer_id: int) -> int:
    """Apart from NARROW and WIDE."""
    return 1 << 62 | producer_id


def _read_intent(value: bytes) -> Intent | None:
    try:
        record = read_schedule_record(value)
    except msgspec.DecodeError:
        return None
    return record if isinstance(record, Intent) else None


class CommitZones:
    """Of `__consumer_offsets`: between two of them a position only grows, unless somebody sets it back."""

    def entries(self, rows: Iterable[Row]) -> list[ZoneEntry]:
        known: dict[int, tuple[int, int]] = {}
        for _offset, key, value in rows:
            commit = read_commit(key, value)
            if commit is None:
                continue
            group, stored = commit
            name = commit_key(stored.topic, stored.partition) | crc32(group.encode())
            offset = max(stored.offset, 0)
            low, high = known.get(name, (offset, offset))
            known[name] = min(low, offset), max(high, offset)
        return [(name, low, high) for name, (low, high) in known.items()]


def commit_key(topic: str, partition: int) -> int:
    """The first of all keys of that partition; the last has all 32 lower bits set."""
    return crc32(f"{partition}/{topic}".encode()) << 32


_COMMIT_KEY: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_COMMIT: Final = msgspec.msgpack.Decoder(OffsetStored)
# A list of three that begins with a text of six characters.
_OFFSET_KEY: Final = b"\x93\xa6offset"


def read_commit(key: bytes | None, value: bytes | None) -> tuple[str, OffsetStored] | None:
    """Group and position; None: a record of another kind, one that waits for a transaction, or a removal."""
    if key is None or value is None or _OFFSET_KEY not in key:
        return None
    try:
        group, _rest = _COMMIT_KEY.decode(key)
        stored = _COMMIT.decode(value)
    except msgspec.DecodeError:
        return None
    return None if stored.producer_id != NO_PRODUCER else (group, stored)


def touched(record: QueueRecord) -> Sequence[Range]:
    """Messages that a record tells something about. Not those of `Stored`: it tells what others have told before."""
    match record:
        case Leased():
            return [*record.again, *(each for take in record.takes for each in _taken(take))]
        case Passed():
            return [each for take in record.takes for each in _taken(take)]
        case Finished() | Returned() | Renewed() | Died():
            return record.ranges
        case MoveIntended():
            return record.move.sources
        case Opened() | Closed() | Paused() | Resumed() | StartMoved():
            return (EVERYTHING,)
        case _:
            return ()


def _taken(take: Take) -> Iterable[Range]:
    if not take.blocked and not take.dying:
        return take.ranges
    return [*take.ranges, *take.dying, *((offset, offset) for offset, _key in take.blocked)]


def speaks_of(record: QueueRecord, offset: int) -> bool:
    return any(first <= offset <= last for first, last in touched(record))


def bucketed(ranges: list[Range]) -> list[ZoneEntry]:
    """Neighbours as one, cut by nothing: what is long is WIDE."""
    found: list[ZoneEntry] = []
    ranges.sort()
    low = high = -2
    for first, last in ranges:
        first_bucket, last_bucket = first >> BUCKET_BITS, last >> BUCKET_BITS
        if first_bucket > high + 1 or (last_bucket > high and last_bucket - low >= NARROW_BUCKETS_MAX):
            if high >= 0:
                found.append(_entry(low, high))
            low, high = first_bucket, last_bucket
        elif last_bucket > high:
            high = last_bucket
    if high >= 0:
        found.append(_entry(low, high))
    return found


def _entry(low: int, high: int) -> ZoneEntry:
    return (NARROW if high - low < NARROW_BUCKETS_MAX else WIDE), low, high
