"""The schedule of one partition: the pure machine, its log, its files and its mover.

    schedule: decide ─► apply ─► rows ─► (durable) ─► reply
    release:  see `mover`

There is no `await` between deciding and applying, so commands never interleave, and rows are written in the order of
the decisions. When the log or a file is lost the machine is dropped, and built anew from what is on disk: `load`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from penstock.base.log_events import get_logger
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.portions import JournalLostError, check_whole
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.context import ScheduleContext
from penstock.broker.schedule.crons import ScheduleCrons, find_zone
from penstock.broker.schedule.files import ScheduleFiles
from penstock.broker.schedule.journal import ScheduleJournal
from penstock.broker.schedule.mover import ScheduleMover, known_producers
from penstock.broker.schedule.pace import ReleaseCounts
from penstock.broker.schedule.pending import PendingMessages
from penstock.broker.schedule.reader import CACHED_MS_MAX, RowReader
from penstock.broker.schedule.refusals import (
    LOST,
    RESIGNED,
    UNSURE,
    not_loaded,
    refuse_damaged,
    refuse_messages,
    refuse_write,
)
from penstock.broker.schedule.replay import rebuild
from penstock.broker.schedule.values import (
    ChangeOutcome,
    CronFacts,
    CronMessage,
    DelayedMessage,
    NotScheduled,
    Scheduled,
)
from penstock.domain.config.topic import TopicConfig
from penstock.domain.queue.receipt import MessageId, write_scheduled_id
from penstock.domain.schedule.commands import (
    Accepted,
    Decision,
    DefineCron,
    Done,
    EndTransaction,
    Refused,
    Schedule,
    ScheduleCommand,
)
from penstock.domain.schedule.cron_place import CronPlace, may_fire
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import (
    NO_POSITION,
    Missed,
    ProducerBatch,
    ScheduleRecord,
    StoredCron,
    entry_key,
)
from penstock.domain.schedule.records import Scheduled as ScheduledRow
from penstock.domain.schedule.rows import Message, Row, write_row
from penstock.domain.transaction.end import TransactionEnd
from penstock.storage.files.buckets import BucketFiles

log = get_logger("schedules")


class ScheduleShell:
    # A subclass may have others.
    reader_type: ClassVar[type[RowReader]] = RowReader
    machine_type: ClassVar[type[PartitionSchedule]] = PartitionSchedule

    def __init__(
        self,
        context: ScheduleContext,
        leadership: Leadership,
        partition: PartitionShell,
        companion: PartitionShell,
        *,
        number: int,
    ) -> None:
        """`number` is its own among all of the node."""
        self.partition = partition
        self.companion = companion
        self._context = context
        self._leadership = leadership
        self._clock = context.site.clock
        self._tasks = context.site.tasks
        self.reader = self.reader_type(companion, context.cache, context.site.readers, number=number)
        self.machine = self._make_machine()
        self.journal = ScheduleJournal(companion, self._clock, leadership)
        self.files = self._make_files()
        self.mover = self._make_mover(ReleaseCounts())
        self._running: asyncio.Task[None] | None = None
        self._crons = ScheduleCrons(self)
        self.pending = PendingMessages(self, self._clock)
        self.is_loaded = False
        # Why it cannot be loaded before somebody repairs its log.
        self.damage = JournalDamage(companion)
        # By the monotonic clock.
        self.loaded_ms = 0
        # By the last load, behind the checkpoint.
        self.replayed_rows = 0
        self._is_lost = False
        self.is_closed = False
        self._is_resigned = False
        self._producers_before: frozenset[int] | None = known_producers(partition)
        partition.log.known_producers.is_pinned = self._is_mover

    def _is_mover(self, producer_id: int) -> bool:
        """Whose sequence in the partition's log must not be forgotten. Of none that was there before, until it is known
        who it is; those that come meanwhile are others."""
        if self._producers_before is not None:
            return producer_id in self._producers_before
        move = self.machine.last_move()
        return move is not None and move.producer_id == producer_id

    # Life

    async def load(self) -> None:
        """Rebuilds the machine from the last checkpoint and the log behind it. JournalLostError leaves the shell
        unloaded."""
        with self.damage.noted():
            await self._load()

    async def _load(self) -> None:
        companion = self.companion
        # All of it: rows from before the checkpoint are messages that still wait.
        check_whole(companion)
        # Whatever the one before is still writing must not come between what this one writes.
        await self.files.close()
        self.files = self._make_files()
        machine = self._make_machine()
        started_ms = self._clock.monotonic_ms()
        try:
            start = await rebuild(machine, self.files, companion, end=companion.log.log_end)
        except OSError as error:
            raise JournalLostError(f"the files of the schedule of {companion.topic} cannot be read: {error}") from error
        if self.is_closed:
            return
        if self.files.is_closed:
            raise JournalLostError(f"the files of the schedule of {companion.topic} cannot be written")
        self.machine = machine
        self.replayed_rows = companion.log.log_end - start
        self._producers_before = None
        self.journal = ScheduleJournal(companion, self._clock, self._leadership)
        self._crons = ScheduleCrons(self)
        self.mover = self._make_mover(self.mover.counts)
        self._is_lost = False
        self.loaded_ms = self._clock.monotonic_ms()
        self.is_loaded = True
        self._running = self._tasks.start(f"schedule of {self.partition.topic}", self.mover.run(machine))
        log.info(
            "schedule loaded",
            topic=self.partition.topic,
            partition=self.partition.index,
            pending=machine.pending_count,
            rows=self.replayed_rows,
            milliseconds=self._clock.monotonic_ms() - started_ms,
        )

    def _make_machine(self) -> PartitionSchedule:
        return self.machine_type(self._context.site.config.schedules, zones=find_zone)

    def _make_files(self) -> ScheduleFiles:
        home = self.companion.log.home
        files = BucketFiles(self.companion.log.context.files, home.directory)
        limits = self._context.limits
        return ScheduleFiles(files, limits, clock=self._clock, on_failure=self._on_failure, tasks=self._tasks)

    def _make_mover(self, counts: ReleaseCounts) -> ScheduleMover:
        """One for each machine: the one before may still wait for something."""
        return ScheduleMover(self, self._context, self._leadership, counts)

    def _on_failure(self, _reason: str) -> None:
        self._is_lost = True
        self.files.is_closed = True

    @property
    def is_lost(self) -> bool:
        # A mover that ended by an error of ours would leave everything where it is, for ever.
        has_stopped = self._running is not None and self._running.done()
        return self.is_loaded and (self._is_lost or self.journal.is_lost or has_stopped)

    async def unload(self) -> None:
        """Nothing is decided until `load` has rebuilt the machine."""
        self.is_loaded = False
        self.mover.wake()
        await self.files.close()
        self.reader.forget()

    async def close(self, *, is_saved: bool = False) -> None:
        """For good, also for a `load` that is under way: the topic is gone, or the node stops."""
        self.is_closed = True
        if self.is_loaded and is_saved and not self.is_lost and not self.companion.log.context.is_full:
            await self.files.checkpoint(self.machine, self.journal)
        await self.unload()

    def resign(self) -> None:
        """Somebody else releases these messages: from now on nothing of them is written or told here."""
        self._is_resigned = self.is_closed = True
        self.is_loaded = False
        # At once, and not when `leave` comes to it: a checkpoint that is being made is not finished.
        self.files.is_closed = True
        self.mover.wake()

    async def leave(self) -> None:
        """Returns when nothing is written to its files any more."""
        await self.unload()

    async def tidy(self) -> None:
        """From time to time."""
        # On a full disk nothing new comes, so nothing has to go anywhere.
        if not self.is_loaded or self.is_lost or self.companion.log.context.is_full:
            return
        await self.files.spill(self.machine)
        if self.files.is_checkpoint_due(self.journal):
            await self.files.checkpoint(self.machine, self.journal)

    # What everybody needs

    def refusal(self) -> NotScheduled | None:
        """What is known to be in the way of a write. Asked before every decision: one that cannot be written costs the
        whole machine."""
        if not self.is_loaded:
            return self.unavailable
        refused = refuse_damaged(self.companion)
        if refused is None and self.is_lost:
            return LOST
        return refused or refuse_write(self.companion)

    @property
    def unavailable(self) -> NotScheduled:
        """What whoever asks is told while it is not loaded."""
        return RESIGNED if self._is_resigned else not_loaded(self.damage.reason)

    def decide(self, command: ScheduleCommand) -> Decision:
        """Decides and applies at once; whoever calls it has asked `refusal`, and writes `rows` for the records."""
        machine = self.machine
        decision = machine.decide(command, self._clock.now_ms())
        for record in decision.records:
            machine.apply(record)
        return decision

    def write(self, rows: Sequence[Row], *, producer: tuple[int, int] | None = None) -> None:
        if producer is None:
            self.journal.append(rows)
        else:
            self.journal.append(rows, producer=producer)

    async def settle(self, reply: object) -> ChangeOutcome:
        if not await self._is_settled():
            return RESIGNED if self._is_resigned else LOST
        assert isinstance(reply, Done | Refused | Accepted)
        if isinstance(reply, Refused):
            # Nothing was written for it.
            return self.refuse_look() or reply
        return Done() if isinstance(reply, Accepted) else reply

    def refuse_look(self) -> NotScheduled | None:
        """Why nobody is told what waits here: another node may have changed it by now. Asked at the reply."""
        return None if self.partition.may_look else UNSURE

    async def _is_settled(self) -> bool:
        """Everything written so far is durable, and it is still this schedule that counts."""
        return await self.journal.until_durable() and not self._is_resigned

    def message_id(self, origin: int) -> str:
        return write_scheduled_id(MessageId(self.partition.log.home.topic_id, self.partition.index, origin))

    @property
    def pending_count(self) -> int:
        return self.machine.pending_count

    def _topic_config(self) -> TopicConfig | None:
        return self._context.config_of(self.partition.log.home.topic_id)

    # New messages

    async def schedule(
        self,
        messages: Sequence[DelayedMessage],
        *,
        producer: ProducerBatch | None = None,
        is_transactional: bool = False,
    ) -> Scheduled | NotScheduled:
        """Durable when it returns. In the log, behind all that came before, at its first `await`."""
        assert producer is not None or not is_transactional, "a transaction is a producer's"
        refused = self.refusal() or (refuse_messages(messages, self._topic_config()) if producer is None else None)
        if refused is not None:
            return refused
        command = Schedule(
            position=self.journal.next_position,
            dues_ms=tuple(message.due_ms for message in messages),
            producer=producer,
            is_transactional=is_transactional,
        )
        decision = self.decide(command)
        # Those before the last `count` are here from an earlier attempt.
        repeated = len(messages) - len(decision.records)
        self._write_messages(decision.records, messages[repeated:], producer if is_transactional else None)
        self.mover.look()
        if not await self._is_settled():
            return RESIGNED if self._is_resigned else LOST
        origins = [command.position + place for place in range(len(decision.records))]
        return Scheduled(
            [NO_POSITION] * repeated + origins, [""] * repeated + [self.message_id(origin) for origin in origins]
        )

    def _write_messages(
        self, records: Sequence[ScheduleRecord], messages: Sequence[DelayedMessage], transaction: ProducerBatch | None
    ) -> None:
        rows: list[Row] = []
        near_ms = self._clock.now_ms() + CACHED_MS_MAX
        for record, each in zip(records, messages, strict=True):
            assert isinstance(record, ScheduledRow)
            message = Message(each.key, each.value, each.headers, each.written_ms)
            row = write_row(record, entry=entry_key(record.position, record.producer), message=message)
            rows.append(row)
            if record.due_ms < near_ms:
                self.reader.keep(record.position, row)
        if rows:
            producer = None if transaction is None else (transaction.producer_id, transaction.producer_epoch)
            self.write(rows, producer=producer)

    async def end_transaction(self, end: TransactionEnd) -> bool:
        """Durable in the schedule's log when it says True. Again: nothing happens, and it is True."""
        if self.refusal() is not None:
            return False
        decision = self.decide(EndTransaction(end.producer_id, end.producer_epoch, end.is_commit))
        if decision.records:
            self.journal.append_marker(end)
            self.mover.look()
        return await self._is_settled()

    # Named schedules: see `crons`

    async def define_cron(
        self,
        name: str,
        message: CronMessage,
        *,
        expression: str,
        zone: str = "UTC",
        missed: Missed = Missed.ONCE,
        version: int = 0,
    ) -> ChangeOutcome:
        refused = self.refusal() or refuse_messages(
            [DelayedMessage(0, message.key, message.value, message.headers)], self._topic_config()
        )
        if refused is not None:
            return refused
        command = DefineCron(self.journal.next_position, name, expression, zone, missed, version)
        reply = self._crons.define(command, message)
        self.mover.look()
        return await self.settle(reply)

    async def delete_cron(self, name: str) -> ChangeOutcome:
        refused = self.refusal()
        return refused if refused is not None else await self.settle(self._crons.delete(name))

    def crons(self) -> list[CronFacts]:
        return self._crons.facts(self._clock.now_ms())

    async def cron_message(self, name: str) -> CronMessage | NotScheduled | None:
        if not self.is_loaded:
            return self.unavailable
        found = await self._crons.message(name)
        return self.refuse_look() or found

    async def note_fired(self, name: str, fired_ms: int) -> ChangeOutcome:
        """Another partition fired it up to then."""
        refused = self.refusal()
        return refused if refused is not None else await self.settle(self._crons.note_fired(name, fired_ms))

    def place_of(self, name: str) -> CronPlace | None:
        return self._context.place_of(self.partition.log.home.topic_id, name)

    def fires(self, cron: StoredCron) -> bool:
        """Whether it makes messages: not where another partition may have the same one."""
        return may_fire(self.place_of(cron.name), self.partition.index, cron)

    @property
    def may_fire(self) -> bool:
        """All that it has."""
        return all(self.fires(cron) for cron in self.machine.crons())

    async def fire_crons(self) -> bool:
        return await self._crons.fire()
