"""All logs of a node in one data directory.

    <root>/lock                 held by the process that uses the directory
    <root>/clean_shutdown       only between a clean end and the next start
    <root>/checkpoint           how far each log is whole, durable and indexed
    <root>/logs/<topic id>/topic.json
    <root>/logs/<topic id>/<partition>/…                  see `segment`, `log/files`

The caller's duties: call everything on the loop but what says "blocking"; wait for the last turn before `close`.
"""

from __future__ import annotations

import asyncio
import errno
import re
import threading
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.metrics import CollectorRegistry
from penstock.storage.commit.checkpoint_work import (
    LOGS_MAX,
    CheckpointWork,
    SavedState,
    capture_log,
    key_of,
    logs_due,
    settle_capture,
    shortened,
)
from penstock.storage.commit.group_commit import GroupCommit
from penstock.storage.commit.sync_thread import SyncRunner, SyncThread
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.context import StoreContext
from penstock.storage.errors import LogFailedError
from penstock.storage.files.directory_lock import locked_error
from penstock.storage.files.protocols import Files, Lock
from penstock.storage.files.reserve import RESERVE_BYTES
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.log.checkpoint_file import (
    LogCheckpoint,
    LogKey,
    pack_entry,
    read_checkpoint,
    unpack_entries,
    write_checkpoint,
)
from penstock.storage.log.damage import write_places
from penstock.storage.log.home import LogHome
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.recovery import LogRecovery, RecoveredLog
from penstock.storage.log.swap import corrected, forget_swaps
from penstock.storage.log.truncation import cut_segments, save_forgotten_aborts

_log = get_logger("storage")

LOCK_FILE: Final = "lock"
CLEAN_FILE: Final = "clean_shutdown"
CLEAN_MAGIC: Final = b"psclean1"
LOGS_DIRECTORY: Final = "logs"
REMOVED_SUFFIX: Final = ".removed"
TOPIC_ID: Final = re.compile("[0-9a-f]{32}")


class RecoveryStatistics(msgspec.Struct):
    """Of all logs opened since the start."""

    log_count: int = 0
    scanned_bytes: int = 0
    torn_bytes: int = 0
    damaged_count: int = 0
    was_clean: bool = False


