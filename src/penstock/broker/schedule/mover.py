"""Messages whose time has come, on their way from a schedule into the log of their partition: exactly once.

    wait ─► near files, crons ─► intent (journal) ─► batch in the partition's log ─► done, and the next intent (journal)
                                 └── its rows are read meanwhile

The rules are in `domain/schedule/release`; here are the alarm, the reads, the appends and the patience. A batch bears
the sequence of its intent, and only the mover writes with that producer's id: so the last sequence that the log knows
of it tells how much of an intent is there, whatever crashed in between, and the rest is written. That needs no batch
to be the same twice, so an intent may become several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from penstock.base.log_events import get_logger
from penstock.broker.machine.alarm import Alarm
from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.outcome import AppendRefused
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.context import ScheduleContext
from penstock.broker.schedule.files import ScheduleFiles
from penstock.broker.schedule.journal import ScheduleJournal
from penstock.broker.schedule.pace import INTENT_MS_MAX, ReleaseCounts
from penstock.broker.schedule.reader import RowReader
from penstock.broker.schedule.released import IntentPart, ReleasedPart, build_released
from penstock.broker.schedule.values import NotScheduled
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.codec.batch.rewrite import header_of
from penstock.domain.log.producer_sequence import SEQUENCE_MAX, ProducerState
from penstock.domain.queue.receipt import ScheduledIdWriter
from penstock.domain.schedule.commands import (
    Decision,
    Done,
    FinishMove,
    Refused,
    Release,
    ScheduleCommand,
    ScheduleProblem,
)
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import Ended, Move
from penstock.domain.schedule.rows import Row, write_row

log = get_logger("schedules")

RETRY_MS_MIN: Final = 100
RETRY_MS_MAX: Final = 1_000
# The longest sleep of a schedule that could do something, and is kept from it.
BLOCKED_MS: Final = 500
# More than this are decoded and put together in a thread; so are those that are compressed.
LOOP_COUNT_MAX: Final = 20


class MoverShell(Protocol):
    """The shell that a mover works for."""

    partition: PartitionShell
    companion: PartitionShell
    reader: RowReader
    machine: PartitionSchedule
    journal: ScheduleJournal
    files: ScheduleFiles
    is_loaded: bool

    @property
    def is_lost(self) -> bool: ...

    def refusal(self) -> NotScheduled | None: ...

    def decide(self, command: ScheduleCommand) -> Decision: ...

    def write(self, rows: Sequence[Row]) -> None: ...

    async def fire_crons(self) -> bool: ...


class ScheduleMover:
    def __init__(
        self,
        shell: MoverShell,
        context: ScheduleContext,
        leadership: Leadership,
        counts: ReleaseCounts,
    ) -> None:
        self._shell = shell
        self._producer_ids = context.producer_ids
        self._readers = context.site.readers
        self._clock = context.site.clock
        self._limits = context.limits
        self._leadership = leadership
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        self._alarm = Alarm(context.site.clock, self._wakeup.set)
        # If not it is at work, and will look before it rests.
        self._is_resting = False
        self._producer_id: int | None = None
        # By the monotonic clock.
        self._intended_ms = -INTENT_MS_MAX
        self._pace = context.pace
        self.counts = counts

    # Alarm

    def wake(self) -> None:
        self._wakeup.set()

    def look(self) -> None:
        """Something was added: it may be due before everything else."""
        if self._is_resting:
            self._alarm.set(self._shell.machine.next_deadline_ms(self._clock.now_ms()))

    async def _rest(self, machine: PartitionSchedule) -> None:
        """Until something is due, or was added that is due earlier. Who puts the clock on wakes everybody."""
        now_ms = self._clock.now_ms()
        deadline_ms = machine.next_deadline_ms(now_ms)
        is_blocked = self._shell.refusal() is not None
        if deadline_ms is not None and deadline_ms <= now_ms:
            # More to sort; or nothing can be written, and that will last.
            await asyncio.sleep(BLOCKED_MS / 1000 if is_blocked else 0.001)
            return
        await self._sleep_until(deadline_ms)

    async def _pause(self, machine: PartitionSchedule) -> None:
        """Named schedules cannot fire just now. Messages need not wait for them."""
        due_ms = machine.earliest_due_ms()
        wait_ms = BLOCKED_MS if due_ms is None else min(max(due_ms - self._clock.now_ms(), 1), BLOCKED_MS)
        await self._sleep_until(self._clock.now_ms() + wait_ms)

    async def _sleep_until(self, due_ms: int | None) -> None:
        self._wakeup.clear()
        self._alarm.set(due_ms)
        self._is_resting = True
        try:
            await self._wakeup.wait()
        finally:
            self._is_resting = False
            self._alarm.cancel()

    # Work

    async def run(self, machine: PartitionSchedule) -> None:
        """As long as the shell has this machine."""
        shell = self._shell
        retry_ms = RETRY_MS_MIN
        while shell.is_loaded and shell.machine is machine:
            if shell.is_lost:
                return
            # What is in doubt since a crash is done before anything else.
            move = machine.pending_move() or await self._next_move(machine)
            if move is None:
                await self._rest(machine)
            elif await self._try_to_carry_out(machine, move):
                retry_ms = RETRY_MS_MIN
            else:
                await asyncio.sleep(retry_ms / 1000)
                retry_ms = min(retry_ms * 2, RETRY_MS_MAX)

    async def _next_move(self, machine: PartitionSchedule) -> Move | None:
        shell = self._shell
        now_ms = self._clock.now_ms()
        deadline_ms = machine.next_deadline_ms(now_ms)
        if deadline_ms is None or deadline_ms > now_ms:
            if deadline_ms is not None and machine.is_throttled(now_ms):
                self.counts.throttled += 1
            return None
        shell.files.read_soon(machine, machine.open_near(now_ms), self.wake)
        is_blocked = machine.has_cron_due(now_ms) and not await shell.fire_crons()
        if shell.refusal() is not None or not machine.has_due(now_ms):
            if is_blocked:
                await self._pause(machine)
            return None
        producer_id = self._producer_id
        if producer_id is None:
            producer_id = await self._take_producer(machine)
        await self._gather()
        if producer_id is None or not self._may_write(machine):
            return None
        decision = shell.decide(Release(producer_id, 0))
        machine.sort_ahead(self._clock.now_ms())
        if decision.records:
            shell.write([write_row(record) for record in decision.records])
        elif isinstance(decision.reply, Refused) and decision.reply.problem is ScheduleProblem.PRODUCER_ID_USED:
            self._producer_id = None
        return machine.pending_move()

    async def _gather(self) -> None:
        """Lets more come due, if the last intent was a moment ago."""
        now_ms = self._clock.monotonic_ms()
        wait_ms = self._intended_ms + self._pace.interval_ms(id(self), now_ms) - now_ms
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)
        self._intended_ms = self._clock.monotonic_ms()

    async def _take_producer(self, machine: PartitionSchedule) -> int | None:
        """The one of the last batch, if the log knows it as it was left: else another."""
        last = machine.last_move()
        if last is not None and last.producer_epoch == 0 and self._written_count(last) == len(last.sources):
            self._producer_id = last.producer_id
            return last.producer_id
        try:
            self._producer_id = await self._producer_ids.take()
        except StoreUnavailableError as error:
            log.warning("no producer id to release with", error=str(error))
            await asyncio.sleep(BLOCKED_MS / 1000)
        return self._producer_id

    async def _try_to_carry_out(self, machine: PartitionSchedule, move: Move) -> bool:
        """False: try again later."""
        try:
            async with self._pace.turn(len(move.sources)):
                return await self._carry_out(machine, move)
        except OSError as error:
            partition = self._shell.partition
            log.warning(
                "rows of messages cannot be read", topic=partition.topic, partition=partition.index, error=str(error)
            )
            return False

    async def _carry_out(self, machine: PartitionSchedule, move: Move) -> bool:
        shell = self._shell
        portion_count = self._portion_count()
        keys: dict[int, bytes] = {}
        dues_ms: list[int] = []
        while len(dues_ms) < len(move.sources):
            first = len(dues_ms)
            sources = move.sources[first : first + portion_count]
            # Put together meanwhile; but the intent must be durable before anything of it is in the log.
            part, is_intended = await asyncio.gather(self._prepare(move, first, sources), shell.journal.until_durable())
            if part is not None and part.missing:
                # Too young to be read a moment ago; or lost for good.
                part = await self._prepare(move, first, sources)
            if part is None:
                # Larger than most.
                portion_count = max(len(sources) // 4, 1)
                continue
            if not is_intended or not self._may_write(machine) or not self._append(move, part):
                return False
            keys.update(zip(sources, part.keys, strict=True))
            dues_ms += part.dues_ms
        if not await self._is_written(move) or not self._may_write(machine):
            return False
        self.counts.note(dues_ms, self._clock.now_ms())
        return self._finish(move, keys)

    def _may_write(self, machine: PartitionSchedule) -> bool:
        shell = self._shell
        return shell.machine is machine and not shell.partition.is_closed and shell.refusal() is None

    def _portion_count(self) -> int:
        companion_log = self._shell.companion.log
        row_bytes = max(companion_log.size_bytes // max(companion_log.log_end - companion_log.log_start, 1), 1)
        return max(self._limits.portion_bytes // row_bytes, 1)

    async def _prepare(self, move: Move, first: int, sources: Sequence[int]) -> ReleasedPart | None:
        """None: they are too large to be in memory together."""
        partition = self._shell.partition
        rows = await self._shell.reader.some_rows(sources, bytes_max=self._limits.portion_bytes_max)
        if rows is None:
            return None
        # What is there already, from before a crash or a full disk, is not built once more.
        skipped = self._written_count(move) - first
        ids = ScheduledIdWriter(partition.log.home.topic_id, partition.index)
        now_ms, retention_ms = self._clock.now_ms(), partition.log.config.retention_ms
        # Retention is not to take what nobody could have read: it counts from the release on then.
        oldest_ms = 0 if retention_ms < 0 else now_ms - retention_ms // 2
        codec = partition.recompression
        part = IntentPart(move, first, sources, rows, skipped, ids, now_ms, oldest_ms, codec)
        if len(sources) <= LOOP_COUNT_MAX and codec is None:
            return build_released(part)
        return await self._loop.run_in_executor(self._readers, build_released, part)

    def _written_count(self, move: Move) -> int:
        state = self._shell.partition.log.producers.state_of(move.producer_id)
        return 0 if state is None else _written_count(state, move)

    def _append(self, move: Move, part: ReleasedPart) -> bool:
        partition = self._shell.partition
        for batch in part.batches:
            # The disk may have failed since they were put together, and the log have come back with less.
            if header_of(batch).base_sequence != (move.base_sequence + self._written_count(move)) & SEQUENCE_MAX:
                return False
            outcome = partition.append_released(batch, self._leadership)
            if isinstance(outcome, AppendRefused):
                log.warning(
                    "messages are due and wait", topic=partition.topic, partition=partition.index, why=outcome.reason
                )
                return False
        return True

    async def _is_written(self, move: Move) -> bool:
        """All of it, durably, also where the topic promises less: the schedule forgets them."""
        partition = self._shell.partition
        if partition.log.failure is not None:
            return False
        commitment = partition.commit_unless_kept()
        if commitment is not None and not await commitment.kept():
            return False
        return self._written_count(move) == len(move.sources)

    def _finish(self, move: Move, keys: Mapping[int, bytes]) -> bool:
        shell = self._shell
        if shell.refusal() is not None:
            return False
        decision = shell.decide(FinishMove(move.batch))
        shell.write(
            [
                write_row(record, entry=keys[record.position]) if isinstance(record, Ended) else write_row(record)
                for record in decision.records
            ]
        )
        shell.reader.drop(move.sources)
        return isinstance(decision.reply, Done)


def known_producers(partition: PartitionShell) -> frozenset[int]:
    """One of them may be the mover of the life before, and has to be remembered until it is known which."""
    return frozenset(producer_id for producer_id, _state in partition.log.producers.states())


def _written_count(state: ProducerState, move: Move) -> int:
    """How many messages of the intent are in the partition's log."""
    if state.epoch != move.producer_epoch:
        return 0
    ahead = (state.batches[-1][1] - move.base_sequence) & SEQUENCE_MAX
    return ahead + 1 if ahead < len(move.sources) else 0
