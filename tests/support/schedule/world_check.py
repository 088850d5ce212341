"""What everybody around a schedule may rely on, and a second, plain schedule to hold the real one against.

`Model` is the simplest thing that could be right: a dictionary of what waits, made from the journal's records alone.
`Book` is what people outside were told, and what they may conclude from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.domain.schedule.cron_book import GRACE_MS
from penstock.domain.schedule.records import (
    CronDefined,
    CronDeleted,
    CronFired,
    Ended,
    Missed,
    Move,
    MoveDone,
    MoveIntended,
    Scheduled,
    ScheduleRecord,
    TransactionEnded,
)

MINUTE_MS: Final = 60_000


class InvariantBrokenError(Exception):
    def __init__(self, invariant: str, detail: object) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


NEVER_EARLY = "nothing is released before its time"
ONCE = "nothing is released twice"
NOT_LOST = "everything that was accepted is released, or cancelled"
CANCELLED = "who was told that it is cancelled never sees it"
TOO_LATE = "who was told that it is too late sees it"
DUE_ORDER = "what is due is released in the order of its times"
RATE = "no more than so many are released in a second"
COUNT = "the count is that of what waits"
SAME_STATE = "a restart changes nothing"
PINNED = "what is needed stays in the log"
IN_TIME = "the alarm is set for the next one that is due"
SEQUENCE = "the mover's batches follow one another"
TRANSACTIONS = "a message of a transaction waits for its commit"
CRON = "every time of a schedule is fired once"
FILES = "a file holds what the last checkpoint says"
BOUNDED = "memory is that of what is near"


def check(invariant: str, is_true: bool, detail: object) -> None:
    if not is_true:
        raise InvariantBrokenError(invariant, detail)


@dataclass(slots=True)
class Model:
    """Place and due time of everything that waits."""

    pending: dict[int, int] = field(default_factory=dict)
    held: dict[int, tuple[int, dict[int, int]]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    move: Move | None = None
    is_moving: bool = False
    # By name: the place of the definition, the last time that was fired, and what becomes of missed ones.
    crons: dict[str, tuple[int, int, Missed]] = field(default_factory=dict)

    def apply(self, record: ScheduleRecord) -> None:
        match record:
            case Scheduled():
                self._apply_scheduled(record)
            case Ended():
                self.pending.pop(record.position, None)
            case TransactionEnded():
                epoch, entries = self.held.get(record.producer_id, (0, {}))
                if epoch <= record.producer_epoch:
                    self.held.pop(record.producer_id, None)
                    if record.is_commit:
                        self.pending |= entries
            case MoveIntended():
                self.move, self.is_moving = record.move, True
            case MoveDone():
                for position in record.move.sources:
                    self.pending.pop(position, None)
                self.move, self.is_moving = record.move, False
            case CronDefined():
                before = self.crons.get(record.name)
                fired_ms = record.at_ms if before is None else max(before[1], record.at_ms)
                check(CRON, fired_ms == record.fired_ms, record)
                self.crons[record.name] = (record.position, fired_ms, record.missed)
            case CronDeleted():
                self.crons.pop(record.name, None)
            case CronFired():
                self._fired(record.name, record.due_ms)
            case _:
                raise AssertionError(record)

    def _apply_scheduled(self, record: Scheduled) -> None:
        if record.is_transactional and record.producer is not None:
            epoch, entries = self.held.get(record.producer.producer_id, (-1, {}))
            if epoch < record.producer.producer_epoch:
                entries = {}
            entries[record.position] = record.due_ms
            self.held[record.producer.producer_id] = (record.producer.producer_epoch, entries)
            return
        if record.replaces >= 0:
            self.pending.pop(record.replaces, None)
            self.places[record.origin] = record.position
        if record.cron:
            self._fired(record.cron, record.due_ms)
        self.pending[record.position] = record.due_ms

    def _fired(self, name: str, due_ms: int) -> None:
        if name in self.crons:
            position, fired_ms, missed = self.crons[name]
            self.crons[name] = (position, max(fired_ms, due_ms), missed)

    def needed(self) -> list[int]:
        held = [position for _epoch, entries in self.held.values() for position in entries]
        return [*self.pending, *held, *(position for position, _fired_ms, _missed in self.crons.values())]

    def check_fired(self, record: Scheduled, now_ms: int) -> None:
        """Every schedule of these worlds is due every minute."""
        _position, fired_ms, missed = self.crons[record.cron]
        due_ms, fresh_ms = record.due_ms, now_ms - GRACE_MS
        check(CRON, not due_ms % MINUTE_MS and fired_ms < due_ms <= now_ms, f"{record} after {fired_ms} at {now_ms}")
        if missed is Missed.ALL or due_ms >= fresh_ms:
            start_ms = fired_ms if missed is Missed.ALL else max(fired_ms, fresh_ms - 1)
            check(CRON, due_ms == (start_ms // MINUTE_MS + 1) * MINUTE_MS, f"{record} after {fired_ms} at {now_ms}")
        else:
            is_last = missed is Missed.ONCE and due_ms + MINUTE_MS >= fresh_ms
            check(CRON, is_last, f"{record} was missed, and the policy is {missed}, at {now_ms}")

    def check_none_left(self, now_ms: int) -> None:
        for name, (_position, fired_ms, missed) in self.crons.items():
            start_ms = fired_ms if missed is Missed.ALL else max(fired_ms, now_ms - GRACE_MS - 1)
            check(CRON, (start_ms // MINUTE_MS + 1) * MINUTE_MS > now_ms, f"{name} was last fired at {fired_ms}")


@dataclass(slots=True)
class Told:
    """One message, as its sender knows it."""

    name: str
    # Its id, as soon as it is told.
    origin: int | None = None
    is_accepted: bool = False
    is_cancelled: bool = False
    is_too_late: bool = False
    # Its transaction was aborted, or it is not known to be committed.
    is_aborted: bool = False
    is_uncommitted: bool = False
    # A cancellation is asked for, and nobody knows what became of it.
    is_maybe_cancelled: bool = False


@dataclass(slots=True)
class Book:
    messages: dict[str, Told] = field(default_factory=dict)
    # What came out, in order: name and due time.
    released: list[tuple[str, int]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def release(self, name: str, due_ms: int) -> None:
        check(ONCE, name not in self.seen, f"{name} at {due_ms}, and before at {self.seen.get(name)}")
        told = self.messages.get(name)
        if told is not None:
            check(CANCELLED, not told.is_cancelled, told)
            check(TRANSACTIONS, not told.is_aborted and not told.is_uncommitted, told)
        self.seen[name] = due_ms
        self.released.append((name, due_ms))

    def forget(self, count: int) -> None:
        """The log has lost its end, which nobody had been told of."""
        for name, _due_ms in self.released[len(self.released) - count :]:
            del self.seen[name]
        del self.released[len(self.released) - count :]

    def check_ends(self) -> None:
        for name, told in sorted(self.messages.items()):
            is_out = name in self.seen
            if told.is_too_late:
                check(TOO_LATE, is_out, told)
            may_be_missing = told.is_cancelled or told.is_maybe_cancelled or told.is_aborted or told.is_uncommitted
            if told.is_accepted and not may_be_missing:
                check(NOT_LOST, is_out, told)
