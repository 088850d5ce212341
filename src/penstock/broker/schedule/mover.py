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
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

import msgspec

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.broker.machine.alarm import Alarm
from penstock.broker.partition.outcome import AppendRefused
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.files import ScheduleFiles
from penstock.broker.schedule.journal import ScheduleJournal
from penstock.broker.schedule.reader import RowReader
from penstock.broker.schedule.values import NotScheduled
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.codec.batch.records import Record, build_batch
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
from penstock.domain.schedule.headers import MESSAGE_ID_HEADER, released_headers
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import NO_POSITION, Ended, Move, Scheduled, entry_key
from penstock.domain.schedule.rows import Row, read_message, write_row

log = get_logger("schedules")

RETRY_MS_MIN: Final = 100
RETRY_MS_MAX: Final = 1_000
# Between two intents of one mover: a stream of messages goes in batches, not one by one. Where many are at work there
# are not more intents for it, but larger ones: each costs half a millisecond, whatever is in it.
INTENT_MS_MIN: Final = 5
INTENT_MS_MAX: Final = 30
INTENT_MS_EACH: Final = 2
PACE_WINDOW_MS: Final = 100
# The longest sleep of a schedule that could do something, and is kept from it.
BLOCKED_MS: Final = 500
# Of the batches that are written, but for a message that is larger by itself.
BATCH_BYTES_MAX: Final = 900_000
# Messages of one intent that are in memory together.
PORTION_BYTES: Final = 8 * 1024 * 1024
# If they are larger than rows are on average, which is all that is known before.
PORTION_BYTES_MAX: Final = 4 * PORTION_BYTES
# Of messages: an intent that makes the loop and the threads work for tens of milliseconds. After a night of downtime
# every partition has them, and whoever else uses the node would stand behind all of them; so they take turns.
HEAVY_COUNT: Final = 300
HEAVY_AT_ONCE_MAX: Final = 2
# More than this are decoded and put together in a thread.
LOOP_COUNT_MAX: Final = 20
# Of a message that its own log has lost: says so.
LOST_HEADER: Final = "penstock-schedule-lost"
# Of what a record takes in a batch beside key, value and headers.
_RECORD_BYTES: Final = 40
LATENESS_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000)


class MoverIds(Protocol):
    async def take(self) -> int: ...


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


class MoverPace:
    """How many movers of a node are at work, and how long each should wait for more to do."""

    __slots__ = ("_before_count", "_heavy", "_movers", "_since_ms")

    def __init__(self) -> None:
        self._heavy = asyncio.Semaphore(HEAVY_AT_ONCE_MAX)
        self._since_ms = 0
        # In the window that is open, and in the one before it.
        self._movers: set[int] = set()
        self._before_count = 0

    def interval_ms(self, mover: int, now_ms: int) -> int:
        if now_ms - self._since_ms >= PACE_WINDOW_MS:
            self._before_count = len(self._movers) if now_ms - self._since_ms < 2 * PACE_WINDOW_MS else 0
            self._movers.clear()
            self._since_ms = now_ms
        self._movers.add(mover)
        count = max(self._before_count, len(self._movers))
        return min(max(INTENT_MS_MIN, count * INTENT_MS_EACH), INTENT_MS_MAX)

    def turn(self, count: int) -> AbstractAsyncContextManager[None]:
        """To be held while so many messages are moved."""
        return self._heavy if count >= HEAVY_COUNT else nullcontext()


class ReleaseCounts:
    """Since the start."""

    __slots__ = ("by_lateness", "lateness_ms", "released", "throttled")

    def __init__(self) -> None:
        self.released = 0
        # How often something had to wait because too much was released just then.
        self.throttled = 0
        self.by_lateness = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.lateness_ms = 0

    def note(self, dues_ms: Sequence[int], now_ms: int) -> None:
        self.released += len(dues_ms)
        for due_ms in dues_ms:
            late_ms = max(now_ms - due_ms, 0)
            self.lateness_ms += late_ms
            # A bucket holds what is as late as its bound.
            self.by_lateness[bisect_right(LATENESS_BOUNDS_MS, late_ms - 1)] += 1


class ReleasedPart(msgspec.Struct, frozen=True):
    """Some messages of an intent, put together."""

    batches: list[bytearray]
    # Of the rows, and when they were due: of all of them, also those that were skipped.
    keys: list[bytes]
    dues_ms: list[int]
    # Places whose rows were not to be had.
    missing: list[int]