class TopicRemoval:
    """The second half of removing a topic: its files go in a thread."""

    def __init__(self, files: Files, logs_directory: str, path: str) -> None:
        self._files = files
        self._logs_directory = logs_directory
        self._path = path

    def run(self) -> None:
        """Blocking."""
        self._files.sync_directory(self._logs_directory)
        self._files.remove_tree(self._path)


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
        self._checkpoints: dict[LogKey, LogCheckpoint] = {}
        self._packed: dict[LogKey, bytes] = {}
        self._saved: dict[LogKey, SavedState] = {}
        # A handle of its own: an error is reported once to each, and this one must not take it from group commit.
        self._whole_disk = context.files.whole_disk_sync(root) if context.files.is_durable else None
        # Partition directories that were there at the start: a log that is not among them is empty, without a look.
        self._present: dict[str, set[str]] = {}
        self._is_checkpoint_running = False
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

    def open_log(self, topic: str, topic_id: bytes, partition: int, config: LogConfig) -> PartitionLog:
        """Blocking if the log has anything on disk; otherwise nothing is touched until its first append."""
        key = (topic_id, partition)
        home = LogHome(self.logs_directory, topic, topic_id, partition)
        log = PartitionLog(self.context, home, config)
        if str(partition) in self._partitions_of(topic_id) or key in self._checkpoints:
            try:
                log.adopt(self._recover(home, is_clean=self.statistics.was_clean))
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
        return key in self._logs or key in self._checkpoints or str(partition) in self._partitions_of(topic_id)

    @property
    def logs(self) -> list[PartitionLog]:
        # A copy, made in one step: threads open companions' logs while the loop goes through all of them.
        return list(self._logs.values())

    def remove_topic(self, topic_id: bytes) -> TopicRemoval:
        """Its logs take and serve nothing from now on; `run` of what is returned removes the files."""
        name = topic_id.hex()
        for key in [key for key in list(self._logs) if key[0] == topic_id]:
            self._logs.pop(key).close()
        for key in [key for key in self._packed if key[0] == topic_id]:
            self._packed.pop(key)
            self._checkpoints.pop(key, None)
            self._saved.pop(key, None)
        self._present.pop(name, None)
        path = f"{self.logs_directory}/{name}"
        if self.context.files.exists(path):
            self.context.files.rename(path, path + REMOVED_SUFFIX)
        return TopicRemoval(self.context.files, self.logs_directory, path + REMOVED_SUFFIX)

    def recover_log(self, log: PartitionLog) -> RecoveredLog:
        """Blocking: reads an offline log again, from the disk and not from memory. Then `log.adopt` on the loop."""
        assert log.failure is not None, "only a log that takes no writes can be read again"
        with log.swap_lock:
            return self._recover(log.home, is_clean=False, durable_end=log.durable_end)

    def truncate_log(self, log: PartitionLog, offset: int) -> None:
        """Blocking, and nothing else may touch the log meanwhile: cuts off its end, at a batch's beginning."""
        assert log.log_start <= offset <= log.log_end
        try:
            self._truncate(log, offset)
        except OSError as error:
            log.fail(f"truncation to {offset}: {error}")
            raise LogFailedError(log.failure) from error

    def _truncate(self, log: PartitionLog, offset: int) -> None:
        # In the order of the log: the cut must not make a later segment durable before an earlier one.
        sync = log.begin_sync()
        sync.run(self.context.files)
        log.end_sync(sync)
        readable_end = min(log.readable_end, offset)
        entry = self._checkpoints.get(key_of(log))
        if entry is not None and entry.end_offset > log.saved_end:
            entry = None  # recovery did not believe it
        if entry is not None:
            entry = msgspec.structs.replace(entry, segments=tuple(corrected(entry.segments, log.swaps)))
            entry = shortened(entry, offset, log.epochs)
        # Saved first: recovery must not believe bytes past the cut, whatever is written there later.
        self._replace_entry(log.home, entry)
        save_forgotten_aborts(self.context.files, log)
        forget_swaps(self.context.files, log.home.directory, offset)
        if log.damages:
            # Of what goes nothing must be remembered: other bytes will stand there.
            kept = tuple(damage for damage in log.damages.places if damage.offset_end <= offset)
            write_places(self.context.files, log.home.directory, kept)
        cut_segments(self.context.files, log, offset)
        recovery = LogRecovery(self.context, log.home, entry, is_clean=False, readable_end=readable_end)
        log.adopt(recovery.run(), readable_end=readable_end)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """On the loop; does its file work in a thread. Called every few seconds."""
        work = self.begin_checkpoint()
        if work is None:
            return
        try:
            turns = {self.group_commit.join(capture.log) for capture in work.captures}
            for turn in turns:
                work.leave_out(await turn.wait())
            await asyncio.to_thread(self.run_checkpoint, work)
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
        if self._is_checkpoint_running:
            return None
        logs = logs_due(self.context.config, self.logs, every_log=every_log)
        if not logs:
            return None
        if not every_log:
            logs = sorted(logs, key=lambda log: log.unsaved_batches, reverse=True)[:LOGS_MAX]
        self._is_checkpoint_running = True
        captures = [capture_log(log, self._saved.get(key_of(log), SavedState())) for log in logs]
        return CheckpointWork(self.context.files, self.root, captures, self._packed)

    def run_checkpoint(self, work: CheckpointWork) -> None:
        """Blocking: a failure is told, and the checkpoint before it still holds."""
        try:
            try:
                work.run(self._whole_disk)
            except OSError as error:
                # On a full disk retention is what makes room, and it waits for this.
                if error.errno != errno.ENOSPC or not self.context.reserve.release():
                    raise
                work.run(self._whole_disk)
        except OSError as error:
            _log.warning("checkpoint failed", error=str(error))

    def end_checkpoint(self, work: CheckpointWork) -> None:
        """On the loop."""
        self._is_checkpoint_running = False
        for capture in work.captures if work.is_written else ():
            key = capture.key
            if key in self._logs and settle_capture(capture):
                self._packed[key] = pack_entry(capture.entry)
                self._checkpoints[key] = capture.entry
                self._saved[key] = capture.saved

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
        for key, entry in self._checkpoints.items():
            log = self._logs.get(key)
            is_clean = log.is_healthy if log is not None else entry.is_clean and self.statistics.was_clean
            if entry.is_clean != is_clean:
                self._packed[key] = pack_entry(msgspec.structs.replace(entry, is_clean=is_clean))
        try:
            write_checkpoint(self.context.files, self.root, self._packed.values())
            seal = _seal_of(b"".join(self._packed.values()))
            write_small_file(self.context.files, self.root, CLEAN_FILE, CLEAN_MAGIC, seal)
        except OSError as error:
            _log.warning("clean shutdown not marked", error=str(error))

    # --- inside --------------------------------------------------------------------------------------------------

    def _recover(self, home: LogHome, *, is_clean: bool, durable_end: int | None = None) -> RecoveredLog:
        checkpoint = self._checkpoints.get((home.topic_id, home.partition))
        recovery = LogRecovery(
            self.context,
            home,
            checkpoint,
            is_clean=is_clean,
            # After a failed sync that was long ago.
            is_synced=self._was_disk_synced and durable_end is None,
            durable_end=durable_end,
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

    def _replace_entry(self, home: LogHome, entry: LogCheckpoint | None) -> None:
        assert not self._is_checkpoint_running
        key = (home.topic_id, home.partition)
        self._saved.pop(key, None)
        self._packed.pop(key, None)
        self._checkpoints.pop(key, None)
        if entry is not None:
            self._packed[key] = pack_entry(entry)
            self._checkpoints[key] = entry
        write_checkpoint(self.context.files, self.root, self._packed.values())

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
            self._checkpoints = unpack_entries(payload)
            self._packed = {key: pack_entry(entry) for key, entry in self._checkpoints.items()}
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
