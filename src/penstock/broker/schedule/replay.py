"""The log of a schedule, read: what was decided, in its order, without the messages themselves.

Rows of an open transaction and its markers come as they stand in the log: the machine knows what to make of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from penstock.broker.machine.portions import Batches, UnreadableRecordsError, read_portions
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.control import EndMarker, read_marker
from penstock.codec.batch.header import BatchHeader, BatchProblem
from penstock.codec.batch.records import read_records
from penstock.codec.columns.frame import VECTORED_ROWS_MIN, read_columns
from penstock.domain.schedule.records import ScheduleRecord, TransactionEnded
from penstock.domain.schedule.rows import Row, read_row


def replay_rows(companion: PartitionShell, offset: int) -> AsyncIterator[list[ScheduleRecord]]:
    """From `offset` to the end, in portions. Raises JournalLostError."""
    return read_portions(companion, offset, companion.log.log_end, _records_of)


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
