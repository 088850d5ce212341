"""A queue over one partition of a topic: per-message leases, retries and dead letters on an ordinary log.

One machine for each partition and group, beside the partition's leader. It serves Kafka's share groups, SQS, HTTP and
the rest: doors differ in their words, not in their rules. `decide` says what should happen and `apply` makes it so,
live and at recovery alike; neither waits for anything. What the caller owes:

- Apply the records of a decision before the next `decide`, and append them in that order. Only when they, and all
  before them, are durable: give the reply and do the effects. A decision without records waits as well, for it may
  have seen records that are not durable yet.
- An append that failed: drop the machine, and build it anew from its journal.
- Before a `Receive`: read the log from the lanes' cursors (`wanted`) and say what is there. Afterwards read what is
  delivered again; of messages that are no longer there, say so (`Act.GAP`).
- One alarm for `next_deadline_ms`, then `TimePassed`; it may ring for nothing, and again at once.
- After a start: apply the journal from the queue's last `Stored` on, then do `pending_move`, if there is one, and if
  anything is `dying` then that.
- Every so many records, and when a journal must lose its beginning: `Snapshot` (see `ledger`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, assert_never

import msgspec

from penstock.domain.queue import dead_letter
from penstock.domain.queue.commands import (
    BeginMove,
    Close,
    ConsumerGone,
    Decision,
    Done,
    DropMove,
    FinishMove,
    MoveStart,
    Open,
    Pause,
    QueueCommand,
    QueueProblem,
    Receive,
    Refused,
    Resume,
    Settle,
    Snapshot,
    TakeOver,
    TimePassed,
    TrimLog,
    WakeReceivers,
)
from penstock.domain.queue.dead_letter import MOVE_COUNT_MAX, DeadLetter
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.receive import decide_receive
from penstock.domain.queue.records import (
    Closed,
    Move,
    Opened,
    Paused,
    QueueRecord,
    Resumed,
    StartMoved,
    Stored,
    Trimmed,
)
from penstock.domain.queue.settle import decide_gone, decide_settle, decide_time
from penstock.domain.queue.state import QueueState
from penstock.domain.queue.takeover import decide_takeover
from penstock.domain.queue.values import Failure, HoldKind, QueueConfig, Range

_DONE: Final = Done()
_WAKE: Final = (WakeReceivers(),)
# The numbers of deliveries begin at the time of opening in 1/1024 ms. A queue that is deleted and made again under
# the same name counts on from there, so that no old receipt fits: for that it would have to deliver a million times
# a second.
_NUMBER_BITS: Final = 10


class Wanted(msgspec.Struct, frozen=True):
    """Where the caller should look before a `Receive`."""

    # How many messages the consumer may get at most, from the log or again. 0: do not look.
    count: int
    # Lanes and their cursors. A lane that is not here begins at the default lane's.
    cursors: tuple[tuple[int, int], ...]
    # So many come back without looking.
    ready_count: int


class QueueStats(msgspec.Struct, frozen=True):
    is_paused: bool
    finished_below: int
    cursors: tuple[tuple[int, int], ...]
    leased_count: int
    waiting_count: int
    blocked_count: int
    dying_count: int
    span_count: int
    consumers: tuple[tuple[str, int], ...]


class MessageView(msgspec.Struct, frozen=True):
    """What the queue knows of one message that is in flight."""

    kind: HoldKind
    delivery_count: int
    lane: int
    number: int
    consumer: str
    # Leased: the deadline. Waiting: not before.
    until_ms: int
    expires_ms: int | None
    failure: Failure | None


class Queue:
    __slots__ = ("_chance", "_state", "config")

    def __init__(self, config: QueueConfig | None = None, *, chance: Callable[[], float] | None = None) -> None:
        # May be replaced at any time.
        self.config = config or QueueConfig()
        self._chance = chance or _no_chance
        self._state = QueueState()

    def decide(self, command: QueueCommand, now_ms: int) -> Decision:
        state, config = self._state, self.config
        if not state.is_open and not isinstance(command, Open | Snapshot | TimePassed):
            return Decision((), Refused(QueueProblem.NOT_OPEN))
        match command:
            case Receive():
                return decide_receive(state, config, command, now_ms)
            case Settle():
                return decide_settle(state, config, command, now_ms, self._chance)
            case TimePassed():
                return decide_time(state, config, now_ms, self._chance)
            case TakeOver():
                return decide_takeover(state, config, now_ms)
            case ConsumerGone():
                return decide_gone(state, config, command, now_ms)
            case BeginMove():
                return dead_letter.decide_begin(state, command, now_ms)
            case FinishMove():
                return dead_letter.decide_finish(state, command, now_ms)
            case DropMove():
                return dead_letter.decide_drop(state, command, now_ms)
            case Snapshot():
                return Decision((state.offer(),), _DONE)
            case Open() | Close() | MoveStart() | TrimLog() | Pause() | Resume():
                return self._decide_admin(command, now_ms)
            case _:
                assert_never(command)

    def _decide_admin(self, command: Open | Close | MoveStart | TrimLog | Pause | Resume, now_ms: int) -> Decision:
        state = self._state
        match command:
            case Open(start_offset):
                if state.is_open:
                    return Decision((), _DONE)
                number = max(now_ms << _NUMBER_BITS, state.next_number)
                return Decision((Opened(start_offset, number, now_ms),), _DONE)
            case Close():
                return Decision((Closed(now_ms),), _DONE)
            case MoveStart(start_offset):
                return Decision((StartMoved(max(start_offset, state.log_start), now_ms),), _DONE, _WAKE)
            case TrimLog(log_start):
                if log_start <= state.finished_below():
                    return Decision((), _DONE)
                # With ordering by key, others may go now.
                return Decision((Trimmed(log_start, now_ms),), _DONE, _WAKE)
            case Pause():
                return Decision(() if state.is_paused else (Paused(now_ms),), _DONE)
            case Resume():
                return Decision((Resumed(now_ms),), _DONE, _WAKE) if state.is_paused else Decision((), _DONE)
            case _:
                assert_never(command)

    def apply(self, record: QueueRecord) -> None:
        """Never refuses."""
        self._state.apply(record)

    def next_deadline_ms(self) -> int | None:
        return self._state.live.next_deadline_ms()

    def snapshot(self) -> Stored:
        return self._state.store()

    # ------------------------------------------------------------------ views

    @property
    def is_open(self) -> bool:
        return self._state.is_open

    @property
    def finished_below(self) -> int:
        """Every message below it is finished. With `queue.delete.acked` the log may begin where all queues say so."""
        return self._state.finished_below()

    @property
    def seen_below(self) -> int:
        """No message from there on was ever delivered, of any lane."""
        return max(self._state.cursors.values(), default=0)

    @property
    def records_since_snapshot(self) -> int:
        return self._state.record_count

    @property
    def in_flight_count(self) -> int:
        return self._state.live.live_count

    def ready_ranges(self, count_max: int) -> list[Range]:
        """What comes back first, lane by lane: so many messages, as they are now."""
        ranges: list[Range] = []
        live = self._state.live
        for lane in sorted(live.ready, reverse=True):
            for first in live.ready[lane]:
                if count_max <= 0:
                    return ranges
                last = min(live.at(first).last, first + count_max - 1)
                ranges.append((first, last))
                count_max -= last - first + 1
        return ranges

    def holds_any(self, consumer: str) -> bool:
        """Whether messages are with that consumer."""
        return self._state.live.by_consumer.get(consumer, 0) > 0

    @property
    def span_count(self) -> int:
        """What it costs: memory, and the size of a snapshot."""
        return len(self._state.live)

    def cursor(self, lane: int = DEFAULT_LANE) -> int:
        return self._state.cursor(lane)

    def wanted(self, consumer: str, count_max: int, now_ms: int) -> Wanted:
        state, config = self._state, self.config
        cursors = tuple(sorted(state.cursors.items()))
        room = min(count_max, config.in_flight_per_consumer_max - state.live.by_consumer.get(consumer, 0))
        if state.is_paused or not state.is_open or room <= 0:
            return Wanted(0, cursors, 0)
        live = state.live
        live.ripen(now_ms)
        if not live.ready:
            return Wanted(room, cursors, 0)
        ready = sum(live.at(first).size for firsts in live.ready.values() for first in firsts[:room])
        return Wanted(room, cursors, min(ready, room))

    def has_gone_back(self, cursors: Iterable[tuple[int, int]]) -> bool:
        """Since `wanted` the start was moved: what was found from those cursors on says nothing any more about lanes
        that had one of their own, and must not be told."""
        own = self._state.cursors
        return any(own.get(lane, -1) < cursor for lane, cursor in cursors)

    def pending_move(self) -> Move | None:
        """Intended, and not known to be done: to be appended (again)."""
        return self._state.move if self._state.is_moving else None

    def last_move(self) -> Move | None:
        """Done or not: the next one to the same place goes on with its producer id."""
        return self._state.move

    def dying(self, count_max: int = MOVE_COUNT_MAX) -> list[DeadLetter]:
        return dead_letter.dying(self._state, count_max=count_max)

    def letters_of(self, move: Move) -> list[DeadLetter]:
        return dead_letter.letters_of(self._state, move)

    def look_up(self, offset: int) -> MessageView | None:
        """None: finished, if it lies below its lane's cursor, and never seen otherwise."""
        span = self._state.live.find(offset)
        if span is None:
            return None
        hold = span.hold
        return MessageView(
            kind=hold.kind,
            delivery_count=span.count,
            lane=span.lane,
            number=hold.number,
            consumer=hold.consumer,
            until_ms=hold.until_ms,
            expires_ms=self._state.expiries.get(offset),
            failure=span.failure,
        )

    def blocker_of(self, offset: int) -> int | None:
        """With ordering by key: the message that this one waits for."""
        return self._state.keys.head_of(offset)

    def stats(self) -> QueueStats:
        state = self._state
        counts = state.live.counts
        return QueueStats(
            is_paused=state.is_paused,
            finished_below=state.finished_below(),
            cursors=tuple(sorted(state.cursors.items())),
            leased_count=counts[HoldKind.LEASED],
            waiting_count=counts[HoldKind.WAITING],
            blocked_count=counts[HoldKind.BLOCKED],
            dying_count=counts[HoldKind.DYING],
            span_count=len(state.live),
            consumers=tuple(sorted(state.live.by_consumer.items())),
        )


def deletable_below(queues: Iterable[Queue]) -> int | None:
    """Where the log of a topic with `queue.delete.acked` may begin: below what every queue of the partition has
    finished. None without queues: then nobody has finished anything."""
    return min((queue.finished_below for queue in queues if queue.is_open), default=None)


def _no_chance() -> float:
    return 0.0
