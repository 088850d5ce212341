"""The log of a schedule, read: what was decided, in its order, without the messages themselves.

Rows of an open transaction and its markers come as they stand in the log: the machine knows what to make of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import msgspec

from penstock.broker.journal import JournalLostError
from penstock.broker.partition_shell import PartitionShell
from penstock.codec.columns import VECTORED_ROWS_MIN, read_columns
from penstock.codec.control_batch import EndMarker, read_marker
from penstock.codec.record_batch import BatchHeader, BatchProblem, walk_headers
from penstock.codec.records import read_records
from penstock.domain.schedule_records import ScheduleRecord, TransactionEnded
from penstock.domain.schedule_rows import Row, read_row
from penstock.storage.read_plan import ReadPlan
from penstock.storage.storage_errors import Damage

# Decoded at once, in a thread, while the portion before it is applied.
READ_BYTES: Final = 2 * 1024 * 1024

_Portion = tuple[list[ScheduleRecord], int]


async def replay_rows(companion: PartitionShell, offset: int) -> AsyncIterator[list[ScheduleRecord]]:
    """From `offset` to the end, in portions. Raises JournalLostError."""
    end = companion.log.log_end
    if companion.readable_end < end:
        # Something was written before the row that failed. It will be there, and is not yet.
        raise JournalLostError(f"{companion.topic}-{companion.index} is not readable to its end yet")
    loading = _load(companion, offset, end) if offset < end else None
    while loading is not None:
        records, offset = await loading
        loading = _load(companion, offset, end) if offset < end else None
        yield records


def _load(companion: PartitionShell, offset: int, end: int) -> asyncio.Future[_Portion]:
    plan = companion.log.plan_read(offset, bytes_max=READ_BYTES, up_to=end)
    if not isinstance(plan, ReadPlan):
        raise JournalLostError(f"{companion.topic}-{companion.index} cannot be read at {offset}: {plan}")
    return asyncio.get_running_loop().run_in_executor(None, _load_records, plan)


def _load_records(plan: ReadPlan) -> _Portion:
    """Blocking: the records of one read, and the offset after it."""
    loaded = plan.load()
    if isinstance(loaded, Damage):
        raise JournalLostError(loaded.describe())
    headers = list(walk_headers(loaded))
    assert headers, "a plan holds one batch at least"
    try:
        if sum(header.record_count for _, header in headers) < VECTORED_ROWS_MIN:
            records = list(_one_by_one(loaded, headers))
        else:
            records = _by_columns(loaded, headers)
    except msgspec.DecodeError as error:
        raise JournalLostError(f"a row in the log of a schedule cannot be read: {error}") from error
    return records, headers[-1][1].next_offset


def _one_by_one(loaded: memoryview, headers: Sequence[tuple[int, BatchHeader]]) -> Iterator[ScheduleRecord]:
    for place, header in headers:
        if header.is_control:
            yield from _ends(loaded, place, header)
            continue
        found = read_records(loaded, place)
        if isinstance(found, BatchProblem):
            raise JournalLostError(f"batch at offset {header.base_offset}: {found.reason}")
        for record in found:
            yield read_row(Row(record.key or b"", record.value, record.headers))


def _by_columns(loaded: memoryview, headers: Sequence[tuple[int, BatchHeader]]) -> list[ScheduleRecord]:
    frame = read_columns(loaded)
    if isinstance(frame, BatchProblem):
        raise JournalLostError(frame.reason)
    offsets, keys, values = (frame[name].to_list() for name in ("offset", "key", "value"))
    # Only tombstones have headers that matter, and lists of them are costly to take apart.
    is_tombstone = frame["value"].is_null()
    tombstone_headers = iter(frame["headers"].filter(is_tombstone).to_list())
    markers = [(place, header) for place, header in headers if header.is_control]
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
        raise JournalLostError(f"marker at offset {header.base_offset}: {marker.reason}")
    if isinstance(marker, EndMarker):
        yield TransactionEnded(header.producer_id, header.producer_epoch, marker.is_commit, header.max_timestamp)
