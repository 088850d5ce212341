"""Pending messages in the order of their due times, a page at a time.

Near and far ones alike are in the machine's buckets: what is in memory of them, and what is in their files. A bucket is
looked through as a whole for the first entries behind the cursor, in a thread; later buckets are looked at only if the
page has room for them. So a page costs what its buckets cost: a far one may be as large as all that is pending.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Final

from penstock.broker.schedule.files import ScheduleFiles
from penstock.broker.schedule.values import DueCursor
from penstock.domain.schedule.buckets import ENTRY_BYTES
from penstock.domain.schedule.commands import BucketPart
from penstock.domain.schedule.machine import PartitionSchedule

# Due time and place.
DueEntry = tuple[int, int]

# Of a file at once: others may use it in between.
READ_BYTES: Final = 65_536 * ENTRY_BYTES
# Entries of ended messages lie among the others: a page is given up, not full, after so many attempts to fill it.
ATTEMPTS_MAX: Final = 20
# Of the messages of one page, and how many are read before it is known how large they are.
LISTED_BYTES_MAX: Final = 16 * 1024 * 1024
LISTED_AT_ONCE: Final = 20
# Entries that one attempt takes at least.
TAKEN_MIN: Final = 500

_ENTRY: Final = Struct("<qq")
_POSITION_MAX: Final = 2**63 - 1
_END: Final = (_POSITION_MAX, _POSITION_MAX)


class DueList:
    def __init__(self, machine: PartitionSchedule, files: ScheduleFiles, *, partition: int) -> None:
        self._machine = machine
        self._files = files
        self._partition = partition

    async def page(self, after: DueCursor | None, limit: int) -> tuple[list[DueEntry], DueCursor | None]:
        """And where the next page goes on; None: there is nothing behind it. OSError: nobody can say just now."""
        last = self._first_entry(after)
        found: list[DueEntry] = []
        for _attempt in range(ATTEMPTS_MAX):
            count = max(limit - len(found), TAKEN_MIN)
            entries = await self._next_entries(last, count)
            waiting = [entry for entry in entries if self._machine.is_pending(entry[1])]
            found += waiting[: limit - len(found)]
            if len(found) >= limit:
                return found, self._cursor(found[-1])
            if len(entries) < count:
                return found, None
            last = entries[-1]
        return found, self._cursor(last)

    def _first_entry(self, after: DueCursor | None) -> DueEntry:
        """The last one that is not wanted any more: of equal times, those of lower partitions come first."""
        if after is None or after.partition == self._partition:
            return (-1, -1) if after is None else (after.due_ms, after.position)
        return (after.due_ms, -1) if after.partition < self._partition else (after.due_ms, _POSITION_MAX)

    def _cursor(self, entry: DueEntry) -> DueCursor:
        return DueCursor(entry[0], self._partition, entry[1])

    async def _next_entries(self, last: DueEntry, count: int) -> list[DueEntry]:
        """The first ones behind `last`, each once."""
        found: list[DueEntry] = []
        for part in self._machine.parts(last[0]):
            if len(found) >= count and found[-1][0] < part.start_ms:
                break
            found = await self._with_part(found, part, last, count)
        return found

    async def _with_part(self, found: list[DueEntry], part: BucketPart, last: DueEntry, count: int) -> list[DueEntry]:
        found = _merged(found, part.entries, last, count)
        size = part.count * ENTRY_BYTES
        for position in range(0, size, READ_BYTES):
            try:
                data = await self._files.read(part.name, position=position, size=min(READ_BYTES, size - position))
            except FileNotFoundError:
                # Its time came, and its entries are elsewhere now, or over.
                break
            found = await asyncio.to_thread(_merged, found, data, last, count)
        return found


def _merged(found: list[DueEntry], entries: bytes, last: DueEntry, count: int) -> list[DueEntry]:
    """The first `count` of both that are behind `last`. An entry may stand twice: after a restart, and while its bucket
    is opened."""
    end = found[-1] if len(found) >= count else _END
    whole = memoryview(entries)[: len(entries) - len(entries) % ENTRY_BYTES]
    behind = {(due_ms, position) for due_ms, position in _ENTRY.iter_unpack(whole) if last < (due_ms, position) < end}
    return sorted(behind.union(found))[:count] if behind else found
