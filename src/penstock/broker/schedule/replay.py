"""The log of a schedule, read: what was decided, in its order, without the messages themselves.

Rows of an open transaction and its markers come as they stand in the log: the machine knows what to make of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from penstock.broker.machine.journal_reader import Rest, no_rest
from penstock.broker.machine.portions import Batches, UnreadableRecordsError, read_portions
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.files import ScheduleFiles
from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import BatchHeader, BatchProblem
from penstock.codec.batch.records import read_records
from penstock.codec.columns.frame import VECTORED_ROWS_MIN, read_columns
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import ScheduleRecord, TransactionEnded
from penstock.domain.schedule.rows import Row, read_row

# Records of a replay that are applied before others may use the loop: some milliseconds.
REPLAYED_AT_ONCE: Final = 1_000


async def rebuild(
    machine: PartitionSchedule, files: ScheduleFiles, companion: PartitionShell, *, end: int, rest: Rest = no_rest
) -> int:
    """Makes an empty machine what the last checkpoint says and the rows behind it, up to `end`; where those began.
    Raises JournalLostError, OSError."""
    stored = await files.open(companion)
    start = companion.log_start
    if stored is not None:
        machine.apply(stored)
        start = max(start, stored.next_position)
    async for records in read_portions(companion, start, end, _records_of):
        for place in range(0, len(records), REPLAYED_AT_ONCE):
            for record in records[place : place + REPLAYED_AT_ONCE]:
                machine.apply(record)
            await asyncio.sleep(0)
        await files.spill(machine)
        await rest()
    return start


def _records_of(loaded: memoryview, batches: Batches) -> list[ScheduleRecord]:
    """Blocking."""
    if sum(header.record_count for _, header in batches) < VECTORED_ROWS_MIN:
        return list(_one_by_one(loaded, batches))
    return _by_columns(loaded, batches)


def _one_by_one(loaded: memoryview, batches: Batches) -> Iterator[ScheduleRecord]:
    for place, header in batches:
        if header.is_control:
            yield from _ends(loaded, place, header)
            continue
        found = read_records(loaded, place)
        if isinstance(found, BatchProblem):
            raise UnreadableRecordsError(found.reason)
        for record in found:
            yield read_row(Row(record.key or b"", record.value, record.headers))


def _by_columns(loaded: memoryview, batches: Batches) -> list[ScheduleRecord]:
    frame = read_columns(loaded)
    if isinstance(frame, BatchProblem):
        raise UnreadableRecordsError(frame.reason)
    offsets, keys, values = (frame[name].to_list() for name in ("offset", "key", "value"))
    # Only tombstones have headers that matter, and lists of them are costly to take apart.
    is_tombstone = frame["value"].is_null()
    tombstone_headers = iter(frame["headers"].filter(is_tombstone).to_list())
    markers = [(place, header) for place, header in batches if header.is_control]
    records: list[ScheduleRecord] = []
    for offset, key, value in zip(offsets, keys, values, strict=True):
        while markers and markers[0][1].base_offset < offset:
            records += _ends(loaded, *markers.pop(0))
        own = () if value is not None else tuple((each["key"], each["value"]) for each in next(tombstone_headers))
        records.append(read_row(Row(key, value, own)))
    for place, header in markers:
        records += _ends(loaded, place, header)
    return records


def _ends(loaded: memoryview, place: int, header: BatchHeader) -> Iterator[TransactionEnded]:
    marker = read_marker(loaded, place) if header.record_count else None
    if isinstance(marker, BatchProblem):
        raise UnreadableRecordsError(f"marker at offset {header.base_offset}: {marker.reason}")
    if isinstance(marker, EndMarker):
        yield TransactionEnded(header.producer_id, header.producer_epoch, marker.is_commit, header.max_timestamp)
