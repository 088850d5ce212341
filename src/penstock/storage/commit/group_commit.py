"""Group commit: one sync releases every reply that waited for it. One turn at a time for the whole node.

    join ─┐
    join ─┼─► next turn ──start──► thread: sync ──► loop: settle, callbacks ──► the turn after it
    join ─┘   (collects            (sync_thread,
               while one runs)      sync_ways)

Rules:
- A turn covers what was written before it *started*; a write during the sync waits for the next turn.
- All syncs of log data pass through here, one after the other. An error is reported once to each open file: two syncs
  of one file at a time, and the second could say "well" about bytes that the first was told are lost.
- A failed sync is never retried. Its logs go offline until recovery has read them again (LogStore.recover_log).
- By `syncfs` nobody can say whose bytes failed: every log with unsynced bytes counts as failed, those of the next turn
  too. The call had flushed their bytes as well, and reports the loss this once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from penstock.base.clock import Clock
from penstock.storage.commit.sync_thread import SyncRunner
from penstock.storage.commit.sync_ways import SyncFailures, SyncWays
from penstock.storage.files.protocols import Files
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.sync import LogSync
from penstock.storage.metrics import StorageMetrics

NO_FAILURES: Final = SyncFailures({}, None)


class Turn:
    """One sync. `failed` are the logs whose writes it could not make durable."""

    __slots__ = ("_callbacks", "done", "failed", "logs")

    def __init__(self) -> None:
        self.logs: dict[PartitionLog, None] = {}
        self.done = False
        self.failed: frozenset[PartitionLog] = frozenset()
        self._callbacks: list[Callable[[Turn], None]] = []

    def add_done_callback(self, callback: Callable[[Turn], None]) -> None:
        """Called on the loop when the turn is over, in the order of asking; at once if it is over."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def wait(self) -> frozenset[PartitionLog]:
        """The logs that failed."""
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._callbacks.append(partial(_release, future))
            await future
        return self.failed

    def finish(self, failed: frozenset[PartitionLog]) -> None:
        self.failed = failed
        self.done = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def _release(future: asyncio.Future[None], _turn: Turn) -> None:
    # Whoever waited may have been cancelled meanwhile.
    if not future.done():
        future.set_result(None)


class GroupCommit:
    def __init__(
        self,
        files: Files,
        root: str,
        metrics: StorageMetrics,
        clock: Clock,
        runner: SyncRunner,
        all_logs: Callable[[], Iterable[PartitionLog]] = tuple,
        *,
        threads: int = 1,
    ) -> None:
        self._files = files
        self._all_logs = all_logs
        self._metrics = metrics
        self._clock = clock
        self._runner = runner
        self._ways = SyncWays(files, root, clock, threads=threads)
        self._next: Turn | None = None
        self._running: Turn | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def join(self, log: PartitionLog) -> Turn:
        """On the loop: the turn that will make everything durable that was appended to `log` so far."""
        turn = self._next
        if turn is None:
            turn = self._next = Turn()
            if self._running is None:
                if self._loop is None:
                    self._loop = asyncio.get_running_loop()
                # Not now: what the other connections of this round of the loop append joins the same turn.
                self._loop.call_soon(self._start)
        turn.logs[log] = None
        return turn

    def sync_now(self, logs: Iterable[PartitionLog]) -> frozenset[PartitionLog]:
        """Blocking, without a loop: for the start, the end and the tools. The logs that failed."""
        assert self._running is None, "a turn is running"
        syncs = [log.begin_sync() for log in sorted_logs(logs)]
        return self.settle(syncs, self.run_syncs(syncs))

    def close(self) -> None:
        """The caller has waited for the last turn."""
        self._runner.close()
        self._ways.close()

    def _start(self) -> None:
        turn = self._next
        if turn is None or self._running is not None:
            return
        self._next = None
        self._running = turn
        syncs = [log.begin_sync() for log in turn.logs]
        if not self._files.is_durable:
            self._finish(turn, syncs, NO_FAILURES)
            return
        self._runner.run(partial(self._timed_syncs, syncs), partial(self._finish, turn, syncs))

    def _timed_syncs(self, syncs: list[LogSync]) -> SyncFailures:
        started = self._clock.monotonic_seconds()
        failures = self.run_syncs(syncs)
        self._metrics.sync_seconds.observe(self._clock.monotonic_seconds() - started)
        return failures

    def run_syncs(self, syncs: list[LogSync]) -> SyncFailures:
        """Blocking."""
        return self._ways.run(syncs)

    def settle(self, syncs: list[LogSync], failures: SyncFailures) -> frozenset[PartitionLog]:
        """On the loop, after `run_syncs`: the logs that failed."""
        if failures.of_the_disk is not None:
            self._metrics.sync_failures.inc()
            # A sync without new bytes counts too: it may have been for the name of a segment just begun.
            hit = [sync.log for sync in syncs if sync.step_count > 0]
            hit += [log for log in self._all_logs() if log.durable_end < log.log_end]
            for log in hit:
                log.fail(failures.of_the_disk)
        failed = []
        for sync in syncs:
            log = sync.log
            reason = failures.by_log.get(log)
            if reason is not None:
                self._metrics.sync_failures.inc()
                log.fail(reason)
            # A log that failed before has failed again: the bytes of this turn followed bytes that are lost.
            if log.failure is not None or not log.end_sync(sync):
                failed.append(log)
        return frozenset(failed)

    def _finish(self, turn: Turn, syncs: list[LogSync], failures: SyncFailures) -> None:
        failed = self.settle(syncs, failures)
        self._metrics.turn_logs.inc(len(syncs))
        self._running = None
        # The next turn first: its sync runs while the callbacks of this one send their replies.
        if self._next is not None:
            self._start()
        turn.finish(failed)


def sorted_logs(logs: Iterable[PartitionLog]) -> list[PartitionLog]:
    return sorted(logs, key=lambda log: log.home.directory)
