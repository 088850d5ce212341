"""The schedule of one partition: messages that wait for their time, durable at once, released exactly once.

One machine for each data partition, beside its leader. `decide` says what should happen and `apply` makes it so, live
and at recovery alike; neither waits for anything. A message is named by its place, the offset of its row in the
schedule's own log (see `records`); when it is due is kept in bucket files (see `buckets`).
What the caller owes:

- Apply the records of a decision before the next `decide`, and append one row for each, in that order, as one batch.
  Only when they, and all before them, are durable: give the reply and do the effects. An append that failed: drop
  the machine, and build it anew.
- One alarm for `next_deadline_ms`, at most a second away, for the wall clock may be put forward. Then, if it is due:
  `open_near` and the files it names, `FireCrons`, and `Release` unless a batch is under way.
- `take_spill` when there is much of it, and write it behind what the files have. `checkpoint` every so often.
- At a start: cut every bucket file to what the last `Stored` says and delete all others; apply it, then all rows of
  the log from its `next_position` on. Then do `pending_move`, if there is one. Without a `Stored`, or with a file
  shorter than it says: no files, and the whole log.

Clocks. A message is never released while the wall clock is before its due time, whatever it showed earlier. A delay is
turned into a due time when the message comes, so a clock that is put forward shortens it, and one that is put back
makes it longer. What has become due at once, by a clock or after downtime, is released in the order of the due times
and no faster than `release_rate_max`.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from itertools import islice
from typing import Final, assert_never

import msgspec

from penstock.domain.schedule.commands import (
    Accepted,
    BucketName,
    BucketPart,
    BucketRead,
    BucketWrite,
    Cancel,
    Checkpoint,
    Decision,
    DefineCron,
    DeleteCron,
    Done,
    EndTransaction,
    FinishMove,
    FireCrons,
    NoteFired,
    Refused,
    Release,
    Reschedule,
    Schedule,
    ScheduleCommand,
    ScheduleProblem,
)
from penstock.domain.schedule.cron_book import Zones
from penstock.domain.schedule.records import (
    CronDefined,
    CronDeleted,
    CronFired,
    End,
    Ended,
    Move,
    MoveIntended,
    Scheduled,
    ScheduleRecord,
    StoredCron,
    TransactionEnded,
)
from penstock.domain.schedule.release import MOVE_COUNT_MAX, Throttle, decide_finish, decide_release
from penstock.domain.schedule.state import ScheduleState

_DONE: Final = Done()
SORTED_AHEAD_MS: Final = 1_000
# Less than a millisecond, and with a hundred calls in a second more than is ever due in one.
SORTED_AT_ONCE: Final = 500


class ScheduleConfig(msgspec.Struct, frozen=True):
    # In a second: twice what a busy partition has, and an hour of it is caught up with in one.
    release_rate_max: int = 20_000
    batch_count_max: int = MOVE_COUNT_MAX


class _Offer(msgspec.Struct, frozen=True):
    """What `Release` has found: taken off the wheel when its record is applied."""

    record: MoveIntended
    entry_count: int


class PartitionSchedule:
    __slots__ = ("_offer", "_state", "_throttle", "config")

    def __init__(self, config: ScheduleConfig | None = None, *, zones: Zones | None = None) -> None:
        self.config = config or ScheduleConfig()
        self._state = ScheduleState(zones or _only_utc)
        self._throttle = Throttle(self.config.release_rate_max)
        self._offer: _Offer | None = None

    def decide(self, command: ScheduleCommand, now_ms: int) -> Decision:
        state = self._state
        match command:
            case Schedule():
                return self._decide_schedule(command, now_ms)
            case Release():
                return self._decide_release(command, now_ms)
            case FinishMove():
                return decide_finish(state, command, now_ms)
            case Cancel() | Reschedule():
                return self._decide_change(command, now_ms)
            case EndTransaction(producer_id, producer_epoch, is_commit):
                if producer_id not in state.held:
                    return Decision((), _DONE)
                return Decision((TransactionEnded(producer_id, producer_epoch, is_commit, now_ms),), _DONE)
            case DefineCron():
                return self._decide_define(command, now_ms)
            case DeleteCron(name):
                if state.crons.get(name) is None:
                    return Decision((), Refused(ScheduleProblem.NO_SUCH_CRON, name))
                return Decision((CronDeleted(name, now_ms),), _DONE)
            case FireCrons():
                return self._decide_fire(command, now_ms)
            case NoteFired(name, fired_ms):
                if state.crons.get(name) is None:
                    return Decision((), Refused(ScheduleProblem.NO_SUCH_CRON, name))
                return Decision((CronFired(name, fired_ms, now_ms),), _DONE)
            case _:
                assert_never(command)

    def _decide_schedule(self, command: Schedule, now_ms: int) -> Decision:
        self._check_position(command.position)
        producer = command.producer
        repeated = 0 if producer is None else self._state.repeated_count(producer)
        records: list[ScheduleRecord] = []
        for index, due_ms in enumerate(command.dues_ms[repeated:], repeated):
            records.append(
                Scheduled(
                    position=command.position + len(records),
                    due_ms=due_ms,
                    at_ms=now_ms,
                    producer=None if producer is None else msgspec.structs.replace(producer, index=index),
                    is_transactional=command.is_transactional,
                )
            )
        return Decision(tuple(records), Accepted(len(records), command.position))

    def _decide_change(self, command: Cancel | Reschedule, now_ms: int) -> Decision:
        state = self._state
        position = state.place_of(command.origin)
        if position in state.moving:
            return Decision((), Refused(ScheduleProblem.BEING_RELEASED))
        if not state.is_pending(position):
            return Decision((), Refused(ScheduleProblem.NOT_PENDING))
        if isinstance(command, Cancel):
            return Decision((Ended(position, state.origin_of(position), End.CANCELLED, now_ms),), _DONE)
        self._check_position(command.position)
        origin = state.origin_of(position)
        record = Scheduled(command.position, command.due_ms, now_ms, origin=origin, replaces=position)
        return Decision((record,), Accepted(1, command.position))

    def _decide_release(self, command: Release, now_ms: int) -> Decision:
        allowance = min(self._throttle.allowance(now_ms), self.config.batch_count_max)
        if not allowance:
            return Decision((), _DONE)
        decision, entry_count = decide_release(self._state, command, now_ms, allowance)
        if decision.records and isinstance(decision.records[0], MoveIntended):
            self._offer = _Offer(decision.records[0], entry_count)
        return decision

    def _decide_define(self, command: DefineCron, now_ms: int) -> Decision:
        crons = self._state.crons
        self._check_position(command.position)
        problem = crons.problem_of(command.expression)
        if problem is not None:
            return Decision((), Refused(ScheduleProblem.BAD_EXPRESSION, problem))
        if not crons.is_zone(command.zone):
            return Decision((), Refused(ScheduleProblem.UNKNOWN_ZONE, command.zone))
        if not crons.is_ever_due(command.expression, command.zone, now_ms):
            return Decision((), Refused(ScheduleProblem.NEVER_DUE, command.expression))
        before = crons.get(command.name)
        record = CronDefined(
            name=command.name,
            position=command.position,
            expression=command.expression,
            zone=command.zone,
            missed=command.missed,
            fired_ms=now_ms if before is None else max(before.fired_ms, now_ms),
            at_ms=now_ms,
            version=command.version if before is None else max(before.version, command.version),
        )
        return Decision((record,), _DONE)

    def _decide_fire(self, command: FireCrons, now_ms: int) -> Decision:
        self._check_position(command.position)
        records: list[ScheduleRecord] = []
        for name, due_ms in self._state.crons.due(now_ms, held=command.held):
            # The message first: it says itself that the time is fired, and must not be lost behind a record that does.
            records.append(Scheduled(command.position + len(records), due_ms, now_ms, cron=name))
            records.append(CronFired(name, due_ms, now_ms))
        return Decision(tuple(records), _DONE)

    def _check_position(self, position: int) -> None:
        assert position > self._state.last_position, f"{position} is in use, up to {self._state.last_position}"

    def apply(self, record: ScheduleRecord) -> None:
        """Never refuses."""
        offer, self._offer = self._offer, None
        self._state.apply(record)
        if offer is not None and offer.record is record:
            self._state.buckets.wheel.drop(offer.entry_count)
            self._throttle.take(offer.record.at_ms, len(offer.record.move.sources))

    # ------------------------------------------------------------------ time and files

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """May be past, and may ring for nothing."""
        buckets = self._state.buckets
        deadlines = [buckets.next_opening_ms(), self._state.crons.next_deadline_ms()]
        earliest_ms = buckets.wheel.earliest_ms()
        known_until_ms = buckets.known_until_ms()
        is_known = known_until_ms is None or (earliest_ms is not None and earliest_ms < known_until_ms)
        if earliest_ms is not None and is_known and not self._state.is_moving:
            deadlines.append(max(earliest_ms, self._throttle.free_ms(now_ms)))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def open_near(self, now_ms: int) -> list[BucketRead]:
        """Files to be read now, and handed to `load`. While they are read, nothing of their spans is released."""
        return self._state.buckets.open_near(now_ms)

    def load(self, name: BucketName, entries: bytes | memoryview, *, is_last: bool, now_ms: int) -> None:
        """Whole entries of a file; some ten thousand at a time, so that nobody else waits for long."""
        self._state.buckets.load(name, entries, is_last=is_last, now_ms=now_ms)

    def sort_ahead(self, now_ms: int) -> None:
        """Now and then, by whoever releases much: some of what is due in a second is put in order already."""
        self._state.buckets.wheel.spread_ahead(now_ms + SORTED_AHEAD_MS, SORTED_AT_ONCE)

    @property
    def spill_bytes(self) -> int:
        return self._state.buckets.spill_bytes

    def take_spill(self, bytes_max: int | None = None) -> tuple[BucketWrite, ...]:
        """All of it, or so much: some ten milliseconds' work for a megabyte."""
        return self._state.buckets.take_spill(bytes_max)

    def checkpoint(self, position: int) -> Checkpoint:
        """`position` is the end of the schedule's log: every row before it has been applied, and has to be durable
        before `stored` is."""
        writes = self._state.buckets.take_spill()
        return Checkpoint(writes, self._state.store(position))

    # ------------------------------------------------------------------ views

    @property
    def pending_count(self) -> int:
        return self._state.pending.count

    @property
    def held_count(self) -> int:
        return sum(len(held.entries) for held in self._state.held.values())

    @property
    def near_count(self) -> int:
        """What costs memory."""
        return self._state.buckets.wheel.count

    @property
    def needed_from(self) -> int | None:
        """The schedule's log must not lose what is at or above it, but for what compaction takes. None: all may go."""
        held = [position for held in self._state.held.values() for position, _due_ms in held.entries]
        crons = [cron.position for cron in self._state.crons.all()]
        pending = self._state.pending.first()
        return min([*held, *crons, *([] if pending is None else [pending])], default=None)

    def pending_count_since(self, position: int) -> int:
        return self._state.pending.count_since(position)

    def pending_since(self, position: int, count_max: int) -> list[int]:
        """Places of messages that wait, in the order in which they came. Their rows tell the rest."""
        return list(islice(self._state.pending.since(position), count_max))

    def place_of(self, origin: int) -> int | None:
        """Where the row of the message of that id is; None if it is not pending."""
        position = self._state.place_of(origin)
        return position if self._state.is_pending(position) else None

    def is_held(self, origin: int) -> bool:
        """Its transaction is open."""
        return any(position == origin for held in self._state.held.values() for position, _due_ms in held.entries)

    def is_being_released(self, origin: int) -> bool:
        return self._state.place_of(origin) in self._state.moving

    def pending_move(self) -> Move | None:
        """Intended, and not known to be done: to be appended (again)."""
        return self._state.move if self._state.is_moving else None

    def last_move(self) -> Move | None:
        """Done or not: the next one goes on with its producer id."""
        return self._state.move

    def crons(self) -> list[StoredCron]:
        return self._state.crons.all()

    def cron(self, name: str) -> StoredCron | None:
        return self._state.crons.get(name)

    def next_due_ms(self, cron: str, now_ms: int) -> int | None:
        return self._state.crons.next_due_ms(cron, now_ms)

    def is_pending(self, position: int) -> bool:
        """Whether a message waits at that place."""
        return self._state.is_pending(position)

    def has_due(self, now_ms: int) -> bool:
        """Whether `Release` may find something."""
        earliest_ms = self._state.buckets.wheel.earliest_ms()
        return earliest_ms is not None and earliest_ms <= now_ms

    def has_cron_due(self, now_ms: int) -> bool:
        """Whether `FireCrons` may find something."""
        deadline_ms = self._state.crons.next_deadline_ms()
        return deadline_ms is not None and deadline_ms <= now_ms

    def is_throttled(self, now_ms: int) -> bool:
        """Something is due, and has to wait for no other reason than that too much was released just now."""
        earliest_ms = self._state.buckets.wheel.earliest_ms()
        return earliest_ms is not None and earliest_ms <= now_ms < self._throttle.free_ms(now_ms)

    def earliest_due_ms(self) -> int | None:
        """When the next message is due, as far as that is known without reading: it may be the beginning of its span,
        and the message may have ended."""
        buckets = self._state.buckets
        times = [buckets.wheel.earliest_ms(), buckets.known_until_ms()]
        return min((time for time in times if time is not None), default=None) if self.pending_count else None

    def parts(self, after_ms: int) -> list[BucketPart]:
        """Everything that is due at or after then lies in one of these: for lists in the order of due times."""
        return self._state.buckets.parts(after_ms)

    def spans(self) -> list[tuple[int, int, int]]:
        """How many entries there are in which stretch of time: beginning, end, count. Ended ones count until then."""
        return self._state.buckets.counts()


def _only_utc(name: str) -> tzinfo | None:
    return UTC if name == "UTC" else None
