"""What a queue remembers, and how records change it: live and at recovery alike, without looking at settings or clock.

    cursors     by lane: messages at or above it have not been looked at
    live        messages below a cursor that are not finished; all others below it are
    keys        the order of those, with ordering by key
    expiries    the time to live of those that have one
    move        the mover's last intent

A lane gets a cursor when a message of it is first seen. Until then the default lane's cursor is also its own: the
caller mentions every lane of which the default lane's cursor is about to pass a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from penstock.domain.queue.keys import KeyOrder
from penstock.domain.queue.lanes import DEFAULT_LANE
from penstock.domain.queue.live import Hold, LiveSpans, Span
from penstock.domain.queue.records import (
    Closed,
    Died,
    Finished,
    Leased,
    Move,
    MoveDone,
    MoveDropped,
    MoveIntended,
    Opened,
    Passed,
    Paused,
    QueueRecord,
    Renewed,
    Resumed,
    Returned,
    StartMoved,
    Stored,
    StoredHold,
    StoredSpan,
    Take,
    Trimmed,
)
from penstock.domain.queue.values import Cause, Failure, HoldKind, Range


class QueueState:
    __slots__ = (
        "cursors",
        "delivered_count",
        "expiries",
        "is_moving",
        "is_open",
        "is_paused",
        "keys",
        "live",
        "log_start",
        "move",
        "next_number",
        "offered",
        "record_count",
    )

    def __init__(self) -> None:
        self._clear()
        # Since the last snapshot.
        self.record_count = 0
        # What `offer` has made of it, until anything changes.
        self.offered: Stored | None = None

    def _clear(self) -> None:
        self.is_open = False
        self.is_paused = False
        self.log_start = 0
        self.next_number = 1
        # How many messages, for the lanes' turns.
        self.delivered_count = 0
        self.cursors: dict[int, int] = {DEFAULT_LANE: 0}
        self.live = LiveSpans()
        self.keys = KeyOrder()
        self.expiries: dict[int, int] = {}
        self.move: Move | None = None
        self.is_moving = False

    # ------------------------------------------------------------------ views

    def cursor(self, lane: int) -> int:
        cursor = self.cursors.get(lane)
        return self.cursors[DEFAULT_LANE] if cursor is None else cursor

    def finished_below(self) -> int:
        """Every message below it is finished: Kafka's share-partition start offset."""
        cursor = min(self.cursors.values())
        first = self.live.first_offset()
        return cursor if first is None else min(first, cursor)

    # ------------------------------------------------------------------ records

    def apply(self, record: QueueRecord) -> None:
        """Never refuses."""
        if record is self.offered:
            # It is so already.
            self.record_count = 0
            return
        self.offered = None
        self.record_count += 1
        match record:
            case Leased():
                self._apply_leased(record)
            case Finished():
                self._forget(record.ranges)
            case Returned():
                self._apply_returned(record)
            case Renewed():
                self._apply_renewed(record)
            case Died():
                self._apply_died(record)
            case Passed():
                self._apply_takes(record.takes, None, record.at_ms)
            case MoveIntended():
                self.move = record.move
                self.is_moving = True
            case MoveDone() | MoveDropped():
                self._apply_move_end(record)
            case Paused():
                self.is_paused = True
            case Resumed():
                self.is_paused = False
            case Trimmed():
                self._apply_trimmed(record)
            case StartMoved():
                self._apply_start(record.start_offset)
            case Opened():
                self._clear()
                self.is_open = True
                self.next_number = record.number
                self.cursors = {DEFAULT_LANE: record.start_offset}
            case Closed():
                # Should it be opened again at once, its deliveries have new names.
                number = self.next_number
                self._clear()
                self.next_number = number
            case Stored():
                self._restore(record)
            case _:
                assert_never(record)

    def _apply_leased(self, record: Leased) -> None:
        hold = Hold(
            HoldKind.LEASED,
            number=record.number,
            consumer=record.consumer,
            until_ms=record.until_ms,
            lease_ms=record.until_ms - record.at_ms,
        )
        live = self.live
        for first, last in record.again:
            for piece in live.carve(first, last):
                live.add(
                    piece.first, piece.last, count=piece.count + 1, hold=hold, failure=piece.failure, lane=piece.lane
                )
                self.delivered_count += piece.size
        self._apply_takes(record.takes, hold, record.at_ms)
        self.next_number = record.number + 1

    def _apply_takes(self, takes: Iterable[Take], hold: Hold | None, at_ms: int) -> None:
        live = self.live
        for take in takes:
            lane = take.lane
            self.cursors[lane] = take.upto
            for first, last in take.ranges:
                assert hold is not None
                live.add(first, last, count=1, hold=hold, failure=None, lane=lane)
                self.delivered_count += last - first + 1
            if take.keys or take.blocked:
                self._enter_keys(take)
            if take.dying:
                failure = Failure(at_ms, at_ms, Cause.TIME_TO_LIVE_EXPIRED)
                dying = Hold(HoldKind.DYING)
                for first, last in take.dying:
                    live.add(first, last, count=0, hold=dying, failure=failure, lane=lane)
            if take.expiries:
                self.expiries.update(take.expiries)

    def _enter_keys(self, take: Take) -> None:
        offsets = (offset for first, last in take.ranges for offset in range(first, last + 1))
        free = {
            offset
            for offset, key in sorted([*zip(offsets, take.keys, strict=True), *take.blocked])
            if self.keys.enter(offset, key)
        }
        if take.blocked:
            hold = Hold(HoldKind.BLOCKED)
            for offset, _key in take.blocked:
                # The message before it may have ended in the same decision, by a record just before this one.
                own_hold = Hold(HoldKind.WAITING) if offset in free else hold
                self.live.add(offset, offset, count=0, hold=own_hold, failure=None, lane=take.lane)

    def _apply_returned(self, record: Returned) -> None:
        live = self.live
        holds: dict[int, Hold] = {}
        failures: dict[Failure | None, Failure | None] = {}
        for first, last in record.ranges:
            for piece in live.carve(first, last):
                number = piece.hold.number
                if number not in holds:
                    holds[number] = Hold(HoldKind.WAITING, number=number, until_ms=record.available_ms)
                if piece.failure not in failures:
                    failures[piece.failure] = _failed(piece.failure, record) if record.is_counted else piece.failure
                live.add(
                    piece.first,
                    piece.last,
                    count=piece.count if record.is_counted else max(piece.count - 1, 0),
                    hold=holds[number],
                    failure=failures[piece.failure],
                    lane=piece.lane,
                )

    def _apply_renewed(self, record: Renewed) -> None:
        live = self.live
        holds: dict[int, Hold] = {}
        for first, last in record.ranges:
            for piece in live.carve(first, last):
                old = piece.hold
                if old.number not in holds:
                    holds[old.number] = Hold(
                        HoldKind.LEASED,
                        number=old.number,
                        consumer=old.consumer,
                        until_ms=record.until_ms,
                        lease_ms=record.until_ms - record.at_ms,
                    )
                live.add(
                    piece.first,
                    piece.last,
                    count=piece.count,
                    hold=holds[old.number],
                    failure=piece.failure,
                    lane=piece.lane,
                )

    def _apply_died(self, record: Died) -> None:
        hold = Hold(HoldKind.DYING)
        for first, last in record.ranges:
            for piece in self.live.carve(first, last):
                self.live.add(
                    piece.first,
                    piece.last,
                    count=piece.count,
                    hold=hold,
                    failure=_failed(piece.failure, record),
                    lane=piece.lane,
                )
                self._settled(piece)

    def _apply_move_end(self, record: MoveDone | MoveDropped) -> None:
        if self.move is None or not self.is_moving or self.move.batch != record.batch:
            return
        self.is_moving = False
        if isinstance(record, MoveDone):
            self._forget(self.move.sources)
        else:
            # The sequence numbers were not used; the next move gets them again.
            self.move = msgspec.structs.replace(self.move, sources=())

    def _apply_trimmed(self, record: Trimmed) -> None:
        """What is with a consumer stays until it comes back; the dying have been promised to the dead letters."""
        self.log_start = max(self.log_start, record.log_start)
        for lane, cursor in self.cursors.items():
            self.cursors[lane] = max(cursor, self.log_start)
        first = self.live.first_offset()
        if first is None or first >= self.log_start:
            return
        # The blocked ones from the last to the first: none of them must get its turn only to be dropped.
        for piece in reversed(self.live.pieces(first, self.log_start - 1)):
            if piece.hold.kind in (HoldKind.WAITING, HoldKind.BLOCKED):
                self._forget(((piece.first, piece.last),))

    def _apply_start(self, start_offset: int) -> None:
        dying = [span for span in self.live if span.hold.kind is HoldKind.DYING]
        self.live = LiveSpans()
        self.keys = KeyOrder()
        self.expiries = {}
        hold = Hold(HoldKind.DYING)
        for span in dying:
            self.live.add(span.first, span.last, count=span.count, hold=hold, failure=span.failure, lane=span.lane)
        self.cursors = {DEFAULT_LANE: start_offset}

    # ------------------------------------------------------------------ the end of messages

    def _forget(self, ranges: Iterable[Range]) -> None:
        carve = self.live.carve
        has_more = bool(self.keys or self.expiries)
        for first, last in ranges:
            pieces = carve(first, last)
            if has_more:
                for piece in pieces:
                    self._settled(piece)

    def _settled(self, piece: Span) -> None:
        """No consumer gets it any more: its time to live is of no interest, and the next message of its key may go."""
        if self.expiries:
            for offset in range(piece.first, piece.last + 1):
                self.expiries.pop(offset, None)
        if not self.keys:
            return
        for offset in range(piece.first, piece.last + 1):
            successor = self.keys.leave(offset)
            if successor is None:
                continue
            for blocked in self.live.carve(successor, successor):
                hold = Hold(HoldKind.WAITING)
                self.live.add(successor, successor, count=0, hold=hold, failure=None, lane=blocked.lane)

    # ------------------------------------------------------------------ snapshot

    def offer(self) -> Stored:
        """For the journal: applying it before anything else is without effect, and without cost."""
        self.offered = self.store()
        return self.offered

    def store(self) -> Stored:
        holds: dict[Hold, int] = {}
        failures: dict[Failure, int] = {}
        spans: list[StoredSpan] = []
        for span in self.live:
            failure = -1 if span.failure is None else failures.setdefault(span.failure, len(failures))
            hold = holds.setdefault(span.hold, len(holds))
            spans.append(StoredSpan(span.first, span.last, span.count, hold, failure, span.lane))
        return Stored(
            is_open=self.is_open,
            is_paused=self.is_paused,
            log_start=self.log_start,
            next_number=self.next_number,
            delivered_count=self.delivered_count,
            cursors=tuple(sorted(self.cursors.items())),
            holds=tuple(
                StoredHold(int(hold.kind), hold.number, hold.consumer, hold.until_ms, hold.lease_ms) for hold in holds
            ),
            failures=tuple(failures),
            spans=tuple(spans),
            keys=self.keys.items(),
            expiries=tuple(sorted(self.expiries.items())),
            move=self.move,
            is_moving=self.is_moving,
        )

    def _restore(self, record: Stored) -> None:
        self._clear()
        self.record_count = 0
        self.is_open = record.is_open
        self.is_paused = record.is_paused
        self.log_start = record.log_start
        self.next_number = record.next_number
        self.delivered_count = record.delivered_count
        self.cursors = dict(record.cursors)
        holds = [
            Hold(
                HoldKind(hold.kind),
                number=hold.number,
                consumer=hold.consumer,
                until_ms=hold.until_ms,
                lease_ms=hold.lease_ms,
            )
            for hold in record.holds
        ]
        for span in record.spans:
            self.live.add(
                span.first,
                span.last,
                count=span.count,
                hold=holds[span.hold],
                failure=None if span.failure < 0 else record.failures[span.failure],
                lane=span.lane,
            )
        for offset, key in record.keys:
            self.keys.enter(offset, key)
        self.expiries = dict(record.expiries)
        self.move = record.move
        self.is_moving = record.is_moving


def _failed(before: Failure | None, record: Returned | Died) -> Failure:
    first_ms = record.at_ms if before is None else before.first_ms
    text = record.text or ("" if before is None else before.text)
    return Failure(first_ms, record.at_ms, record.cause, text)
