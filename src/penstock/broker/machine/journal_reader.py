"""A journal, read: for a replay, and for the snapshot that the next replay begins with.

    replay     the snapshot, if it goes with the log, and what was written since
    save       the same merged in threads, key by key, and written as the next snapshot: of committed records alone

A node that leads saves from time to time; one that follows saves what it would begin with if it led (`rehearsals`). The
last record of a key says all there is to say about it, so neither needs the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from penstock.base.log_events import get_logger
from penstock.base.threads import finish_in_thread
from penstock.broker.machine.portions import (
    Batches,
    JournalLostError,
    check_reaches,
    check_whole,
    damaged,
    read_portions,
    readable_rows_of,
    rows_of,
)
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.log.journal_snapshot import (
    SNAPSHOT_FILE,
    Entry,
    JournalSnapshot,
    merge,
    read_snapshot,
    remove_snapshot,
    write_snapshot,
)
from penstock.storage.log.saved_place import SavedPlace, agrees, place_in

log = get_logger("journal")

# A replay reads the snapshot and what came after it. A new one is due when that is more than the snapshot itself, so a
# start costs at most twice what is alive, and writing snapshots no more than writing the log; and below this number of
# records it is not worth a file.
SNAPSHOT_RECORDS_MIN: Final = 20_000

# Blocking: somebody is shown entries in their order.
Look = Callable[[Sequence[Entry]], None]
Rest = Callable[[], Awaitable[None]]


async def no_rest() -> None:
    """Of whoever need not let others go first."""


def committed_end(shell: PartitionShell) -> int:
    """Up to here a file beside the log may be made of it: it is committed, and this disk has it."""
    return min(shell.log.readable_end, shell.log.durable_end)


class JournalReader:
    def __init__(self, shell: PartitionShell, *, snapshot_records_min: int = SNAPSHOT_RECORDS_MIN) -> None:
        self._shell = shell
        self._snapshot_records_min = snapshot_records_min
        # Of the snapshot on disk, as far as is known of it.
        self._snapshot_offset = 0
        self._snapshot_rows = 0
        # Records that a repair has taken out, as far as the last replay could see.
        self.missing_count = 0

    # Replay

    async def replay(self) -> AsyncIterator[list[Entry]]:
        """What was ever written and still counts, in its order and in portions; control batches are left out.

        Raises JournalLostError; JournalDamagedError if any of it is not as it was written.
        """
        shell = self._shell
        snapshot = await asyncio.to_thread(self._read_snapshot)
        start = shell.log_start if snapshot is None else snapshot.offset
        check_whole(shell, start)
        end = shell.readable_end
        if snapshot is not None:
            self._snapshot_offset = start
            self._snapshot_rows = len(snapshot.keys)
            for entries in snapshot.entries():
                yield entries
                await asyncio.sleep(0)
        async for entries in read_portions(shell, start, end, _entries_of, on_missing=self._note_missing):
            yield entries

    def _note_missing(self, count: int) -> None:
        self.missing_count = count

    async def unreadable(self, unread: Entry, why: str) -> JournalLostError:
        """Of an entry that nobody can have written: where it stands, for the repair. One that stands in the snapshot
        alone is done without: the next replay reads the whole log."""
        shell = self._shell
        async for offset in read_portions(shell, shell.log_start, shell.readable_end, partial(_offset_of, unread)):
            if offset is not None:
                return damaged(shell, f"the record at offset {offset} cannot be read: {why}", dropped=offset)
        log.warning("snapshot cannot be read, the whole log is read", topic=shell.topic, partition=shell.index, why=why)
        await finish_in_thread(partial(remove_snapshot, shell.log.context.files, shell.log.home.directory))
        return JournalLostError(f"{shell.topic}-{shell.index}: {SNAPSHOT_FILE} holds a record that cannot be read")

    # The snapshot

    @property
    def is_snapshot_due(self) -> bool:
        if self._snapshot_offset < self._shell.log.clean_end and self._snapshot_rows >= self._snapshot_records_min:
            return True
        tail = committed_end(self._shell) - self._snapshot_offset
        return tail >= max(self._snapshot_records_min, self._snapshot_rows)

    async def save_snapshot(self, *, look: Look | None = None, rest: Rest = no_rest) -> int | None:
        """Of all that is committed now: up to where. The file's work is done in a thread, and finished also when this
        is cancelled: nobody else may write the file meanwhile. What goes wrong leaves the snapshot before it: None.

        `look` is shown everything in it; `rest` is waited for between two portions.
        """
        shell = self._shell
        end = committed_end(shell)
        context = shell.log.context
        if context.is_full or not context.files.is_durable:
            return None
        place = place_in(shell.log, end)
        before = await finish_in_thread(self._read_snapshot)
        rows: dict[bytes, bytes] = {}
        for entries in () if before is None else before.entries():
            await finish_in_thread(partial(_take, rows, entries, look))
            await rest()
        start = shell.log_start if before is None else before.offset
        async for entries in read_portions(shell, start, end, _entries_of):
            await finish_in_thread(partial(_take, rows, entries, look))
            await rest()
        saved = JournalSnapshot(end, list(rows), list(rows.values()), place.epoch)
        try:
            await finish_in_thread(partial(write_snapshot, context.files, shell.log.home.directory, saved))
        except OSError as error:
            log.warning("snapshot not written", topic=shell.topic, partition=shell.index, error=str(error))
            return None
        self._snapshot_offset, self._snapshot_rows = end, len(rows)
        log.info("snapshot written", topic=shell.topic, partition=shell.index, offset=end, records=len(rows))
        return end

    def _read_snapshot(self) -> JournalSnapshot | None:
        """Blocking. One that does not go with the log as it is now is removed, or it would be believed later.

        Compaction that has come past it may have removed tombstones after it: what they removed would come back. One of
        another epoch than the log's was made of records that were cut off since. But if the log ends before it, it is
        the log that has lost something, and the snapshot may be all that is left of it.
        """
        shell = self._shell
        partition_log = shell.log
        files, directory = partition_log.context.files, partition_log.home.directory
        found = read_snapshot(files, directory)
        if found is None:
            if files.exists(f"{directory}/{SNAPSHOT_FILE}"):
                log.warning("snapshot is damaged, the whole log is read", topic=shell.topic, partition=shell.index)
            return None
        if partition_log.damage is None:
            check_reaches(shell, found.offset, SNAPSHOT_FILE)
        lowest = max(partition_log.log_start, partition_log.clean_end)
        if lowest <= found.offset and agrees(partition_log, SavedPlace(found.offset, found.epoch)):
            return found
        log.info(
            "snapshot not used",
            topic=shell.topic,
            partition=shell.index,
            offset=found.offset,
            epoch=found.epoch,
            lowest=lowest,
            log_end=partition_log.readable_end,
        )
        try:
            remove_snapshot(files, directory)
        except OSError as error:
            raise JournalLostError(f"{directory}: a snapshot of no use cannot be removed: {error}") from error
        return None


def _take(rows: dict[bytes, bytes], entries: Sequence[Entry], look: Look | None) -> None:
    """Blocking."""
    merge(rows, entries)
    if look is not None:
        look(entries)


def _entries_of(loaded: memoryview, batches: Batches) -> list[Entry]:
    """Blocking."""
    return [(key or b"", value) for _offset, key, value in rows_of(loaded, batches)]


def _offset_of(wanted: Entry, loaded: memoryview, batches: Batches) -> int | None:
    """Blocking: where the entry stands among these."""
    rows = readable_rows_of(loaded, batches)
    return next((offset for offset, key, value in rows if (key or b"", value) == wanted), None)
