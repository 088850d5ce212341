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

from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.records import StoredRecord
from penstock.codec.batch.walk import record_at
from penstock.domain.schedule.rows import Row
from penstock.storage.log.batch_lookup import BatchLookup, plan_lookups

# All schedules of a node together.
CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
# What is due later will be read from the disk: with others, and when there is time.
CACHED_MS_MAX: Final = 5 * 60_000
# Of a row in memory, beside its bytes.
_ROW_BYTES: Final = 250
_ANY_BYTES: Final = 1 << 62

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
        self.drop(key)
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
        """By place. What is not there, not readable yet or damaged, is missing. OSError: they cannot be looked at just
        now, and may well be there."""
        found = await self.some_rows(positions, bytes_max=_ANY_BYTES)
        assert found is not None
        return found

    async def some_rows(self, positions: Sequence[int], *, bytes_max: int) -> dict[int, Row] | None:
        """The same. None: they are larger than that together, ask for fewer."""
        found: dict[int, Row] = {}
        missing: list[int] = []
        for position in positions:
            row = self._cache.get((self._number, position))
            if row is None:
                missing.append(position)
            else:
                found[position] = row
        if missing:
            lookups = plan_lookups(self._companion.log, sorted(missing))
            loaded = await asyncio.get_running_loop().run_in_executor(self._readers, _load_all, lookups, bytes_max)
            if loaded is None:
                return None
            found |= loaded
        return found


def _load_all(lookups: Sequence[BatchLookup], bytes_max: int) -> dict[int, Row] | None:
    """Blocking."""
    found: dict[int, Row] = {}
    for lookup in lookups:
        for position, batch, header in lookup.batches():
            record = None if header.is_control else record_at(batch, header, position)
            if isinstance(record, StoredRecord):
                found[position] = Row(record.key or b"", record.value, record.headers)
                bytes_max -= len(record.value or b"")
                if bytes_max < 0 and len(found) > 1:
                    return None
    return found