class ScheduleMover:
    def __init__(
        self,
        shell: MoverShell,
        producer_ids: MoverIds,
        readers: Executor,
        *,
        clock: Clock,
        pace: MoverPace,
        counts: ReleaseCounts,
    ) -> None:
        self._shell = shell
        self._producer_ids = producer_ids
        self._readers = readers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        self._alarm = Alarm(clock, self._wakeup.set)
        # If not it is at work, and will look before it rests.
        self._is_resting = False
        self._producer_id: int | None = None
        # By the monotonic clock.
        self._intended_ms = -INTENT_MS_MAX
        self._pace = pace
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
        return max(PORTION_BYTES // row_bytes, 1)

    async def _prepare(self, move: Move, first: int, sources: Sequence[int]) -> ReleasedPart | None:
        """None: they are too large to be in memory together."""
        partition = self._shell.partition
        rows = await self._shell.reader.some_rows(sources, bytes_max=PORTION_BYTES_MAX)
        if rows is None:
            return None
        # What is there already, from before a crash or a full disk, is not built once more.
        skipped = self._written_count(move) - first
        ids = ScheduledIdWriter(partition.log.home.topic_id, partition.index)
        now_ms, retention_ms = self._clock.now_ms(), partition.log.config.retention_ms
        # Retention is not to take what nobody could have read: it counts from the release on then.
        oldest_ms = 0 if retention_ms < 0 else now_ms - retention_ms // 2
        part = _Part(move, first, sources, rows, skipped, ids, now_ms, oldest_ms)
        if len(sources) <= LOOP_COUNT_MAX:
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
            outcome = partition.append_released(batch)
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


class _Part(msgspec.Struct, frozen=True):
    """What is needed to put some messages of an intent together, in a thread."""

    move: Move
    # The number of the first in the intent.
    first: int
    sources: Sequence[int]
    rows: Mapping[int, Row]
    # So many of the first ones are in the partition's log.
    skipped: int
    ids: ScheduledIdWriter
    now_ms: int
    # What was due earlier is dated with its release.
    oldest_ms: int


def build_released(part: _Part) -> ReleasedPart:
    """Their number never changes: a message that the schedule's log has lost is there, and says so."""
    built = ReleasedPart([], [], [], [position for position in part.sources if position not in part.rows])
    records: list[Record] = []
    size_bytes = 0
    for place, position in enumerate(part.sources):
        key, due_ms, record = _released(position, part)
        built.keys.append(key)
        built.dues_ms.append(due_ms)
        if place < part.skipped:
            continue
        record_bytes = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
        record_bytes += sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
        if records and size_bytes + record_bytes > BATCH_BYTES_MAX:
            built.batches.append(_batch_of(part, place - len(records), records))
            records, size_bytes = [], 0
        records.append(record)
        size_bytes += record_bytes
    if records:
        built.batches.append(_batch_of(part, len(part.sources) - len(records), records))
    return built


def _batch_of(part: _Part, place: int, records: Sequence[Record]) -> bytearray:
    move = part.move
    return build_batch(
        records,
        producer_id=move.producer_id,
        producer_epoch=move.producer_epoch,
        base_sequence=(move.base_sequence + part.first + place) & SEQUENCE_MAX,
    )


def _released(position: int, part: _Part) -> tuple[bytes, int, Record]:
    """The key of its row, when it was due, and the message as its consumers see it."""
    row = part.rows.get(position)
    if row is None or row.value is None:
        headers = ((MESSAGE_ID_HEADER, part.ids.write(position).encode()), (LOST_HEADER, b"%d" % position))
        return entry_key(position), part.now_ms, Record(value=None, timestamp_ms=part.now_ms, headers=headers)
    record, message = read_message(row)
    assert isinstance(record, Scheduled)
    origin = position if record.origin == NO_POSITION else record.origin
    own = released_headers(
        message.headers,
        message_id=part.ids.write(origin),
        arrived_ms=message.arrived_ms or record.at_ms,
        written_ms=message.written_ms,
    )
    timestamp_ms = record.due_ms if record.due_ms >= part.oldest_ms else part.now_ms
    return row.key, record.due_ms, Record(message.value, message.key, timestamp_ms, own)
