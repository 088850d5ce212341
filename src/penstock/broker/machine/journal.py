"""What a coordinator must not forget, as records in one partition of an internal topic.

    append ─┐
    append ─┼─► one batch at the end of this turn of the loop ──► one turn of the disk ──► `when_durable` callbacks
    append ─┘

Thousands of commits that arrive together cost one batch and one sync. While a batch is on its way to the disk, what
comes collects: it could not be durable sooner, and shares the next batch and its sync with those whom the first one
lets go on and who are back at once. What may wait, waits for `flush_ms` and shares
its batch with what comes meanwhile; nobody is told that it is stored before it is. A record that could not be stored
is not retried: the journal is lost, everybody who waits is told, and the coordinator rebuilds its machine by `replay`.

The last record of a key says all there is to say about it. So the log may be compacted, and `save_snapshot` keeps what
the log comes to in a file (`journal_snapshot`): a replay reads that and what was written since (`journal_reader`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.broker.machine.journal_reader import SNAPSHOT_RECORDS_MIN, JournalReader
from penstock.broker.machine.portions import JournalLostError
from penstock.broker.partition.commitment import Commitment
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.outcome import Appended, AppendRefused, VerificationNeeded
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.records import Record, StoredRecord, build_batch
from penstock.storage.log.journal_snapshot import Entry

log = get_logger("journal")

# Well below the internal topic's max.message.bytes; only a single decision that is larger makes a larger batch.
BATCH_BYTES_MAX: Final = 512 * 1024
# What a record takes beside its key and its value, about.
RECORD_BYTES: Final = 32
# Turns of the loop between the end of a sync and the next batch: replies leave in the first, requests that lie there
# already are read in the second and decided on in the third. Together they take less than the sync that is saved.
GATHERING_TURNS: Final = 3

OnDurable = Callable[[bool], None]


class Journal:
    def __init__(
        self,
        shell: PartitionShell,
        clock: Clock,
        *,
        leadership: Leadership | None = None,
        flush_ms: int = 0,
        snapshot_records_min: int = SNAPSHOT_RECORDS_MIN,
    ) -> None:
        """`leadership`: under which everything in it is decided; without one, the one that is."""
        self._shell = shell
        self._leadership = leadership or shell.leadership
        self._reader = JournalReader(shell, snapshot_records_min=snapshot_records_min)
        self._clock = clock
        self._flush_ms = flush_ms
        self._loop = asyncio.get_running_loop()
        # One list for each decision.
        self._buffer: list[list[Record]] = []
        self._buffer_bytes = 0
        self._alarm: asyncio.Handle | None = None
        self._is_flushed_soon = False
        # Something in the buffer cannot wait for longer than the batch before it does.
        self._is_flushed_next = False
        # Who waits for what is in the buffer, and for what was appended but is not durable yet.
        self._waiting: list[OnDurable] = []
        self._commitment: Commitment | None = None
        self.is_lost = False

    # Writing

    def append(self, entries: Sequence[Entry], *, may_wait: bool = False) -> None:
        """Keys and values of one decision, stored whole or not at all. No value: a tombstone.

        Enqueued at once, so that a `when_durable` after it waits for it.
        """
        if not entries:
            return
        now_ms = self._clock.now_ms()
        records = [Record(value=value, key=key, timestamp_ms=now_ms) for key, value in entries]
        self._buffer.append(records)
        for key, value in entries:
            self._buffer_bytes += len(key) + len(value or b"") + RECORD_BYTES
        self._flush_later(may_wait=may_wait and self._buffer_bytes < BATCH_BYTES_MAX)

    def when_durable(self, callback: OnDurable, *, may_wait: bool = False) -> None:
        """Calls with True once everything appended so far is durable, with False if it never will be."""
        # Also of what has been durable for long: somebody else may lead now, and have decided otherwise since.
        if self.is_lost or not self._is_led():
            callback(False)
        elif self._buffer:
            self._waiting.append(callback)
            self._flush_later(may_wait=may_wait)
        elif self._commitment is not None and not self._commitment.is_known:
            self._commitment.when_known(lambda commitment: callback(commitment.loss is None))
        else:
            callback(True)

    def until_durable(self, *, may_wait: bool = False) -> asyncio.Future[bool]:
        """The same, for whoever can wait."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self.when_durable(partial(_resolve, future), may_wait=may_wait)
        return future

    def flush(self) -> None:
        """Everything in the buffer becomes a batch of the log, now. It is durable later: `when_durable`."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._is_flushed_soon, self._is_flushed_next = None, False, False
        if self._buffer:
            self._append_batches()

    def _flush_later(self, *, may_wait: bool) -> None:
        if self._is_flushed_soon or (may_wait and self._alarm is not None):
            return
        if self._is_syncing and not may_wait and self._buffer_bytes < BATCH_BYTES_MAX:
            self._is_flushed_next = True
            return
        if self._alarm is not None:
            self._alarm.cancel()
        if may_wait and self._flush_ms > 0:
            self._alarm = self._loop.call_later(self._flush_ms / 1000, self.flush)
        else:
            self._is_flushed_soon = True
            self._alarm = self._loop.call_soon(self.flush)

    def _append_batches(self) -> None:
        # Nearly always all of it is one batch, and nobody need count again.
        is_one = self._buffer_bytes <= BATCH_BYTES_MAX
        decisions, self._buffer, self._buffer_bytes = self._buffer, [], 0
        waiting, self._waiting = self._waiting, []
        for batch in [list(chain.from_iterable(decisions))] if is_one else _batches(decisions):
            outcome = Appended(-1, -1, -1, None) if self.is_lost else self._append_batch(batch)
            if isinstance(outcome, AppendRefused):
                log.error(
                    "records not stored", topic=self._shell.topic, partition=self._shell.index, why=outcome.reason
                )
                self.is_lost = True
            elif outcome.commitment is not None:
                self._commitment = outcome.commitment
                outcome.commitment.when_known(self._on_known)
        if waiting and self._commitment is not None and self._is_syncing and not self.is_lost:
            # One call of the commitment, however many decisions there are.
            self._commitment.when_known(partial(_tell, waiting))
            return
        for callback in waiting:
            self.when_durable(callback)

    def _append_batch(self, batch: list[Record]) -> Appended | AppendRefused:
        outcome = self._shell.append_decided(memoryview(build_batch(batch)), self._leadership)
        assert not isinstance(outcome, VerificationNeeded), "no batch of a journal is part of a transaction"
        return outcome

    def _on_known(self, commitment: Commitment) -> None:
        if commitment.loss is not None:
            self.is_lost = True
        if self._is_flushed_next and not self._is_flushed_soon and not self._is_syncing:
            if self._alarm is not None:
                self._alarm.cancel()
            self._is_flushed_soon = True
            self._gather(GATHERING_TURNS)

    def _gather(self, turns: int) -> None:
        if turns:
            self._alarm = self._loop.call_soon(self._gather, turns - 1)
        else:
            self.flush()

    def _is_led(self) -> bool:
        """As it was when everything in it was decided. What is over once is over for good."""
        self.is_lost = self.is_lost or self._shell.refuse_leadership(self._leadership) is not None
        return not self.is_lost

    @property
    def _is_syncing(self) -> bool:
        return self._commitment is not None and not self._commitment.is_known

    # Reading

    def replay_entries(self) -> AsyncIterator[list[Entry]]:
        """What was ever written and still counts, in its order and in portions; control batches are left out.

        Raises JournalLostError; JournalDamagedError if any of it is not as it was written.
        """
        return self._reader.replay()

    async def replay(self) -> AsyncIterator[list[StoredRecord]]:
        """The same as records, without their offsets: those in a snapshot have none."""
        async for entries in self.replay_entries():
            yield [StoredRecord(-1, -1, key, value) for key, value in entries]

    async def unreadable(self, unread: Entry, why: str) -> JournalLostError:
        """Of an entry that nobody can have written: where it stands, for the repair."""
        return await self._reader.unreadable(unread, why)

    @property
    def missing_count(self) -> int:
        """Records that a repair has taken out, as far as the last replay could see."""
        return self._reader.missing_count

    # The snapshot

    @property
    def is_snapshot_due(self) -> bool:
        return not self.is_lost and self._reader.is_snapshot_due

    async def save_snapshot(self) -> None:
        """Of all that is durable now. Raises JournalLostError."""
        await self._reader.save_snapshot()


def _tell(waiting: list[OnDurable], commitment: Commitment) -> None:
    for callback in waiting:
        callback(commitment.loss is None)


def _resolve(future: asyncio.Future[bool], is_durable: bool) -> None:
    if not future.done():
        future.set_result(is_durable)


def _batches(decisions: list[list[Record]]) -> list[list[Record]]:
    """Cut between decisions only: half of one, after a crash, would be a state that was never decided on."""
    batches: list[list[Record]] = [[]]
    size_bytes = 0
    for records in decisions:
        decision_bytes = _size_bytes(records)
        if batches[-1] and size_bytes + decision_bytes > BATCH_BYTES_MAX:
            batches.append([])
            size_bytes = 0
        batches[-1] += records
        size_bytes += decision_bytes
    return batches


def _size_bytes(records: Sequence[Record]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") + RECORD_BYTES for record in records)
