"""The transactions of one partition of `__transaction_state`: the pure machine, its journal, its alarm and its markers.

    submit: decide ─► apply ─► journal ─► (durable) ─► reply, and markers ─► (durable in every partition)
                                                                                  │
                              Complete record ◄── MarkersWritten ◄────────────────┘

There is no `await` between deciding and applying, so commands never interleave. A reply waits for everything that it
may have seen, also when it has nothing to store itself.

Rules:
- A marker leaves only when its Prepare record is durable: it cannot be taken back.
- The coordinator's epoch is a record of the journal itself, raised with every load and durable before the first marker
  of that load, because it is written first. It could stand in the metadata store; but then it could be newer or older
  than the journal that it guards, after one of the two was restored. In a cluster the journal moves, and its epoch
  with it; it is never below that of the leadership, so that a coordinator which has read less of the journal than its
  predecessor had written cannot come after it with a lower one.
- When its leadership ends nothing is answered any more, and no marker leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.machine.alarm import Alarm
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.journal import Journal
from penstock.broker.machine.journal_reader import JournalReader, Rest
from penstock.broker.machine.portions import JournalLostError, damaged
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.partition.waiting import Waiter, WaitingRoom
from penstock.broker.transaction.elsewhere import Markers
from penstock.broker.transaction.encoding import decode, encode_epoch, encode_record
from penstock.broker.transaction.markers import PASSING, MarkerOutcome
from penstock.domain.transaction.commands import (
    Decision,
    MarkersWritten,
    Refused,
    TimePassed,
    TransactionCommand,
    TransactionListing,
    TransactionProblem,
    TransactionReply,
    WriteMarkers,
)
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.machine import TransactionCoordinator
from penstock.domain.transaction.rules import TransactionSettings
from penstock.domain.transaction.state import (
    COMPLETE,
    TopicPartition,
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
)
from penstock.storage.log.journal_snapshot import Entry

log = get_logger("transactions")

UNAVAILABLE: Final = Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)
NOT_COORDINATOR: Final = Refused(TransactionProblem.NOT_COORDINATOR)
DAMAGED: Final = Refused(TransactionProblem.UNKNOWN_SERVER_ERROR)
# A full disk or a log that is being recovered: soon enough for readers who wait for the marker, and a thousand
# transactions that wait for one partition ask a thousand times a second at the most.
MARKER_RETRY_MS_MIN: Final = 50
MARKER_RETRY_MS_MAX: Final = 1_000
# Markers hold 32 bits of it; room is left for the loads that follow.
EPOCH_MAX: Final = 2**30
_IDLE: Final = frozenset({*COMPLETE, TransactionState.EMPTY, TransactionState.DEAD})


class TransactionShell:
    def __init__(
        self,
        partition: PartitionShell,
        leadership: Leadership,
        *,
        settings: TransactionSettings,
        markers: Markers,
        clock: Clock,
        steady: Clock,
        tasks: TaskSupervisor,
    ) -> None:
        self._partition = partition
        self._leadership = leadership
        self._settings = settings
        self._markers = markers
        self._clock = clock
        # Timeouts are measured with it: a wall clock that jumps must not abort every transaction at once.
        self._steady = steady
        self._tasks = tasks
        self._machine = TransactionCoordinator(settings, coordinator_epoch=0)
        self._journal = self._new_journal()
        self._alarm = Alarm(steady, self._on_alarm)
        self._marking: dict[asyncio.Task[None], None] = {}
        # Who waits for the end of a transaction, by its id.
        self._ends: dict[str, WaitingRoom] = {}
        self.is_loaded = False
        self._is_resigned = False
        # Why it cannot be loaded before somebody repairs its journal.
        self.damage = JournalDamage(partition)
        self.committed_count = 0
        self.aborted_count = 0

    # Life

    async def load(self) -> None:
        """Rebuilds the machine from the journal. What fails leaves the shell unloaded: JournalLostError."""
        with self.damage.noted():
            await self._load()

    async def _load(self) -> None:
        machine = TransactionCoordinator(self._settings, coordinator_epoch=0)
        journal = self._new_journal()
        async for entries in journal.replay_entries():
            for key, value in entries:
                try:
                    _replay(machine, key, value)
                except msgspec.DecodeError as error:
                    raise await journal.unreadable((key, value), f"it is not a transaction's: {error}") from error
        if self._is_resigned:
            return
        machine.coordinator_epoch = self._next_epoch(machine.coordinator_epoch, journal)
        journal.append([encode_epoch(machine.coordinator_epoch)])
        if journal.missing_count:
            self._forget_idle(machine, journal)
        self._machine, self._journal = machine, journal
        self.is_loaded = True
        # What an earlier life decided and did not finish.
        self._mark_when_durable(machine.pending_markers())
        self._alarm.set(machine.next_deadline_ms())

    def _new_journal(self) -> Journal:
        return Journal(self._partition, self._clock, leadership=self._leadership)

    def _next_epoch(self, known_epoch: int, journal: Journal) -> int:
        return max(self._epoch_after(known_epoch, journal), self._leadership.epoch)

    def _epoch_after(self, known_epoch: int, journal: Journal) -> int:
        """Above every one before, also where a repair has taken the last ones out of the journal: with a lower one
        every marker would be refused, and its transaction never end. Each load writes one record with an epoch, so none
        was ever above the number of records."""
        log_end = self._partition.log.log_end
        if journal.missing_count or (known_epoch == 0 and log_end > 0):
            return max(known_epoch + 1, min(log_end + 1, EPOCH_MAX))
        return known_epoch + 1

    def _forget_idle(self, machine: TransactionCoordinator, journal: Journal) -> None:
        """A repair may have taken out the last epoch of a producer. With one that it had before, its new batches would
        look like repeated ones: whoever has no transaction under way gets another producer id when it comes again."""
        idle = [each for each in machine.list_transactions(self._steady.now_ms()) if each.state in _IDLE]
        records = [TransactionRecord(each.transactional_id, None) for each in idle]
        for record in records:
            machine.apply(record)
        journal.append([encode_record(record) for record in records])

    async def save_snapshot_if_due(self) -> None:
        if self._is_serving and self._journal.is_snapshot_due:
            try:
                await self._journal.save_snapshot()
            except JournalLostError as error:
                log.warning("snapshot not made", error=str(error))

    def close(self) -> None:
        """The node stops, or the journal was lost: nothing is decided any more, and no marker leaves."""
        self.is_loaded = False
        self._alarm.cancel()
        for task in list(self._marking):
            task.cancel()
        for waiting in self._ends.values():
            waiting.wake_all()
        self._ends.clear()

    async def unload(self) -> None:
        self.close()

    def resign(self) -> None:
        """Somebody else coordinates these transactions."""
        self._is_resigned = True
        self.close()

    async def leave(self) -> None:
        """Returns when no marker is under way any more: the next shell writes those that are left."""
        await asyncio.gather(*self._marking, return_exceptions=True)

    @property
    def index(self) -> int:
        return self._partition.index

    @property
    def coordinator_epoch(self) -> int:
        return self._machine.coordinator_epoch

    @property
    def is_lost(self) -> bool:
        return self.is_loaded and self._journal.is_lost

    @property
    def unavailable(self) -> Refused:
        """What whoever asks is told while nothing can be read or stored."""
        if self._is_resigned:
            return NOT_COORDINATOR
        return UNAVAILABLE if self.damage.reason is None else DAMAGED

    @property
    def _is_serving(self) -> bool:
        return self.is_loaded and not self._journal.is_lost

    # Commands

    async def submit(self, command: TransactionCommand) -> TransactionReply:
        if not self._is_serving:
            return self.unavailable
        decision = self._machine.decide(command, self._steady.now_ms())
        self._carry_out(decision)
        return await self._refuse_reply(is_look=not decision.records) or decision.reply

    async def _refuse_reply(self, *, is_look: bool) -> Refused | None:
        """None: everything decided so far is durable, and it is still this machine's word that counts. A reply that
        rests on no write of its own is a look: nobody is told what another coordinator may have changed by now."""
        if not await self._journal.until_durable() or self._is_resigned:
            return self.unavailable
        return NOT_COORDINATOR if is_look and not self._partition.may_look else None

    def partitions_of(self, transactional_id: str) -> tuple[TopicPartition, ...]:
        """Of the transaction under way, if there is one."""
        found = self._machine.describe(transactional_id) if self.is_loaded else None
        return () if found is None else found.partitions

    async def describe(self, transactional_id: str) -> TransactionMetadata | Refused | None:
        if not self._is_serving:
            return self.unavailable
        found = self._machine.describe(transactional_id)
        return await self._refuse_reply(is_look=True) or found

    async def list_transactions(
        self,
        *,
        states: Collection[TransactionState] | None = None,
        producer_ids: Collection[int] | None = None,
        longer_than_ms: int = -1,
        id_matches: Callable[[str], bool] | None = None,
    ) -> list[TransactionListing] | Refused:
        if not self._is_serving:
            return self.unavailable
        found = self._machine.list_transactions(
            self._steady.now_ms(),
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            id_matches=id_matches,
        )
        refused = await self._refuse_reply(is_look=True)
        return found if refused is None else refused

    def open_since_ms(self) -> list[int]:
        """When each transaction that is under way began."""
        return self._machine.open_since_ms() if self.is_loaded else []

    async def wait_until_ended(self, transactional_id: str, wait_ms: int) -> None:
        """While an end is decided and its markers are under way, and no longer than that."""
        metadata = self._machine.describe(transactional_id)
        if metadata is None or not metadata.is_prepared:
            return
        waiter = Waiter()
        waiter.watch((self._ends.setdefault(transactional_id, WaitingRoom()),))
        try:
            await waiter.wait(wait_ms)
        finally:
            waiter.leave()

    # Inside

    def _carry_out(self, decision: Decision) -> None:
        for record in decision.records:
            self._machine.apply(record)
            # Of a prepared transaction only its completion follows.
            waiting = self._ends.pop(record.transactional_id, None)
            if waiting is not None:
                waiting.wake_all()
        self._journal.append([encode_record(record) for record in decision.records])
        for effect in decision.effects:
            self.committed_count += effect.is_commit
            self.aborted_count += not effect.is_commit
        self._mark_when_durable(decision.effects)
        self._alarm.set(self._machine.next_deadline_ms())

    def _on_alarm(self) -> None:
        if self._is_serving:
            self._carry_out(self._machine.decide(TimePassed(), self._steady.now_ms()))

    # Markers

    def _mark_when_durable(self, effects: tuple[WriteMarkers, ...]) -> None:
        if effects:
            self._journal.when_durable(partial(self._on_prepared, self._machine, effects))

    def _on_prepared(
        self, machine: TransactionCoordinator, effects: tuple[WriteMarkers, ...], is_durable: bool
    ) -> None:
        if is_durable and self.is_loaded and machine is self._machine:
            for effect in effects:
                task = self._tasks.start("transaction markers", self._mark(machine, effect))
                self._marking[task] = None
                task.add_done_callback(self._marking.pop)

    async def _mark(self, machine: TransactionCoordinator, effect: WriteMarkers) -> None:
        """Until every partition has its marker. Nobody else writes one of this transaction meanwhile: a load begins
        when the tasks of the machine before have been cancelled, and what they had appended stands in the log already.
        """
        waiting = effect.partitions
        delay_ms = MARKER_RETRY_MS_MIN
        while True:
            outcomes = await asyncio.gather(*(self._mark_one(effect, partition) for partition in waiting))
            if MarkerOutcome.COORDINATOR_FENCED in outcomes:
                # Ended there by a marker with a higher epoch: an operator's, as only this coordinator writes others. If
                # there were a newer coordinator, the journal would take no record of this one.
                log.warning("ended by somebody else's marker", transactional_id=effect.transactional_id)
            waiting = tuple(
                partition for partition, outcome in zip(waiting, outcomes, strict=True) if outcome in PASSING
            )
            if not waiting:
                break
            if delay_ms == MARKER_RETRY_MS_MIN:  # said once: it may take hours
                log.warning("markers wait", transactional_id=effect.transactional_id, partitions=len(waiting))
            await asyncio.sleep(delay_ms / 1000)
            delay_ms = min(2 * delay_ms, MARKER_RETRY_MS_MAX)
        if machine is self._machine and self._is_serving:
            written = MarkersWritten(effect.transactional_id, effect.ended_ms, effect.partitions)
            self._carry_out(machine.decide(written, self._steady.now_ms()))

    async def _mark_one(self, effect: WriteMarkers, partition: TopicPartition) -> MarkerOutcome:
        end = TransactionEnd(
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            coordinator_epoch=effect.coordinator_epoch,
            is_commit=effect.is_commit,
            version=effect.version,
        )
        return await self._markers.write(partition.topic, partition.partition, end)


async def rehearse(partition: PartitionShell, settings: TransactionSettings, rest: Rest) -> None:
    """Of a partition that another leads: the machine is built of what is committed, the snapshot saved. It answers
    nobody."""
    machine = TransactionCoordinator(settings, coordinator_epoch=0)

    def look(entries: Sequence[Entry]) -> None:
        for key, value in entries:
            _replay(machine, key, value)

    try:
        await JournalReader(partition).save_snapshot(look=look, rest=rest)
    except msgspec.DecodeError as error:
        raise damaged(partition, f"a record is not a transaction's: {error}") from error


def _replay(machine: TransactionCoordinator, key: bytes, value: bytes | None) -> None:
    found = decode(key, value)
    if isinstance(found, int):
        machine.coordinator_epoch = max(machine.coordinator_epoch, found)
    else:
        machine.apply(found)
