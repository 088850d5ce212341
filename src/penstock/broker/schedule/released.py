"""Messages whose time has come, put together as their consumers see them: some of an intent, in batches. Pure, and done
in a thread where they are many, or compressed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.broker.partition.recompression import Recompression
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.log.producer_sequence import SEQUENCE_MAX
from penstock.domain.queue.receipt import ScheduledIdWriter
from penstock.domain.schedule.headers import MESSAGE_ID_HEADER, released_headers
from penstock.domain.schedule.records import NO_POSITION, Move, Scheduled, entry_key
from penstock.domain.schedule.rows import Row, read_message

# Of the batches that are written, but for a message that is larger by itself.
BATCH_BYTES_MAX: Final = 900_000
# Of a message that its own log has lost: says so.
LOST_HEADER: Final = "penstock-schedule-lost"
# Of what a record takes in a batch beside key, value and headers.
_RECORD_BYTES: Final = 40


class IntentPart(msgspec.Struct, frozen=True):
    """What is needed to put some messages of an intent together, in a thread."""

    move: Move
    # The number of the first in the intent.
    first: int
    sources: Sequence[int]
    rows: Mapping[int, Row]
    # So many of the first ones are in the partition's log.
    skipped: int
    ids: ScheduledIdWriter
    now_ms: int
    # What was due earlier is dated with its release.
    oldest_ms: int
    # None: their batches stay as they are made.
    recompression: Recompression | None = None


class ReleasedPart(msgspec.Struct, frozen=True):
    """Some messages of an intent, put together."""

    batches: list[bytearray]
    # Of the rows, and when they were due: of all of them, also those that were skipped.
    keys: list[bytes]
    dues_ms: list[int]
    # Places whose rows were not to be had.
    missing: list[int]


def build_released(part: IntentPart) -> ReleasedPart:
    """Their number never changes: a message that the schedule's log has lost is there, and says so."""
    built = ReleasedPart([], [], [], [position for position in part.sources if position not in part.rows])
    records: list[Record] = []
    size_bytes = 0
    for place, position in enumerate(part.sources):
        key, due_ms, record = _released(position, part)
        built.keys.append(key)
        built.dues_ms.append(due_ms)
        if place < part.skipped:
            continue
        record_bytes = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
        record_bytes += sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
        if records and size_bytes + record_bytes > BATCH_BYTES_MAX:
            built.batches.append(_batch_of(part, place - len(records), records))
            records, size_bytes = [], 0
        records.append(record)
        size_bytes += record_bytes
    if records:
        built.batches.append(_batch_of(part, len(part.sources) - len(records), records))
    return built


def _batch_of(part: IntentPart, place: int, records: Sequence[Record]) -> bytearray:
    move = part.move
    batch = build_batch(
        records,
        producer_id=move.producer_id,
        producer_epoch=move.producer_epoch,
        base_sequence=(move.base_sequence + part.first + place) & SEQUENCE_MAX,
    )
    return batch if part.recompression is None else part.recompression.recompress_own(batch)


def _released(position: int, part: IntentPart) -> tuple[bytes, int, Record]:
    """The key of its row, when it was due, and the message as its consumers see it."""
    row = part.rows.get(position)
    if row is None or row.value is None:
        headers = ((MESSAGE_ID_HEADER, part.ids.write(position).encode()), (LOST_HEADER, b"%d" % position))
        return entry_key(position), part.now_ms, Record(value=None, timestamp_ms=part.now_ms, headers=headers)
    record, message = read_message(row)
    assert isinstance(record, Scheduled)
    origin = position if record.origin == NO_POSITION else record.origin
    own = released_headers(
        message.headers,
        message_id=part.ids.write(origin),
        arrived_ms=message.arrived_ms or record.at_ms,
        written_ms=message.written_ms,
    )
    timestamp_ms = record.due_ms if record.due_ms >= part.oldest_ms else part.now_ms
    return row.key, record.due_ms, Record(message.value, message.key, timestamp_ms, own)
