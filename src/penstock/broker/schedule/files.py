"""The bucket files of a schedule at work: near ones are read, new entries written, checkpoints made. One thing at a
time, in threads; the machine is asked and told on the loop.

    checkpoint: state and last entries ─► files synced ─► rows before it durable ─► checkpoint ─► others removed

What fails here leaves the machine without what it handed out: `on_failure`, and it is built anew. From the last
checkpoint; but if a file turned out to be damaged there is none any more, and the whole log is read, which knows best.
A read that fails for another reason is tried again.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.base.threads import finish_in_thread
from penstock.broker.machine.portions import check_reaches
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.limits import ScheduleLimits
from penstock.domain.schedule.buckets import ENTRY_BYTES
from penstock.domain.schedule.commands import BucketName, BucketRead
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import Stored, read_record, write_record
from penstock.storage.files.buckets import BLOCK_BYTES, CHECKPOINT_FILE, BucketDamagedError, BucketFiles
from penstock.storage.log.saved_place import SavedPlace, agrees

log = get_logger("schedules")


# Of a near file, handed to the machine at once: some three milliseconds.
LOAD_BYTES: Final = BLOCK_BYTES
# What a start would have to read: a second of it, or two.
CHECKPOINT_ROWS: Final = 200_000
CHECKPOINT_BYTES: Final = 512 * 1024 * 1024
CHECKPOINT_MS: Final = 3_600_000


class Rows(Protocol):
    """The log of a schedule, as far as a checkpoint has to know it: the rows that the machine is made of."""

    is_lost: bool
    # Behind the last of them.
    next_position: int
    # Since this began to be counted.
    written_bytes: int

    async def until_durable(self) -> bool: ...

    def epoch_before(self, position: int) -> int:
        """In which the row before that place was written."""
        ...


class ScheduleFiles:
    def __init__(
        self,
        files: BucketFiles,
        limits: ScheduleLimits,
        *,
        clock: Clock,
        on_failure: Callable[[str], None],
        tasks: TaskSupervisor,
    ) -> None:
        self._files = files
        self._limits = limits
        self._clock = clock
        self._on_failure = on_failure
        self._tasks = tasks
        self._lock = asyncio.Lock()
        self._reads: deque[BucketRead] = deque()
        self._reader: asyncio.Task[None] | None = None
        self._saved_position = 0
        # Of what this journal has written.
        self._saved_bytes = 0
        self._saved_ms = 0
        self.is_closed = False

    async def open(self, companion: PartitionShell) -> Stored | None:
        """What the last checkpoint says, if it goes with the log; else there are no files any more. Raises OSError, and
        JournalDamagedError if the log ends before the checkpoint."""
        stored = await finish_in_thread(partial(_open_checkpoint, self._files, companion))
        self._saved_position = 0 if stored is None else stored.next_position
        self._saved_ms = self._clock.monotonic_ms()
        return stored

    # Reading

    def read_soon(self, machine: PartitionSchedule, reads: Sequence[BucketRead], then: Callable[[], None]) -> None:
        """Hands the files to the machine, part by part, in the background; and says when one is there."""
        self._reads += reads
        if self._reads and (self._reader is None or self._reader.done()):
            self._reader = self._tasks.start("bucket files", self._read_all(machine, then))

    @property
    def is_reading(self) -> bool:
        return self._reader is not None and not self._reader.done()

    async def _read_all(self, machine: PartitionSchedule, then: Callable[[], None]) -> None:
        try:
            while self._reads and not self.is_closed:
                await self._read_one(machine, self._reads.popleft())
                then()
        except OSError as error:
            self._fail("bucket file not read", error)

    async def _read_one(self, machine: PartitionSchedule, read: BucketRead) -> None:
        size = read.count * ENTRY_BYTES
        for position in range(0, size, LOAD_BYTES):
            wanted = min(LOAD_BYTES, size - position)
            entries = await self._read_patiently(read.name, position, wanted)
            if self.is_closed:
                return
            if len(entries) < wanted:
                raise OSError(f"bucket {read.name.number} ends at byte {position + len(entries)} of {size}")
            machine.load(read.name, entries, is_last=position + wanted >= size, now_ms=self._clock.now_ms())
            # What came from a file of a higher level goes into others: little by little, for the loop has to sort it.
            await self.spill(machine)
            await asyncio.sleep(0)

    async def _read_patiently(self, name: BucketName, position: int, size: int) -> bytes:
        for _attempt in range(self._limits.read_attempts_max - 1):
            try:
                return await self.read(name, position=position, size=size)
            except BucketDamagedError:
                raise
            except OSError as error:
                if self.is_closed:
                    return b""
                log.warning("bucket file not read yet", bucket=name.number, error=str(error))
                await asyncio.sleep(self._limits.read_again_ms / 1000)
        return await self.read(name, position=position, size=size)

    async def read(self, name: BucketName, *, position: int, size: int) -> bytes:
        """FileNotFoundError: its time came. Other OSErrors: not now, and if it is damaged, not before all was built
        anew."""
        async with self._lock:
            try:
                return await finish_in_thread(partial(self._files.read, name, position=position, size=size))
            except BucketDamagedError as error:
                if not self.is_closed:
                    await self._forget_all(error)
                raise

    async def _forget_all(self, error: BucketDamagedError) -> None:
        """Else the next start would believe the same file."""
        try:
            await finish_in_thread(self._files.clear)
        except OSError as another:
            log.error("damaged bucket file not removed", error=str(another))
        self._fail("bucket file is damaged, the schedule is read from its whole log", error)

    # Writing

    async def spill(self, machine: PartitionSchedule, *, bytes_min: int | None = None) -> None:
        """Writes new entries if they are many."""
        if machine.spill_bytes < (self._limits.spill_bytes if bytes_min is None else bytes_min):
            return
        try:
            async with self._lock:
                await self._spill(machine, bytes_min=0)
        except OSError as error:
            self._fail("bucket files not written", error)

    async def _spill(self, machine: PartitionSchedule, *, bytes_min: int) -> None:
        """What is there now, but for the last of it. In portions: the loop has others to serve."""
        left, at_once = machine.spill_bytes, self._limits.spill_bytes_at_once
        while left > bytes_min and not self.is_closed:
            writes = machine.take_spill(at_once)
            left -= at_once
            await finish_in_thread(partial(self._files.append, writes))

    def is_checkpoint_due(self, journal: Rows) -> bool:
        row_count = journal.next_position - self._saved_position
        is_old = self._clock.monotonic_ms() - self._saved_ms >= CHECKPOINT_MS
        is_much = journal.written_bytes - self._saved_bytes >= CHECKPOINT_BYTES
        return row_count >= CHECKPOINT_ROWS or is_much or (row_count > 0 and is_old)

    async def checkpoint(self, machine: PartitionSchedule, journal: Rows) -> None:
        if journal.is_lost or journal.next_position == self._saved_position:
            return
        try:
            async with self._lock:
                if not self.is_closed:
                    await self._save(machine, journal)
        except OSError as error:
            self._fail("checkpoint not written", error)

    async def _save(self, machine: PartitionSchedule, journal: Rows) -> None:
        await self._spill(machine, bytes_min=self._limits.spill_bytes_at_once)
        if self.is_closed:
            return
        checkpoint = machine.checkpoint(journal.next_position)
        stored, written_bytes = checkpoint.stored, journal.written_bytes
        await finish_in_thread(partial(self._files.append, checkpoint.writes))
        # It tells of rows that a power cut could still take.
        if not await journal.until_durable():
            return
        # Not before: now all of it is in the log.
        stored = msgspec.structs.replace(stored, epoch=journal.epoch_before(stored.next_position))
        await finish_in_thread(partial(self._save_now, stored))
        self._saved_position, self._saved_bytes = stored.next_position, written_bytes
        self._saved_ms = self._clock.monotonic_ms()
        log.debug("schedule saved", position=stored.next_position, pending=machine.pending_count)

    def _save_now(self, stored: Stored) -> None:
        self._files.save_checkpoint(write_record(stored))
        self._files.remove_others(stored.buckets, below=stored.next_bucket)

    async def close(self) -> None:
        """Nothing is read or written from now on."""
        self.is_closed = True
        async with self._lock:
            pass

    def _fail(self, what: str, error: OSError) -> None:
        if not self.is_closed:
            log.error(what, error=str(error))
            self._on_failure(f"{what}: {error}")


def _open_checkpoint(files: BucketFiles, companion: PartitionShell) -> Stored | None:
    """Blocking."""
    partition_log = companion.log
    payload = _read_checkpoint(files)
    stored = None if payload is None else _decoded(payload)
    if stored is not None:
        check_reaches(companion, stored.next_position, CHECKPOINT_FILE)
    elif partition_log.context.files.exists(f"{partition_log.home.directory}/{CHECKPOINT_FILE}"):
        log.warning("checkpoint is damaged, the schedule is read from its whole log", topic=companion.topic)
    # Where compaction has come past it, tombstones behind it may be gone: what they ended would come back.
    lowest = max(partition_log.log_start, partition_log.clean_end)
    if (
        stored is not None
        and lowest <= stored.next_position <= partition_log.log_end
        and agrees(partition_log, SavedPlace(stored.next_position, stored.epoch))
        and files.adopt(stored.buckets)
    ):
        return stored
    if stored is not None:
        log.warning(
            "schedule is read from its whole log",
            position=stored.next_position,
            epoch=stored.epoch,
            lowest=lowest,
        )
    files.clear()
    return None


def _read_checkpoint(files: BucketFiles) -> bytes | None:
    try:
        return files.read_checkpoint()
    except OSError as error:
        # A bad sector stays one, and what was there is in the log as well. Other troubles pass.
        if error.errno != errno.EIO:
            raise
        log.error("checkpoint not read", error=str(error))
        return None


def _decoded(payload: bytes) -> Stored | None:
    try:
        record = read_record(payload)
    except msgspec.DecodeError:
        return None
    return record if isinstance(record, Stored) else None
