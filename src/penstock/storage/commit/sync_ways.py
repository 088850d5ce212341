"""How the files of one turn are synced: one by one, the whole file system at once, or side by side on threads.

    up to 4 steps      fdatasync one after another, in the calling thread
    more               one syncfs
    more, and syncfs was slow the last time      fdatasync on up to `threads` threads, for a while

Measured with `make bench-sync` (docs/decisions/0004): 64 files take 1.1 ms by syncfs and 4.7 ms on 16 threads, which
also fight the event loop for the interpreter. But syncfs waits for everything that anybody has written to the disk:
beside a neighbour that copies a large file it takes 600 ms, and threads take 4.5 ms.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.storage.files.protocols import Files, WholeDiskSync
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.sync import LogSync

STEPS_ONE_BY_ONE_MAX: Final = 4
# A syncfs that took longer had somebody else's bytes to write.
WHOLE_DISK_SECONDS_MAX: Final = 0.05
# How long threads are used then; twice as long each time that syncfs is still slow.
AVOIDED_SECONDS_MIN: Final = 10.0
AVOIDED_SECONDS_MAX: Final = 300.0


class SyncFailures(msgspec.Struct, frozen=True):
    by_log: dict[PartitionLog, str]
    # A sync of the whole disk cannot say whose bytes it lost.
    of_the_disk: str | None


class SyncWays:
    """Used by one thread at a time."""

    def __init__(self, files: Files, root: str, clock: Clock, *, threads: int) -> None:
        self._files = files
        self._clock = clock
        self._whole_disk: WholeDiskSync | None = files.whole_disk_sync(root) if files.is_durable else None
        self._thread_count = threads
        self._pool: ThreadPoolExecutor | None = None
        self._avoided_until = 0.0
        self._avoided_seconds = AVOIDED_SECONDS_MIN

    def run(self, syncs: list[LogSync]) -> SyncFailures:
        """Blocking: everything that `syncs` hold is durable when it returns, but for the failures."""
        step_count = sum(sync.step_count for sync in syncs)
        if step_count <= STEPS_ONE_BY_ONE_MAX:
            return SyncFailures(self._run_some(syncs), None)
        if self._whole_disk is not None and self._clock.monotonic_seconds() >= self._avoided_until:
            return self._sync_whole_disk(self._whole_disk)
        if self._thread_count == 1:
            return SyncFailures(self._run_some(syncs), None)
        return SyncFailures(self._run_side_by_side(syncs), None)

    def _sync_whole_disk(self, whole_disk: WholeDiskSync) -> SyncFailures:
        started = self._clock.monotonic_seconds()
        try:
            whole_disk.sync()
        except OSError as error:
            return SyncFailures({}, f"sync of the whole disk: {error}")
        ended = self._clock.monotonic_seconds()
        if ended - started > WHOLE_DISK_SECONDS_MAX:
            self._avoided_until = ended + self._avoided_seconds
            self._avoided_seconds = min(AVOIDED_SECONDS_MAX, self._avoided_seconds * 2)
        else:
            self._avoided_seconds = AVOIDED_SECONDS_MIN
        return SyncFailures({}, None)

    def _run_side_by_side(self, syncs: list[LogSync]) -> dict[PartitionLog, str]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._thread_count, thread_name_prefix="penstock-sync")
        # A few shares rather than one task a log: handing out a task costs as much as a short sync.
        shares = [syncs[start :: self._thread_count] for start in range(min(self._thread_count, len(syncs)))]
        failures: dict[PartitionLog, str] = {}
        for share_failures in self._pool.map(self._run_some, shares):
            failures.update(share_failures)
        return failures

    def _run_some(self, syncs: list[LogSync]) -> dict[PartitionLog, str]:
        failures = {}
        for sync in syncs:
            try:
                sync.run(self._files)
            except OSError as error:
                failures[sync.log] = f"sync: {error}"
        return failures

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        if self._whole_disk is not None:
            self._whole_disk.close()
            self._whole_disk = None
