"""The queues of one partition: the pure machines, their journal in the partition's companion log, their alarm, and
who waits for messages.

    submit: decide ─► apply ─► journal ─► (durable) ─► reply, then effects

There is no `await` between deciding and applying, so commands never interleave. A reply waits for everything that it
may have seen, also when it has nothing to store itself. When the journal is lost the machines are dropped, and built
anew from what is on disk.

A shell is of one leadership. When that ends nothing is handed out or confirmed any more, also of what was decided
before. One that begins with the journal of an earlier leadership gives every lease its whole length once more: it was
dated by another machine's clock, and one that ended too soon would give a message two holders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.broker.machine.alarm import Alarm
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.journal import Journal
from penstock.broker.machine.portions import check_whole
from penstock.broker.partition.deletion import delete_before
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.partition.waiting import WaitingRoom
from penstock.broker.queue.fifo_window import FifoWindow
from penstock.broker.queue.messages import QueueUnavailable, ReceivedMessages
from penstock.broker.queue.reader import QueueReader
from penstock.broker.queue.replay import QueueReplay, replay_entries
from penstock.broker.queue.replay_start import Kept, read_start, removable_below, write_start
from penstock.broker.queue.take import take
from penstock.domain.queue.commands import (
    AppendMove,
    DeadLettersWait,
    Decision,
    QueueCommand,
    QueueEffect,
    QueueReply,
    Snapshot,
    TakeOver,
    TimePassed,
    TrimLog,
    WakeReceivers,
)
from penstock.domain.queue.definition import QueueDefinition
from penstock.domain.queue.ledger import JournalLedger
from penstock.domain.queue.machine import Queue
from penstock.domain.queue.records import Closed, QueueRecord, write_record
from penstock.domain.queue.values import QueueConfig

__all__ = ["QueueShell", "QueueUnavailable"]

log = get_logger("queues")

# Snapshots of idle queues in one go: each is small, and the loop is let go between so many.
IDLE_SNAPSHOTS_AT_ONCE: Final = 50
# So many records more than needed are read at a start rather than that a file is written and synced for every few of
# them. What a later snapshot makes unnecessary is read past: a microsecond each.
SAVED_BEHIND_MAX: Final = 1_000
# Records of a replay that are applied before others may use the loop: some milliseconds.
REPLAYED_AT_ONCE: Final = 500

_NOT_LOADED: Final = QueueUnavailable("the queues of this partition are being loaded", is_loading=True)
_RESIGNED: Final = QueueUnavailable("another node looks after the queues of this partition")
_UNSURE: Final = QueueUnavailable("another node may look after the queues of this partition by now")
_LOST: Final = QueueUnavailable("the disk did not take the queue's journal")


class QueueContext(msgspec.Struct, frozen=True):
    """What all queues of a node have in common."""

    # A steady one: leases are dated and waited for.
    clock: Clock
    # Of a topic and a group.
    config_of: Callable[[str, str], QueueConfig]
    # Told when a queue, by its group, has something to move.
    mover: Callable[[QueueShell, str], None]
    chance: Callable[[], float]
    kept: Kept = Kept()


class QueueShell:
    def __init__(
        self,
        context: QueueContext,
        leadership: Leadership,
        partition: PartitionShell,
        companion: PartitionShell,
        reader: QueueReader,
    ) -> None:
        self.partition = partition
        self.reader = reader
        self._context = context
        self._leadership = leadership
        self._companion = companion
        self._clock = context.clock
        self.now_ms: Callable[[], int] = context.clock.now_ms
        self._mover = context.mover
        self._queues: dict[str, Queue] = {}
        self._rooms: dict[str, WaitingRoom] = {}
        self._journal = Journal(companion, context.clock, leadership=leadership)
        self._ledger = JournalLedger()
        self._next_position = 0
        self._saved_start = 0
        # Offsets of the journal that the last load has read.
        self.replayed_offsets = 0
        # Where the partition's log began when the queues were last told.
        self._trimmed_below = 0
        self._alarm = Alarm(context.clock, self._on_alarm)
        self.is_loaded = False
        # Why it cannot be loaded before somebody repairs its journal.
        self.damage = JournalDamage(companion)
        self._is_closed = False
        self._is_resigned = False
        # What was sent here, if any of the queues is a FIFO queue.
        self.fifo = FifoWindow(partition, reader)

    # Life

    async def load(self) -> None:
        """Rebuilds the machines from the journal. What fails leaves the shell unloaded: JournalLostError."""
        with self.damage.noted():
            await self._load()

    async def _load(self) -> None:
        self._queues.clear()
        companion = self._companion
        saved = await asyncio.to_thread(read_start, companion)
        start = max(companion.log_start, saved)
        check_whole(companion, start)
        end = companion.log.log_end
        replay = QueueReplay(self._make)
        async for entries in replay_entries(companion, start, end):
            for place in range(0, len(entries), REPLAYED_AT_ONCE):
                replay.apply(entries[place : place + REPLAYED_AT_ONCE])
                await asyncio.sleep(0)
        if self._is_closed:
            return
        self._queues, self._ledger = replay.queues, replay.ledger
        self._journal = Journal(companion, self._clock, leadership=self._leadership)
        self._next_position = end
        self._saved_start = saved
        self.replayed_offsets = end - start
        self._trimmed_below = 0
        self.is_loaded = True
        is_takeover = end > 0 and companion.log.epochs.epoch_at(end - 1) < self._leadership.epoch
        for group, queue in list(self._queues.items()):
            queue.config = self._config_of(group)
            if is_takeover:
                self.decide(group, TakeOver())
            if queue.pending_move() is not None or queue.dying(1):
                self._mover(self, group)
            self._alarm.set(queue.next_deadline_ms())

    def _make(self, group: str) -> Queue:
        return Queue(self._config_of(group), chance=self._context.chance)

    def _config_of(self, group: str) -> QueueConfig:
        return self._context.config_of(self.partition.topic, group)

    async def unload(self) -> None:
        """The journal is lost: nothing is decided until `load` has rebuilt the machines."""
        self._drop()

    def _drop(self) -> None:
        self.is_loaded = False
        self.fifo.forget()
        self._alarm.cancel()
        self.wake_all()

    def close(self) -> None:
        """For good, also for a `load` that is under way: the topic is gone, or the node stops."""
        self._is_closed = True
        self._drop()

    def resign(self) -> None:
        """Somebody else looks after these queues: who waits for messages is woken, to look for them there."""
        self._is_resigned = True
        self.close()
        self.reader.forget()

    async def leave(self) -> None:
        """Nothing is left to do: what has not been written is refused by the log."""

    @property
    def is_lost(self) -> bool:
        return self.is_loaded and self._journal.is_lost

    @property
    def journal_log(self) -> PartitionShell:
        """The companion log that tells what became of messages."""
        return self._companion

    # Looking

    def queue(self, group: str) -> Queue | None:
        return self._queues.get(group)

    def is_ready(self, group: str) -> bool:
        """Whether there is nothing to wait for: the queue is open, or will not be before somebody repairs it."""
        queue = self._queues.get(group)
        return (self.is_loaded and queue is not None and queue.is_open) or self.damage.reason is not None

    def groups(self) -> list[str]:
        return list(self._queues)

    def room(self, group: str) -> WaitingRoom:
        """Where those wait who found nothing in this queue."""
        return self._rooms.setdefault(group, WaitingRoom())

    def wake_all(self) -> None:
        for room in self._rooms.values():
            room.wake_all()

    def configure(self, group: str) -> None:
        queue = self._queues.get(group)
        if queue is not None:
            queue.config = self._config_of(group)
        # Also if it is gone: whoever waits for its messages should know.
        self._wake(group)

    @property
    def unavailable(self) -> QueueUnavailable:
        """What whoever asks is told while it is not loaded."""
        if self._is_resigned:
            return _RESIGNED
        why = self.damage.reason
        return _NOT_LOADED if why is None else QueueUnavailable(why, is_damaged=True)

    # Commands

    async def submit(self, group: str, command: QueueCommand) -> QueueReply | QueueUnavailable:
        """The reply, when everything it rests on is durable."""
        decision = self._decide(group, command)
        if isinstance(decision, QueueUnavailable):
            return decision
        is_durable = await self.is_durable()
        if self._is_resigned:
            return _RESIGNED
        if not is_durable:
            return _LOST
        return decision.reply if decision.records else self.refuse_look() or decision.reply

    def decide(self, group: str, command: QueueCommand) -> QueueReply | QueueUnavailable:
        """Decides and applies at once. The reply must not leave before `is_durable` has said yes, and one that rests on
        no write not if `refuse_look` says why."""
        decision = self._decide(group, command)
        return decision if isinstance(decision, QueueUnavailable) else decision.reply

    def refuse_look(self) -> QueueUnavailable | None:
        """Why nobody is told how the queues are: another node may have changed them by now. Asked at the reply."""
        return None if self.partition.may_look else _UNSURE

    def _decide(self, group: str, command: QueueCommand) -> Decision | QueueUnavailable:
        if not self.is_loaded:
            return self.unavailable
        if self._journal.is_lost:
            return _LOST
        queue = self._queues.get(group) or self._make(group)
        decision = queue.decide(command, self.now_ms())
        if decision.records:
            self._queues.setdefault(group, queue)
            self._write(group, queue, decision.records)
        if decision.effects:
            self._journal.when_durable(partial(self._do_effects, group, decision.effects))
        self._alarm.set(queue.next_deadline_ms())
        return decision

    async def take(
        self, definition: QueueDefinition, consumer: str, count_max: int, *, lease_ms: int = 0
    ) -> ReceivedMessages | QueueUnavailable:
        """Messages for a consumer, from this partition. They must not leave before `is_durable` has said yes."""
        return await take(self, definition, consumer, count_max, lease_ms)

    def is_durable(self) -> asyncio.Future[bool]:
        return self._journal.until_durable()

    def trim(self) -> None:
        """To be called when retention may have moved the start of the partition's log."""
        log_start = self.partition.log_start
        if log_start <= self._trimmed_below or not self.is_loaded or self._journal.is_lost:
            return
        self._trimmed_below = log_start
        for group in self.groups():
            self.decide(group, TrimLog(log_start))

    # Inside

    def _write(self, group: str, queue: Queue, records: tuple[QueueRecord, ...]) -> None:
        key = group.encode()
        entries: list[tuple[bytes, bytes | None]] = []
        for record in records:
            queue.apply(record)
            entries.append((key, write_record(record)))
            self._ledger.note(group, self._next_position, record)
            self._next_position += 1
            if isinstance(record, Closed):
                self._queues.pop(group, None)
                self._wake(group)
                self._rooms.pop(group, None)
        self._journal.append(entries)
        if group in self._queues and self._ledger.is_due(group, queue.span_count):
            self._snapshot(group, queue)

    def _snapshot(self, group: str, queue: Queue) -> None:
        (stored,) = queue.decide(Snapshot(), self.now_ms()).records
        queue.apply(stored)
        self._ledger.note(group, self._next_position, stored)
        self._next_position += 1
        self._journal.append([(group.encode(), write_record(stored))])

    def _do_effects(self, group: str, effects: tuple[QueueEffect, ...], is_durable: bool) -> None:
        if not is_durable or not self.is_loaded:
            return
        for effect in effects:
            match effect:
                case WakeReceivers():
                    self._wake(group)
                case DeadLettersWait() | AppendMove():
                    self._mover(self, group)

    def _wake(self, group: str) -> None:
        room = self._rooms.get(group)
        if room is not None:
            room.wake_all()

    def _on_alarm(self) -> None:
        now_ms = self.now_ms()
        for group, queue in list(self._queues.items()):
            deadline_ms = queue.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self.decide(group, TimePassed())
            else:
                self._alarm.set(deadline_ms)

    # Upkeep

    @property
    def replay_start(self) -> int:
        """Where in the journal a start would begin to read, once `tidy` has written it down."""
        return self._ledger.replay_start()

    async def tidy(self) -> None:
        """From time to time: idle queues must not make the next start read the journal from its beginning."""
        if not self.is_loaded or self._journal.is_lost:
            return
        for group in self._ledger.idle_due(count_max=IDLE_SNAPSHOTS_AT_ONCE):
            queue = self._queues.get(group)
            if queue is not None:
                self._snapshot(group, queue)
        start = self._ledger.replay_start()
        is_due = start - self._saved_start >= SAVED_BEHIND_MAX and await self.is_durable()
        if is_due and await asyncio.to_thread(write_start, self._companion.log, start):
            self._saved_start = start
        below = removable_below(
            self._companion.log, start=self._saved_start, now_ms=self.now_ms(), kept=self._context.kept
        )
        if below > self._companion.log_start:
            await delete_before(self._companion, below)
