"""The journal of a partition's queues, read: what it comes to, and from where on it has to be read the next time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

from penstock.base.threads import finish_in_thread
from penstock.broker.machine.portions import Batches, UnreadableRecordsError, read_portions, rows_of
from penstock.broker.machine.rehearsals import Rehearsal
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.replay_start import read_start, write_start
from penstock.domain.queue.ledger import JournalLedger
from penstock.domain.queue.machine import Queue
from penstock.domain.queue.records import Closed, QueueRecord, is_whole, read_record

# (journal position, group, record)
JournalEntry = tuple[int, str, QueueRecord]
# The same as it stands there: offset, key, value.
Row = tuple[int, bytes, bytes]


class QueueReplay:
    """Machines as they come out of their records."""

    def __init__(self, make: Callable[[str], Queue]) -> None:
        self._make = make
        self.queues: dict[str, Queue] = {}
        self.ledger = JournalLedger()

    def apply(self, entries: list[JournalEntry]) -> None:
        for position, group, record in entries:
            self.ledger.note(group, position, record)
            if isinstance(record, Closed):
                self.queues.pop(group, None)
            elif self.ledger.is_known(group):
                queue = self.queues.get(group)
                if queue is None:
                    queue = self.queues[group] = self._make(group)
                queue.apply(record)


def replay_entries(companion: PartitionShell, start: int, end: int) -> AsyncIterator[list[JournalEntry]]:
    """In portions. Raises JournalLostError."""
    return read_portions(companion, start, end, _entries_of)


async def rehearse(rehearsal: Rehearsal, make: Callable[[str], Queue]) -> None:
    """Of a partition that another leads: the machines are built of what is committed, and where that may begin the next
    time is saved. They answer nobody."""
    companion = rehearsal.journal
    saved = await asyncio.to_thread(read_start, companion)
    replay = QueueReplay(make)
    start = max(companion.log_start, saved)
    async for entries in replay_entries(companion, start, rehearsal.end):
        # Nobody else has these machines yet.
        await finish_in_thread(partial(replay.apply, entries))
        await rehearsal.rest()
    start = replay.ledger.replay_start()
    if start > saved and not await finish_in_thread(partial(write_start, companion.log, start)):
        raise OSError(f"the start of the replay at {start} cannot be written")


def _entries_of(loaded: memoryview, batches: Batches) -> list[JournalEntry]:
    """Blocking."""
    try:
        rows = _needed([(offset, key or b"", value or b"") for offset, key, value in rows_of(loaded, batches)])
        return [(offset, key.decode(), read_record(value)) for offset, key, value in rows]
    except (TypeError, AttributeError) as error:
        raise UnreadableRecordsError(str(error)) from error


def _needed(rows: list[Row]) -> Iterator[Row]:
    """Without those that a later one of the same queue makes unnecessary: most of them, and reading costs the most."""
    whole = {key: place for place, (_, key, value) in enumerate(rows) if is_whole(value)}
    return (row for place, row in enumerate(rows) if place >= whole.get(row[1], 0))
