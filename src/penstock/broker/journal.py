"""What a coordinator must not forget, as records in one partition of an internal topic.

    append ─┐
    append ─┼─► one batch at the end of this turn of the loop ──► one turn of the disk ──► `when_durable` callbacks
    append ─┘

Thousands of commits that arrive together cost one batch and one sync. A record that could not be stored is not retried:
the journal is lost, everybody who waits is told, and the coordinator rebuilds its machine by `replay`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.broker.append_outcome import Appended, AppendRefused
from penstock.broker.partition_shell import PartitionShell
from penstock.codec.record_batch import BatchProblem, walk_headers
from penstock.codec.records import Record, StoredRecord, build_batch, read_records
from penstock.storage.group_commit import Turn
from penstock.storage.read_plan import ReadPlan
from penstock.storage.storage_errors import Damage

log = get_logger("journal")

# Well below the internal topic's max.message.bytes; only a single decision that is larger makes a larger batch.
BATCH_BYTES_MAX: Final = 512 * 1024
# One read of a replay: large enough for the disk, small enough to be decoded without holding the interpreter for long.
REPLAY_BYTES: Final = 1024 * 1024

OnDurable = Callable[[bool], None]


class JournalLostError(Exception):
    """The journal cannot be read from beginning to end, so what its coordinator should know is not known."""


class Journal:
    def __init__(self, shell: PartitionShell, clock: Clock) -> None:
        self._shell = shell
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # One list for each decision.
        self._buffer: list[list[Record]] = []
        # Who waits for what is in the buffer, and for what was appended but is not durable yet.
        self._waiting: list[OnDurable] = []
        self._last_turn: Turn | None = None
        self.is_lost = False

    def append(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Keys and values of one decision, stored whole or not at all. No value: a tombstone.

        Enqueued at once, so that a `when_durable` after it waits for it.
        """
        if not entries:
            return
        if not self._buffer:
            self._loop.call_soon(self._flush)
        now_ms = self._clock.now_ms()
        self._buffer.append([Record(value=value, key=key, timestamp_ms=now_ms) for key, value in entries])

    def when_durable(self, callback: OnDurable) -> None:
        """Calls with True once everything appended so far is durable, with False if it never will be."""
        if self.is_lost:
            callback(False)
        elif self._buffer:
            self._waiting.append(callback)
        elif self._last_turn is not None and not self._last_turn.done:
            self._last_turn.add_done_callback(lambda turn: callback(self._shell.log not in turn.failed))
        else:
            callback(True)

    def _flush(self) -> None:
        decisions, self._buffer = self._buffer, []
        waiting, self._waiting = self._waiting, []
        for batch in _batches(decisions):
            outcome = Appended(-1, -1, -1, None) if self.is_lost else self._shell.append(memoryview(build_batch(batch)))
            if isinstance(outcome, AppendRefused):
                log.error(
                    "records not stored", topic=self._shell.topic, partition=self._shell.index, why=outcome.reason
                )
                self.is_lost = True
            elif outcome.turn is not None:
                self._last_turn = outcome.turn
                outcome.turn.add_done_callback(self._on_turn)
        for callback in waiting:
            self.when_durable(callback)

    def _on_turn(self, turn: Turn) -> None:
        if self._shell.log in turn.failed:
            self.is_lost = True

    async def replay(self) -> AsyncIterator[list[StoredRecord]]:
        """Every record from the beginning, in batches; control batches are left out."""
        shell = self._shell
        offset = shell.log_start
        while offset < shell.readable_end:
            plan = shell.log.plan_read(offset, bytes_max=REPLAY_BYTES)
            if not isinstance(plan, ReadPlan):
                raise JournalLostError(f"{shell.topic}-{shell.index} cannot be read at offset {offset}: {plan}")
            records, offset = await asyncio.to_thread(_load, plan)
            yield records


def _load(plan: ReadPlan) -> tuple[list[StoredRecord], int]:
    """Blocking: the records of one read, and the offset after it."""
    loaded = plan.load()
    if isinstance(loaded, Damage):
        raise JournalLostError(loaded.describe())
    records: list[StoredRecord] = []
    next_offset = -1
    for position, header in walk_headers(loaded):
        next_offset = header.next_offset
        if header.is_control:
            continue
        found = read_records(loaded, position)
        if isinstance(found, BatchProblem):
            raise JournalLostError(f"batch at offset {header.base_offset}: {found.reason}")
        records += found
    return records, next_offset


def _batches(decisions: list[list[Record]]) -> list[list[Record]]:
    """Cut between decisions only: half of one, after a crash, would be a state that was never decided on."""
    batches: list[list[Record]] = [[]]
    size_bytes = 0
    for records in decisions:
        decision_bytes = sum(len(record.key or b"") + len(record.value or b"") + 32 for record in records)
        if batches[-1] and size_bytes + decision_bytes > BATCH_BYTES_MAX:
            batches.append([])
            size_bytes = 0
        batches[-1] += records
        size_bytes += decision_bytes
    return batches
