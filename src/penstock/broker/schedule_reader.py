"""Rows of a schedule's log by their places: to release messages, and to show them.

Messages that are due together came at any time, so their rows lie scattered over all of the log. Those that were
written lately and are due soon are kept in memory; all others of one wish are read in one go, in the order of the log,
in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final

from penstock.broker.partition_shell import PartitionShell
from penstock.codec.record_batch import BatchHeader, BatchProblem, walk_headers
from penstock.codec.record_walk import parse_some, record_starts
from penstock.codec.records import StoredRecord, read_payload, read_records
from penstock.domain.schedule_rows import Row
from penstock.storage.read_plan import ReadPlan
from penstock.storage.storage_errors import Damage

# All schedules of a node together.
CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
# What is due later will be read from the disk: with others, and when there is time.
CACHED_MS_MAX: Final = 5 * 60_000
# Of one read. Rows that are as near to each other as this are read together.
READ_BYTES: Final = 16 * 1024
# Planned before others may use the loop: a millisecond.
PLANNED_AT_ONCE: Final = 200
# Of a row in memory, beside its bytes.
_ROW_BYTES: Final = 250

CacheKey = tuple[int, int]


class RowCache:
    """The rows that came last, whoever they are of. By the number of the shell and the place."""

    __slots__ = ("_bytes_max", "_rows", "_size_bytes")

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rows: dict[CacheKey, Row] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, key: CacheKey, row: Row) -> None:
        self._rows[key] = row
        self._size_bytes += _size_of(row)
        while self._size_bytes > self._bytes_max:
            self.drop(next(iter(self._rows)))

    def get(self, key: CacheKey) -> Row | None:
        return self._rows.get(key)

    def drop(self, key: CacheKey) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._size_bytes -= _size_of(row)

    def drop_shell(self, number: int) -> None:
        for key in [key for key in self._rows if key[0] == number]:
            self.drop(key)


def _size_of(row: Row) -> int:
    return len(row.key) + len(row.value or b"") + _ROW_BYTES


class RowReader:
    def __init__(self, companion: PartitionShell, cache: RowCache, readers: Executor, *, number: int) -> None:
        """`number` is the shell's own."""
        self._companion = companion
        self._cache = cache
        self._readers = readers
        self._number = number

    def keep(self, position: int, row: Row) -> None:
        self._cache.put((self._number, position), row)

    def drop(self, positions: Sequence[int]) -> None:
        for position in positions:
            self._cache.drop((self._number, position))

    def forget(self) -> None:
        self._cache.drop_shell(self._number)

    async def rows(self, positions: Sequence[int]) -> dict[int, Row]:
        """By place. What is not there, not readable yet or damaged, is missing."""
        found: dict[int, Row] = {}
        missing: list[int] = []
        for position in positions:
            row = self._cache.get((self._number, position))
            if row is None:
                missing.append(position)
            else:
                found[position] = row
        missing.sort()
        while missing:
            rows, next_offset = await self._read(missing)
            found.update(rows)
            # A row that was not where it should be is nowhere: what is left lies behind it.
            missing = [position for position in missing if position >= next_offset]
        return found

    async def _read(self, missing: Sequence[int]) -> tuple[dict[int, Row], int]:
        """Some of the rows, and the place up to which it has looked."""
        jobs: list[tuple[ReadPlan, list[int]]] = []
        log = self._companion.log
        for wanted in _neighbours(missing, self._near_count()):
            plan = log.plan_read(wanted[0], bytes_max=READ_BYTES if len(wanted) > 1 else 1)
            if isinstance(plan, ReadPlan):
                jobs.append((plan, wanted))
            if len(jobs) >= PLANNED_AT_ONCE:
                break
        if not jobs:
            return {}, missing[-1] + 1
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, _load_all, jobs)

    def _near_count(self) -> int:
        """How many rows are read with one, about."""
        log = self._companion.log
        row_bytes = max(log.size_bytes // max(log.log_end - log.log_start, 1), 1)
        return max(READ_BYTES // row_bytes // 2, 1)


def _neighbours(positions: Sequence[int], near_count: int) -> list[list[int]]:
    """Places in order, those together that one read may find."""
    groups: list[list[int]] = []
    for position in positions:
        if groups and position - groups[-1][0] < near_count:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _load_all(jobs: Sequence[tuple[ReadPlan, list[int]]]) -> tuple[dict[int, Row], int]:
    """Blocking: the rows, and the place up to which all of them were looked for."""
    found: dict[int, Row] = {}
    for plan, wanted in jobs:
        looked_until = _load(plan, wanted, found)
        if looked_until <= wanted[-1]:
            return found, looked_until
    return found, jobs[-1][1][-1] + 1


def _load(plan: ReadPlan, wanted: list[int], found: dict[int, Row]) -> int:
    loaded = plan.load()
    if isinstance(loaded, Damage):
        return wanted[-1] + 1
    looked_until = wanted[0] + 1
    for place, header in walk_headers(loaded):
        here = [position for position in wanted if header.base_offset <= position < header.next_offset]
        if here and not header.is_control:
            for record in _records(loaded, place, header, here):
                found[record.offset] = Row(record.key or b"", record.value, record.headers)
        looked_until = max(looked_until, header.next_offset)
    return looked_until


def _records(loaded: memoryview, place: int, header: BatchHeader, wanted: list[int]) -> list[StoredRecord]:
    if header.record_count == header.last_offset_delta + 1 and len(wanted) * 4 < header.record_count:
        # No holes, so a place is a number in the batch.
        payload = read_payload(loaded, place, header)
        if isinstance(payload, BatchProblem):
            return []
        whole = bytes(payload)
        starts = record_starts(header, whole)
        if starts is None:
            return []
        some: list[StoredRecord] = []
        for position in wanted:
            number = position - header.base_offset
            parsed = parse_some(header, whole, starts, number, number)
            some += [] if isinstance(parsed, BatchProblem) else parsed
        return some
    records = read_records(loaded, place)
    if isinstance(records, BatchProblem):
        return []
    return [record for record in records if record.offset in wanted]
