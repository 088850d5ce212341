"""All logs of a node in one data directory.

    <root>/lock                 held by the process that uses the directory
    <root>/clean_shutdown       only between a clean end and the next start
    <root>/checkpoint           how far each log is whole, durable and indexed
    <root>/logs/<topic id>/topic.json
    <root>/logs/<topic id>/<partition>/…                  see `segment`, `log/files`

The caller's duties: call everything on the loop but what says "blocking"; wait for the last turn before `close`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.metrics import CollectorRegistry
from penstock.base.threads import finish_in_thread
from penstock.storage.commit.checkpoint_work import CheckpointWork
from penstock.storage.commit.checkpoints import Checkpoints
from penstock.storage.commit.group_commit import GroupCommit
from penstock.storage.commit.log_anew import LogAnew
from penstock.storage.commit.log_cut import CutRefused, LogCut, refuse_cut
from penstock.storage.commit.sync_thread import SyncRunner, SyncThread
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.context import StoreContext
from penstock.storage.errors import LogFailedError
from penstock.storage.files.directory_lock import locked_error
from penstock.storage.files.protocols import Files, Lock
from penstock.storage.files.reserve import RESERVE_BYTES
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.log.checkpoint_file import LogCheckpoint, LogKey, read_checkpoint
from penstock.storage.log.home import LogHome
from penstock.storage.log.maintenance import always
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.recovered import RecoveredLog
from penstock.storage.log.recovery import LogRecovery
from penstock.storage.log.refusals import refusal_of
from penstock.storage.log.set_aside import Aside, AsideLog, list_set_aside, set_aside

_log = get_logger("storage")

LOCK_FILE: Final = "lock"
CLEAN_FILE: Final = "clean_shutdown"
CLEAN_MAGIC: Final = b"psclean1"
LOGS_DIRECTORY: Final = "logs"
REMOVED_SUFFIX: Final = ".removed"
# Retired files wait for their time as long as there is so many times the room without which writes stop.
ROOM_FACTOR: Final = 4
# Time enough for somebody to see that it was a mistake.
STRAY_KEPT_MS: Final = 24 * 3_600_000
TOPIC_ID: Final = re.compile("[0-9a-f]{32}")


class RecoveryStatistics(msgspec.Struct):
    """Of all logs opened since the start."""

    log_count: int = 0
    scanned_bytes: int = 0
    torn_bytes: int = 0
    damaged_count: int = 0
    was_clean: bool = False


class TopicRemoval:
    """The second half of removing a topic: its files go in a thread, or wait there under their other name."""

    def __init__(self, context: StoreContext, logs_directory: str, path: str, *, delay_ms: int) -> None:
        self._context = context
        self._logs_directory = logs_directory
        self._path = path
        self._delay_ms = delay_ms

    def run(self) -> None:
        """Blocking. When it returns no start finds the topic any more."""
        context = self._context
        context.files.sync_directory(self._logs_directory)
        if self._delay_ms and not context.is_full:
            context.retired.keep_tree(self._path, until_ms=context.clock.now_ms() + self._delay_ms)
        else:
            context.files.remove_tree(self._path)


class LogStore:
    def __init__(self, context: StoreContext, root: str, lock: Lock, syncs: SyncRunner) -> None:
        """By `open`."""
        self.context = context
        self.root = root
        self.logs_directory = f"{root}/{LOGS_DIRECTORY}"
        self._logs: dict[LogKey, PartitionLog] = {}
        self.group_commit = GroupCommit(
            context.files,
            root,
            context.metrics,
            context.clock,
            syncs,
            lambda: self.logs,
            threads=context.config.sync_threads,
        )
        self.statistics = RecoveryStatistics()
        self._lock = lock
        # Logs are opened by several threads at the start.
        self._opening = threading.Lock()
        self.checkpoints = Checkpoints(context, root)
        # A handle of its own: an error is reported once to each, and this one must not take it from group commit.
        self._whole_disk = context.files.whole_disk_sync(root) if context.files.is_durable else None
        # Partition directories that were there at the start: a log that is not among them is empty, without a look.
        self._present: dict[str, set[str]] = {}
        self._was_disk_synced = False
        # What was told last of the room on the disk.
        self._was_full = False
        self._was_read_only = False

    @classmethod
    def open(
        cls,
        files: Files,
        root: str,
        config: StorageConfig,
        clock: Clock,
        registry: CollectorRegistry | None = None,
        *,
        syncs: SyncRunner | None = None,
    ) -> LogStore:
        """Blocking. Takes the directory's lock, or raises DirectoryLockedError."""
        files.make_root(f"{root}/{LOGS_DIRECTORY}")
        lock = files.lock(f"{root}/{LOCK_FILE}")
        if lock is None:
            raise locked_error(files, root, f"{root}/{LOCK_FILE}")
        store = cls(StoreContext(files, root, config, clock, registry), root, lock, syncs or SyncThread())
        store._start()
        return store

    # --- logs ----------------------------------------------------------------------------------------------------

    def open_log(
        self, topic: str, topic_id: bytes, partition: int, config: LogConfig, *, is_replicated: bool = False
    ) -> PartitionLog:
        """Blocking if the log has anything on disk; otherwise nothing is touched until its first append. Of a replica
        only what was readable at its last checkpoint is: the rest may be cut off by who leads."""
        key = (topic_id, partition)
        home = LogHome(self.logs_directory, topic, topic_id, partition)
        log = PartitionLog(self.context, home, config)
        log.is_replicated = is_replicated
        if str(partition) in self._partitions_of(topic_id) or key in self.checkpoints.entries:
            try:
                readable_end = self._saved_readable_end(key) if is_replicated else None
                log.adopt(self._recover(home, is_clean=self.statistics.was_clean, readable_end=readable_end))
                # It is what the checkpoint says.
                log.saved_readable_end = log.readable_end
                if readable_end is not None and log.log_end < readable_end:
                    log.flaws.note_other(f"it ends at offset {log.log_end}; all below {readable_end} was committed")
            except OSError as error:
                # The others are served; this one is tried again by `recover_log`.
                log.fail(f"recovery: {error}")
        with self._opening:
            assert key not in self._logs, f"{topic}-{partition} is open"
            self._logs[key] = log
            self.statistics.log_count += 1
        return log

    def has_log(self, topic_id: bytes, partition: int) -> bool:
        """Whether there was anything of it on disk at the start, or is now. May look at the disk, once for a topic."""
        key = (topic_id, partition)
        return key in self._logs or key in self.checkpoints.entries or str(partition) in self._partitions_of(topic_id)

    @property
    def logs(self) -> list[PartitionLog]:
        # A copy, made in one step: threads open companions' logs while the loop goes through all of them.
        return list(self._logs.values())

    def remove_topic(self, topic_id: bytes) -> TopicRemoval:
        """Its logs take and serve nothing from now on; `run` of what is returned removes the files."""
        name = topic_id.hex()
        logs = [self._logs.pop(key) for key in [key for key in list(self._logs) if key[0] == topic_id]]
        for log in logs:
            log.close()
        self.checkpoints.forget_topic(topic_id)
        self._present.pop(name, None)
        path = f"{self.logs_directory}/{name}"
        if self.context.files.exists(path):
            self.context.files.rename(path, path + REMOVED_SUFFIX)
        delay_ms = max((log.config.file_delete_delay_ms for log in logs), default=0)
        return TopicRemoval(self.context, self.logs_directory, path + REMOVED_SUFFIX, delay_ms=delay_ms)

    def recover_log(self, log: PartitionLog) -> RecoveredLog:
        """Blocking: reads an offline log again, from the disk and not from memory. Then `log.adopt` on the loop."""
        assert log.failure is not None, "only a log that takes no writes can be read again"
        with log.swap_lock:
            readable_end = log.readable_end if log.is_replicated else None
            return self._recover(log.home, is_clean=False, durable_end=log.durable_end, readable_end=readable_end)

    # --- the end of a log ----------------------------------------------------------------------------------------

    async def cut_log(
        self, log: PartitionLog, offset: int, *, is_unclean: bool = False, is_due: Callable[[], bool] = always
    ) -> CutRefused | None:
        """Everything from `offset` on goes, down to the end of a batch; leader epochs that begin there go also where no
        byte does. Waits for whoever works on the log. What readers have been given stays, unless the election was
        `is_unclean`. `is_due`: asked when nobody else works on the log any more; what was true before may not be so.
        Raises StorageError: the log is as it was, or offline."""
        async with log.maintenance.alone():
            if not is_due():
                return None
            refused = refuse_cut(log, offset, is_unclean=is_unclean)
            if refused is not None:
                return refused
            if offset >= log.log_end:
                log.epochs.truncate_end(log.log_end)
                return None
            if not log.is_healthy:
                raise refusal_of(log)
            cut = LogCut(self.context, self.checkpoints, log, offset)
            cut.begin()
            try:
                await cut.carry_out(self.group_commit)
            except OSError as error:
                raise LogFailedError(f"{log.home.directory}: truncation to {offset}: {error}") from error
            finally:
                cut.end()
        return None

    async def begin_log_at(self, log: PartitionLog, offset: int, *, is_due: Callable[[], bool] = always) -> None:
        """The log is empty and begins there, also after a restart; what it held is gone. For a replica that lies wholly
        before its leader's start, or has to be fetched once more. Raises StorageError: then the log is offline."""
        await self._begin_anew(log, offset, Aside.DROPPED, is_due)

    async def put_aside(self, log: PartitionLog, offset: int, *, is_due: Callable[[], bool] = always) -> str | None:
        """As `begin_log_at`, of a replica that is damaged or not its leader's: what it held is kept, the last of them,
        and where is returned; None: it held nothing."""
        return await self._begin_anew(log, offset, Aside.DAMAGED, is_due)

    async def _begin_anew(
        self, log: PartitionLog, offset: int, kind: Aside, is_due: Callable[[], bool] = always
    ) -> str | None:
        async with log.maintenance.alone():
            if not is_due():
                return None
            anew = LogAnew(self.context, self.checkpoints, log, offset, kind)
            anew.begin()
            try:
                # No sync must be under way: whether this one fails is of no interest to anybody.
                await self.group_commit.join(log).wait()
                async with self.checkpoints.turn:
                    await finish_in_thread(anew.save)
                await finish_in_thread(anew.run)
            except OSError as error:
                raise LogFailedError(f"{log.home.directory}: not begun anew at {offset}: {error}") from error
            finally:
                anew.end()
            return anew.path

    def truncate_log(self, log: PartitionLog, offset: int) -> None:
        """Blocking, without a loop: as `cut_log`, whatever was readable."""
        if not log.segments:
            # It has no files yet.
            log.epochs.truncate_end(offset)
            return
        cut = LogCut(self.context, self.checkpoints, log, offset)
        cut.begin()
        try:
            # In the order of the log: the cut must not make a later segment durable before an earlier one.
            sync = log.begin_sync()
            sync.run(self.context.files)
            log.end_sync(sync)
            cut.save()
            cut.run()
        except OSError as error:
            log.fail(f"truncation to {offset}: {error}")
            raise LogFailedError(log.failure) from error
        finally:
            cut.end()

    # --- logs out of use -----------------------------------------------------------------------------------------

    async def set_strays(self, keys: Iterable[LogKey]) -> None:
        """Logs that nobody has assigned to this node: they take and serve nothing, and are kept for a while."""
        homes = []
        for key in keys:
            log = self._logs.pop(key, None)
            if log is not None:
                log.close()
            homes.append(log.home if log is not None else LogHome(self.logs_directory, "", *key))
            self._partitions_of(key[0]).discard(str(key[1]))
        async with self.checkpoints.turn:
            await finish_in_thread(partial(self._set_strays, homes))

    def _set_strays(self, homes: Sequence[LogHome]) -> None:
        # First: a log that the checkpoint knows and that is not there has lost its end.
        self.checkpoints.forget([(home.topic_id, home.partition) for home in homes])
        for home in homes:
            set_aside(self.context.files, home, Aside.STRAY, self.context.clock.now_ms())

    def logs_set_aside(self) -> list[AsideLog]:
        """Blocking."""
        files = self.context.files
        topic_ids = [name for name in files.list_directory(self.logs_directory) if TOPIC_ID.fullmatch(name)]
        return list_set_aside(files, self.logs_directory, topic_ids)

    def remove_strays(self) -> list[AsideLog]:
        """Blocking: those that have been strays for a day, and what a crash has left; which they were."""
        before_ms = self.context.clock.now_ms() - STRAY_KEPT_MS
        gone = [
            log
            for log in self.logs_set_aside()
            if log.kind is Aside.DROPPED or (log.kind is Aside.STRAY and log.since_ms <= before_ms)
        ]
        for log in gone:
            self.context.files.remove_tree(log.path)
        return gone

    # --- checkpoints ---------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """On the loop; does its file work in a thread. Called every few seconds."""
        async with self.checkpoints.turn:
            work = self.begin_checkpoint()
            if work is None:
                return
            try:
                turns = {self.group_commit.join(capture.log) for capture in work.captures}
                for turn in turns:
                    work.leave_out(await turn.wait())
                await finish_in_thread(partial(self.run_checkpoint, work))
            finally:
                self.end_checkpoint(work)

    def checkpoint_now(self, *, every_log: bool = False) -> None:
        """Blocking, without a loop."""
        work = self.begin_checkpoint(every_log=every_log)
        if work is None:
            return
        try:
            work.leave_out(self.group_commit.sync_now([capture.log for capture in work.captures]))
            self.run_checkpoint(work)
        finally:
            self.end_checkpoint(work)

    def begin_checkpoint(self, *, every_log: bool = False) -> CheckpointWork | None:
        """On the loop: what is due; None if nothing is, or one is under way."""
        return self.checkpoints.begin(self.logs, every_log=every_log)

    def run_checkpoint(self, work: CheckpointWork) -> None:
        """Blocking: a failure is told, and the checkpoint before it still holds."""
        self.checkpoints.run(work, self._whole_disk)

    def end_checkpoint(self, work: CheckpointWork) -> None:
        """On the loop."""
        self.checkpoints.end(work, self._logs.__contains__)

    # --- room ----------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return self.context.is_full

    def free_bytes(self) -> int:
        return self.context.files.free_bytes(self.root)

    def free_space_check(self) -> None:
        """Called every second or so, in a thread: it looks at the disk. Writes stop and resume by it."""
        context = self.context
        free_bytes = self.free_bytes()
        # Before writes have to stop: what is kept for a while must not stand in their way.
        is_low = free_bytes < ROOM_FACTOR * context.config.free_bytes_min
        if context.retired.sweep(context.clock.now_ms(), is_room_wanted=is_low):
            free_bytes = self.free_bytes()
        is_read_only = context.files.is_read_only(self.root)
        is_full = is_read_only or free_bytes < context.config.free_bytes_min
        # Not the last of it: what was given back at a start is wanted then.
        if not is_full and free_bytes > 2 * RESERVE_BYTES and not context.reserve.fill():
            is_full = is_read_only = True
        self._tell_room(is_full=is_full, is_read_only=is_read_only, free_bytes=free_bytes)
        context.is_full, context.is_read_only = is_full, is_read_only

    def _tell_room(self, *, is_full: bool, is_read_only: bool, free_bytes: int) -> None:
        context = self.context
        context.metrics.disk_full.set(is_full)
        if is_read_only and not self._was_read_only:
            _log.error("file system is read-only, writes refused", directory=self.root)
        elif is_full and not is_read_only and not self._was_full:
            _log.error("disk full, writes refused", free_bytes=free_bytes)
        elif not is_full and self._was_full:
            _log.info("disk takes writes again", free_bytes=free_bytes)
        self._was_full, self._was_read_only = is_full, is_read_only

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Blocking. Clean: everything is synced and saved, so that the next start reads nothing."""
        if clean:
            self.group_commit.sync_now([log for log in self.logs if log.is_healthy])
            self.checkpoint_now(every_log=True)
            if all(log.unsaved_batches == 0 or not log.is_healthy for log in self.logs):
                self._mark_clean()
        for log in self.logs:
            log.close()
        self.group_commit.close()
        self.context.writeback.close()
        if self._whole_disk is not None:
            self._whole_disk.close()
        self._lock.release()

    def _mark_clean(self) -> None:
        # What is damaged or offline is read again at the next start, clean or not. So is what nobody has opened since
        # an unclean start, perhaps because the start was refused: it may hold more than its checkpoint says.
        def is_clean(key: LogKey, entry: LogCheckpoint) -> bool:
            log = self._logs.get(key)
            return log.is_healthy if log is not None else entry.is_clean and self.statistics.was_clean

        try:
            seal = _seal_of(self.checkpoints.write_last(is_clean))
            write_small_file(self.context.files, self.root, CLEAN_FILE, CLEAN_MAGIC, seal)
        except OSError as error:
            _log.warning("clean shutdown not marked", error=str(error))

    # --- inside --------------------------------------------------------------------------------------------------

    def _saved_readable_end(self, key: LogKey) -> int | None:
        """None: the log was read to its end when its checkpoint was made, there being no replicas then."""
        checkpoint = self.checkpoints.entries.get(key)
        if checkpoint is None:
            return 0
        return checkpoint.readable_end if checkpoint.readable_end >= 0 else None

    def _recover(
        self, home: LogHome, *, is_clean: bool, durable_end: int | None = None, readable_end: int | None = None
    ) -> RecoveredLog:
        checkpoint = self.checkpoints.entries.get((home.topic_id, home.partition))
        recovery = LogRecovery(
            self.context,
            home,
            checkpoint,
            is_clean=is_clean,
            # After a failed sync that was long ago.
            is_synced=self._was_disk_synced and durable_end is None,
            durable_end=durable_end,
            readable_end=readable_end,
        )
        recovered = recovery.run()
        metrics = self.context.metrics
        metrics.scanned_bytes.inc(recovered.scanned_bytes)
        metrics.torn_bytes.inc(recovered.torn_bytes)
        with self._opening:
            self.statistics.scanned_bytes += recovered.scanned_bytes
            self.statistics.torn_bytes += recovered.torn_bytes
            self.statistics.damaged_count += bool(recovered.damages) or recovered.lost_end is not None
        return recovered

    def _start(self) -> None:
        files = self.context.files
        # Without a free block no checkpoint, no metadata and no repair can be written: the start itself needs the room
        # that was kept for this.
        if self.free_bytes() < RESERVE_BYTES and self.context.reserve.release():
            _log.warning("disk full at the start, the reserve is used", bytes=RESERVE_BYTES)
        files.sync_directory(self.root)
        payload = read_checkpoint(files, self.root)
        marker = read_small_file(files, self.root, CLEAN_FILE, CLEAN_MAGIC)
        if payload is not None:
            self.checkpoints.load(payload)
            self.statistics.was_clean = marker == _seal_of(payload)
        if not self.statistics.was_clean:
            self._sync_leftovers()
        if files.exists(f"{self.root}/{CLEAN_FILE}"):
            # Durably gone before the first write, or a crash would look like a clean end.
            files.remove(f"{self.root}/{CLEAN_FILE}")
            files.sync_directory(self.root)
        for name in files.list_directory(self.logs_directory):
            if name.endswith(REMOVED_SUFFIX):
                files.remove_tree(f"{self.logs_directory}/{name}")
        self.free_space_check()

    def _sync_leftovers(self) -> None:
        """What a killed process left in the system's memory reaches the disk before it is believed. One call: a sync of
        each file and directory of 10,000 logs took 18 s, this takes as long as the writing does."""
        if self._whole_disk is None:
            return
        try:
            self._whole_disk.sync()
            self._was_disk_synced = True
        except OSError as error:
            _log.warning("the disk could not be synced as a whole", error=str(error))

    def _partitions_of(self, topic_id: bytes) -> set[str]:
        name = topic_id.hex()
        if name not in self._present:
            self._present[name] = set(self.context.files.list_directory(f"{self.logs_directory}/{name}"))
        return self._present[name]


def _seal_of(checkpoint_payload: bytes) -> bytes:
    return crc32c(checkpoint_payload).to_bytes(4, "little")
