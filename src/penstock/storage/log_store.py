"""All logs of a node in one data directory.

    <root>/lock                 held by the process that uses the directory
    <root>/clean_shutdown       only between a clean end and the next start
    <root>/checkpoint           how far each log is whole, durable and indexed
    <root>/logs/<topic id>/topic.json
    <root>/logs/<topic id>/<partition>/…                  see segment, log_files

The caller's duties: call everything on the loop but what says "blocking"; wait for the last turn before `close`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.metrics import CollectorRegistry
from penstock.storage.checkpoint_file import (
    LogCheckpoint,
    LogKey,
    pack_entry,
    read_checkpoint,
    unpack_entries,
    write_checkpoint,
)
from penstock.storage.file_protocols import Files, Lock
from penstock.storage.group_commit import GroupCommit
from penstock.storage.log_home import LogHome
from penstock.storage.log_recovery import LogRecovery, RecoveredLog
from penstock.storage.partition_log import PartitionLog
from penstock.storage.small_file import read_small_file, write_small_file
from penstock.storage.storage_config import LogConfig, StorageConfig
from penstock.storage.storage_errors import DirectoryLockedError
from penstock.storage.store_context import StoreContext

_log = get_logger("storage")

LOCK_FILE: Final = "lock"
CLEAN_FILE: Final = "clean_shutdown"
CLEAN_MAGIC: Final = b"psclean1"
LOGS_DIRECTORY: Final = "logs"
REMOVED_SUFFIX: Final = ".removed"


class RecoveryStatistics(msgspec.Struct):
    """Of all logs opened since the start."""

    log_count: int = 0
    scanned_bytes: int = 0
    torn_bytes: int = 0
    damaged_count: int = 0
    was_clean: bool = False


class LogStore:
    def __init__(self, context: StoreContext, root: str, lock: Lock) -> None:
        """By `open`."""
        self.context = context
        self.root = root
        self.logs_directory = f"{root}/{LOGS_DIRECTORY}"
        self.group_commit = GroupCommit(context.files, root, context.metrics)
        self.statistics = RecoveryStatistics()
        self._lock = lock
        self._logs: dict[LogKey, PartitionLog] = {}
        self._checkpoints: dict[LogKey, LogCheckpoint] = {}
        self._packed: dict[LogKey, bytes] = {}
        # Partition directories that were there at the start: a log that is not among them is empty, without a look.
        self._present: dict[str, set[str]] = {}

    @classmethod
    def open(
        cls,
        files: Files,
        root: str,
        config: StorageConfig,
        clock: Clock,
        registry: CollectorRegistry | None = None,
    ) -> LogStore:
        """Blocking. Takes the directory's lock, or raises DirectoryLockedError."""
        files.make_directory(f"{root}/{LOGS_DIRECTORY}")
        lock = files.lock(f"{root}/{LOCK_FILE}")
        if lock is None:
            raise DirectoryLockedError(f"the data directory {root} is used by another process")
        store = cls(StoreContext(files, config, clock, registry), root, lock)
        store._start()
        return store

    def open_log(self, topic: str, topic_id: bytes, partition: int, config: LogConfig) -> PartitionLog:
        """Blocking if the log has anything on disk; otherwise nothing is touched until its first append."""
        key = (topic_id, partition)
        assert key not in self._logs, f"{topic}-{partition} is open"
        home = LogHome(self.logs_directory, topic, topic_id, partition)
        log = PartitionLog(self.context, home, config)
        if str(partition) in self._partitions_of(topic_id) or key in self._checkpoints:
            log.adopt(self._recover(home, is_clean=self.statistics.was_clean))
        self.statistics.log_count += 1
        self._logs[key] = log
        return log

    @property
    def logs(self) -> list[PartitionLog]:
        return list(self._logs.values())

    def recover_log(self, log: PartitionLog) -> RecoveredLog:
        """Blocking: reads an offline log again, from the disk and not from memory. Then `log.adopt(...)` on the loop."""
        assert log.failure is not None, "only a log that takes no writes can be read again"
        return self._recover(log.home, is_clean=False, drops_cache=True)

    def _recover(self, home: LogHome, *, is_clean: bool, drops_cache: bool = False) -> RecoveredLog:
        checkpoint = self._checkpoints.get((home.topic_id, home.partition))
        recovery = LogRecovery(self.context, home, checkpoint, is_clean=is_clean, drops_cache=drops_cache)
        recovered = recovery.run()
        metrics = self.context.metrics
        metrics.scanned_bytes.inc(recovered.scanned_bytes)
        metrics.torn_bytes.inc(recovered.torn_bytes)
        self.statistics.scanned_bytes += recovered.scanned_bytes
        self.statistics.torn_bytes += recovered.torn_bytes
        self.statistics.damaged_count += recovered.damage is not None
        return recovered

    def _start(self) -> None:
        files = self.context.files
        files.sync_directory(self.root)
        payload = read_checkpoint(files, self.root)
        marker = read_small_file(files, self.root, CLEAN_FILE, CLEAN_MAGIC)
        if payload is not None:
            self._checkpoints = unpack_entries(payload)
            self._packed = {key: pack_entry(entry) for key, entry in self._checkpoints.items()}
            self.statistics.was_clean = marker == _seal_of(payload)
        if files.exists(f"{self.root}/{CLEAN_FILE}"):
            # Durably gone before the first write, or a crash would look like a clean end.
            files.remove(f"{self.root}/{CLEAN_FILE}")
            files.sync_directory(self.root)
        for name in files.list_directory(self.logs_directory):
            if name.endswith(REMOVED_SUFFIX):
                files.remove_tree(f"{self.logs_directory}/{name}")

    def _partitions_of(self, topic_id: bytes) -> set[str]:
        name = topic_id.hex()
        if name not in self._present:
            self._present[name] = set(self.context.files.list_directory(f"{self.logs_directory}/{name}"))
        return self._present[name]


def _seal_of(checkpoint_payload: bytes) -> bytes:
    return crc32c(checkpoint_payload).to_bytes(4, "little")
