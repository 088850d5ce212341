"""The schedule of one partition: the pure machine, its log, its files and its mover.

    schedule: decide ─► apply ─► rows ─► (durable) ─► reply
    release:  see `mover`

There is no `await` between deciding and applying, so commands never interleave, and rows are written in the order of
the decisions. When the log or a file is lost the machine is dropped, and built anew from what is on disk: `load`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.machine.damage import JournalDamage
from penstock.broker.machine.portions import JournalLostError, check_whole
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.crons import ScheduleCrons, find_zone
from penstock.broker.schedule.due_list import LISTED_AT_ONCE, LISTED_BYTES_MAX, DueList
from penstock.broker.schedule.files import SPILL_BYTES, ScheduleFiles
from penstock.broker.schedule.journal import ScheduleJournal
from penstock.broker.schedule.mover import MoverIds, MoverPace, ReleaseCounts, ScheduleMover, known_producers
from penstock.broker.schedule.reader import CACHED_MS_MAX, RowCache, RowReader
from penstock.broker.schedule.refusals import (
    LOST,
    not_loaded,
    refuse_damaged,
    refuse_messages,
    refuse_unreadable,
    refuse_write,
)
from penstock.broker.schedule.replay import replay_rows
from penstock.broker.schedule.values import (
    ChangeOutcome,
    CronFacts,
    CronMessage,
    DelayedMessage,
    DueCursor,
    NotScheduled,
    PendingMessage,
    PendingPage,
    Scheduled,
)
from penstock.domain.config.topic import TopicConfig
from penstock.domain.queue.receipt import MessageId, write_scheduled_id
from penstock.domain.schedule.commands import (
    Accepted,
    Cancel,
    Decision,
    DefineCron,
    Done,
    EndTransaction,
    Refused,
    Reschedule,
    Schedule,
    ScheduleCommand,
    ScheduleProblem,
)
from penstock.domain.schedule.machine import PartitionSchedule, ScheduleConfig
from penstock.domain.schedule.records import (
    NO_POSITION,
    Missed,
    ProducerBatch,
    ScheduleRecord,
    entry_key,
)
from penstock.domain.schedule.records import Scheduled as ScheduledRow
from penstock.domain.schedule.rows import Message, Row, read_message, write_row
from penstock.domain.transaction.end import TransactionEnd
from penstock.storage.files.buckets import BucketFiles

log = get_logger("schedules")

# Records of a replay that are applied before others may use the loop: some milliseconds.
REPLAYED_AT_ONCE: Final = 1_000


class ScheduleShell:
    def __init__(
        self,
        partition: PartitionShell,
        companion: PartitionShell,
        *,
        number: int,
        cache: RowCache,
        readers: Executor,
        producer_ids: MoverIds,
        pace: MoverPace,
        config_of: Callable[[], TopicConfig | None],
        clock: Clock,
        tasks: TaskSupervisor,
        schedule_config: ScheduleConfig | None = None,
    ) -> None:
        self.partition = partition
        self.companion = companion
        self.reader = RowReader(companion, cache, readers, number=number)
        self._config_of = config_of
        self._clock = clock
        self._tasks = tasks
        self._schedule_config = schedule_config
        self.machine = PartitionSchedule(schedule_config, zones=find_zone)
        self.journal = ScheduleJournal(companion, clock)
        self.files = self._make_files()
        self._readers = readers
        self._producer_ids = producer_ids
        self._pace = pace
        self.mover = self._make_mover(ReleaseCounts())
        self._running: asyncio.Task[None] | None = None
        self._crons = ScheduleCrons(self)
        self.is_loaded = False
        # Why it cannot be loaded before somebody repairs its log.
        self.damage = JournalDamage(companion)
        # Whether named schedules make messages. Not before it is known that no other partition has the same ones.
        self.may_fire = False
        # By the monotonic clock.
        self.loaded_ms = 0
        self._is_lost = False
        self.is_closed = False
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
        machine = PartitionSchedule(self._schedule_config, zones=find_zone)
        started_ms = self._clock.monotonic_ms()
        try:
            stored = await self.files.open(companion)
            start = companion.log_start
            if stored is not None:
                machine.apply(stored)
                start = max(start, stored.next_position)
            async for records in replay_rows(companion, start):
                await self._replay(machine, records)
        except OSError as error:
            raise JournalLostError(f"the files of the schedule of {companion.topic} cannot be read: {error}") from error
        if self.is_closed:
            return
        if self.files.is_closed:
            raise JournalLostError(f"the files of the schedule of {companion.topic} cannot be written")
        self.machine = machine
        self._producers_before = None
        self.journal = ScheduleJournal(companion, self._clock)
        self._crons = ScheduleCrons(self)
        self.mover = self._make_mover(self.mover.counts)
        self._is_lost = False
        self.may_fire = False
        self.loaded_ms = self._clock.monotonic_ms()
        self.is_loaded = True
        self._running = self._tasks.start(f"schedule of {self.partition.topic}", self.mover.run(machine))
        log.info(
            "schedule loaded",
            topic=self.partition.topic,
            partition=self.partition.index,
            pending=machine.pending_count,
            rows=companion.log.log_end - start,
            milliseconds=self._clock.monotonic_ms() - started_ms,
        )

    async def _replay(self, machine: PartitionSchedule, records: list[ScheduleRecord]) -> None:
        for place in range(0, len(records), REPLAYED_AT_ONCE):
            for record in records[place : place + REPLAYED_AT_ONCE]:
                machine.apply(record)
            await asyncio.sleep(0)
        await self.files.spill(machine, bytes_min=SPILL_BYTES)

    def _make_files(self) -> ScheduleFiles:
        home = self.companion.log.home
        files = BucketFiles(self.companion.log.context.files, home.directory)
        return ScheduleFiles(files, clock=self._clock, on_failure=self._on_failure, tasks=self._tasks)

    def _make_mover(self, counts: ReleaseCounts) -> ScheduleMover:
        """One for each machine: the one before may still wait for something."""
        return ScheduleMover(self, self._producer_ids, self._readers, clock=self._clock, pace=self._pace, counts=counts)

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
        return not_loaded(self.damage.reason)

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

    async def _settle(self, reply: object) -> ChangeOutcome:
        if not await self.journal.until_durable():
            return LOST
        assert isinstance(reply, Done | Refused | Accepted)
        return Done() if isinstance(reply, Accepted) else reply

    def message_id(self, origin: int) -> str:
        return write_scheduled_id(MessageId(self.partition.log.home.topic_id, self.partition.index, origin))

    @property
    def pending_count(self) -> int:
        return self.machine.pending_count

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
        refused = self.refusal() or (refuse_messages(messages, self._config_of()) if producer is None else None)
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
        if not await self.journal.until_durable():
            return LOST
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
        return await self.journal.until_durable()

    # Changes

    async def cancel(self, origin: int) -> ChangeOutcome:
        row = await self._row_of(origin)
        if not isinstance(row, Row):
            return row
        refused = self.refusal()
        if refused is not None:
            return refused
        decision = self.decide(Cancel(origin))
        if decision.records:
            self.write([write_row(record, entry=row.key) for record in decision.records])
        return await self._settle(decision.reply)

    async def reschedule(self, origin: int, due_ms: int) -> ChangeOutcome:
        """Its id stays what it was. A time that is past is now."""
        row = await self._row_of(origin)
        if not isinstance(row, Row):
            return row
        refused = self.refusal()
        if refused is not None:
            return refused
        record, message = read_message(row)
        message = msgspec.structs.replace(message, arrived_ms=message.arrived_ms or record.at_ms)
        decision = self.decide(Reschedule(self.journal.next_position, origin, due_ms))
        rows = [write_row(record, entry=row.key, message=message) for record in decision.records]
        if rows and isinstance(decision.reply, Accepted):
            if due_ms < self._clock.now_ms() + CACHED_MS_MAX:
                self.reader.keep(decision.reply.position, rows[0])
            self.write(rows)
            self.mover.look()
        return await self._settle(decision.reply)

    async def _row_of(self, origin: int) -> Row | Refused | NotScheduled:
        """The row of a message that waits: its key and the message itself stay what they are, whatever comes."""
        if not self.is_loaded:
            return self.unavailable
        position = self.machine.place_of(origin)
        if position is None:
            return Refused(ScheduleProblem.NOT_PENDING)
        if self.machine.is_being_released(origin):
            return Refused(ScheduleProblem.BEING_RELEASED)
        return await self._row_at(position) or refuse_unreadable(self.companion)

    async def _row_at(self, position: int) -> Row | None:
        if position >= self.companion.readable_end:
            await self.journal.until_durable()
        try:
            row = (await self.reader.rows([position])).get(position)
        except OSError:
            return None
        return None if row is None or row.value is None else row

    # Looking

    async def show(self, origin: int) -> PendingMessage | NotScheduled | None:
        if not self.is_loaded:
            return self.unavailable
        position = self.machine.place_of(origin)
        if position is None:
            return None
        row = await self._row_at(position)
        return refuse_unreadable(self.companion) if row is None else self.pending_message(position, row)

    def pending_message(self, position: int, row: Row) -> PendingMessage:
        record, message = read_message(row)
        assert isinstance(record, ScheduledRow)
        origin = record.origin if record.origin != NO_POSITION else position
        return PendingMessage(
            message_id=self.message_id(origin),
            topic=self.partition.topic,
            partition=self.partition.index,
            origin=origin,
            position=position,
            due_ms=record.due_ms,
            arrived_ms=message.arrived_ms or record.at_ms,
            written_ms=message.written_ms,
            key=message.key,
            value=message.value,
            headers=message.headers,
            cron=record.cron,
            is_being_released=self.machine.is_being_released(origin),
        )

    async def list_due(
        self, after: DueCursor | None, limit: int, *, bytes_max: int = LISTED_BYTES_MAX
    ) -> PendingPage | NotScheduled:
        if not self.is_loaded:
            return self.unavailable
        if self.companion.readable_end < self.journal.next_position and not await self.journal.until_durable():
            return LOST
        machine = self.machine
        due_list = DueList(machine, self.files, partition=self.partition.index)
        try:
            entries, cursor = await due_list.page(after, limit)
        except OSError:
            return refuse_unreadable(self.companion)
        if self.is_lost or not self.is_loaded or self.machine is not machine:
            # Files are gone for another reason than that their time came, and the page may lack what was in them.
            return LOST if self.is_loaded else self.unavailable
        messages: list[PendingMessage] = []
        first, count = 0, LISTED_AT_ONCE
        while first < len(entries):
            some = entries[first : first + count]
            first += len(some)
            try:
                rows = await self.reader.rows([position for _due_ms, position in some])
            except OSError:
                return refuse_unreadable(self.companion)
            if self.companion.log.damage is not None:
                # Some may be missing for no other reason: a page without them would look whole.
                return refuse_unreadable(self.companion)
            messages += [
                self.pending_message(position, row)
                for _due_ms, position in some
                if (row := rows.get(position)) is not None and row.value is not None
            ]
            size_bytes = sum(len(row.value or b"") for row in rows.values())
            bytes_max -= size_bytes
            if bytes_max <= 0 and first < len(entries):
                return PendingPage(messages, DueCursor(some[-1][0], self.partition.index, some[-1][1]))
            # As many as will fit, if they are as large as these.
            count = max(LISTED_AT_ONCE, bytes_max * len(some) // max(size_bytes, 1))
        return PendingPage(messages, cursor)

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
            [DelayedMessage(0, message.key, message.value, message.headers)], self._config_of()
        )
        if refused is not None:
            return refused
        command = DefineCron(self.journal.next_position, name, expression, zone, missed, version)
        reply = self._crons.define(command, message)
        self.mover.look()
        return await self._settle(reply)

    async def delete_cron(self, name: str) -> ChangeOutcome:
        refused = self.refusal()
        return refused if refused is not None else await self._settle(self._crons.delete(name))

    def crons(self) -> list[CronFacts]:
        return self._crons.facts(self._clock.now_ms())

    async def cron_message(self, name: str) -> CronMessage | NotScheduled | None:
        return await self._crons.message(name) if self.is_loaded else self.unavailable

    async def fire_crons(self) -> bool:
        return self.may_fire and await self._crons.fire()
