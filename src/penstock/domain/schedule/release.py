"""The mover: messages that are due go from the schedule into their partition's log, exactly once, whatever crashes.

    pending ──► intended ──► appended to the log ──► ended
                (journal)    (producer id, sequence)  (journal)

1. The intent is journalled: a batch number, the sources in the order of their due times, and the first sequence number.
2. When that is durable, the caller appends one record for each source, in one batch with that sequence.
3. When that is durable, `FinishMove`: each source gets its tombstone, and after them the batch is done.

There is one intent at a time, so after a crash at any point only the last one can be in doubt. It is appended once
more: if the log has the sequence already it answers "duplicate", and either way it is done. That holds because a
batch never changes. The tombstones come before the end of the batch: if some of them are lost, the batch is done
again; the other way round, a schedule that is rebuilt from its log alone would find the messages pending once more.

Whoever cancels has won if that is decided before the intent, and is told that it is too late otherwise.
"""

from __future__ import annotations

from typing import Final

from penstock.domain.schedule.commands import (
    AppendMove,
    Decision,
    Done,
    FinishMove,
    Refused,
    Release,
    ScheduleProblem,
)
from penstock.domain.schedule.records import End, Ended, Move, MoveDone, MoveIntended
from penstock.domain.schedule.state import ScheduleState

# One append: at 1 KB a message about 1 MB, which is Kafka's default for the largest batch.
MOVE_COUNT_MAX: Final = 1_000
# Kafka's sequence numbers are those of a signed 32-bit number, and begin again at 0.
_SEQUENCE_COUNT: Final = 1 << 31


class Throttle:
    """At most so many in a second, in any stretch of time but for a burst of 50 ms.

    After a night of downtime everything is due at once; consumers and disk are to live through the morning.
    """

    __slots__ = ("_busy_until_us", "_cost_us", "_room_us", "_step_us")

    def __init__(self, rate: int) -> None:
        self._cost_us = 1_000_000 / rate
        # Not one by one: what comes together is one batch.
        self._step_us = max(10_000.0, self._cost_us)
        self._room_us = max(50_000.0, self._step_us)
        self._busy_until_us = 0.0

    def allowance(self, now_ms: int) -> int:
        room_us = min(self._room_us, now_ms * 1000 + self._room_us - self._busy(now_ms))
        # A hair more, or what is exactly enough would not be.
        return int(room_us / self._cost_us + 1e-6) if room_us + 1e-3 >= self._step_us else 0

    def take(self, now_ms: int, count: int) -> None:
        self._busy_until_us = max(self._busy(now_ms), now_ms * 1000) + count * self._cost_us

    def free_ms(self, now_ms: int) -> int:
        """When there is room again."""
        return -int((self._room_us - self._step_us - self._busy(now_ms)) // 1000)

    def _busy(self, now_ms: int) -> float:
        # A clock that was put back must not stop everything until it has caught up.
        is_stale = self._busy_until_us > now_ms * 1000 + 2 * self._room_us
        return now_ms * 1000 if is_stale else self._busy_until_us


def decide_release(state: ScheduleState, command: Release, now_ms: int, count_max: int) -> tuple[Decision, int]:
    """And how many entries of the wheel that makes."""
    if state.is_moving:
        return Decision((), Refused(ScheduleProblem.MOVE_UNDER_WAY)), 0
    sequence = _next_sequence(state.move, command)
    if sequence is None:
        return Decision((), Refused(ScheduleProblem.PRODUCER_ID_USED)), 0
    known_until_ms = state.buckets.known_until_ms()
    before_ms = now_ms + 1 if known_until_ms is None else min(now_ms + 1, known_until_ms)
    found, looked = state.buckets.wheel.peek(before_ms, count_max=count_max, is_live=state.is_pending)
    if not found:
        return Decision((), Done()), 0
    move = Move(
        batch=1 if state.move is None else state.move.batch + 1,
        producer_id=command.producer_id,
        producer_epoch=command.producer_epoch,
        base_sequence=sequence,
        # An entry may stand twice.
        sources=tuple(dict.fromkeys(found)),
    )
    return Decision((MoveIntended(move, now_ms),), Done(), (AppendMove(move),)), looked


def _next_sequence(last: Move | None, command: Release) -> int | None:
    if last is None or last.producer_id != command.producer_id:
        return 0
    if last.producer_epoch != command.producer_epoch:
        return None
    return (last.base_sequence + len(last.sources)) % _SEQUENCE_COUNT


def decide_finish(state: ScheduleState, command: FinishMove, now_ms: int) -> Decision:
    if not state.is_moving or state.move is None or state.move.batch != command.batch:
        return Decision((), Refused(ScheduleProblem.NO_SUCH_MOVE))
    origin_of = state.origin_of
    ends = [Ended(position, origin_of(position), End.RELEASED, now_ms) for position in state.move.sources]
    return Decision((*ends, MoveDone(state.move, now_ms)), Done())
