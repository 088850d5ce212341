"""The messages of a queue that are not finished, as spans of neighbours with the same fate.

A batch that is received and accepted as a whole is one span on its way, whatever its size; a message with a fate of its
own is a span of one. Spans are found through blocks of 1,024 offsets, and none crosses the border of a block, so
that a change costs the same whether a hundred messages are in flight or a million.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

import msgspec

from penstock.domain.queue.values import Failure, HoldKind

_BLOCK_BITS: Final = 10
_BLOCK_MASK: Final = (1 << _BLOCK_BITS) - 1
# Alarms of spans that are gone are left where they are until there are so many more of them than of others.
_STALE_MAX: Final = 1_000


class Hold:
    """What a span is kept for. Spans of one delivery share one, so its deadline is one alarm."""

    __slots__ = ("consumer", "firsts", "has_alarm", "kind", "lease_ms", "number", "until_ms")

    def __init__(
        self, kind: HoldKind, *, number: int = 0, consumer: str = "", until_ms: int = 0, lease_ms: int = 0
    ) -> None:
        self.kind = kind
        # The delivery: of a span that waits, the last one.
        self.number = number
        self.consumer = consumer
        # Leased: the deadline. Waiting: not before, and 0 is at once.
        self.until_ms = until_ms
        # Leased: for how long it was, or was last renewed. 0: nobody has written it down.
        self.lease_ms = lease_ms
        self.has_alarm = False
        # Where its spans begin.
        self.firsts: set[int] = set()

    def __lt__(self, other: Hold) -> bool:
        return self.number < other.number


class Span(msgspec.Struct, frozen=True, gc=False):
    first: int
    last: int
    # How often it was delivered, with the delivery that is under way.
    count: int
    hold: Hold
    failure: Failure | None
    lane: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class LiveSpans:
    __slots__ = (
        "_blocks",
        "_delayed",
        "_firsts",
        "_lease_alarms",
        "_spans",
        "by_consumer",
        "counts",
        "leases",
        "live_count",
        "ready",
    )

    def __init__(self) -> None:
        self._spans: dict[int, Span] = {}
        # The beginnings of the spans of a block; and the blocks that have any, in order.
        self._firsts: dict[int, list[int]] = {}
        self._blocks: list[int] = []
        # How many messages, by kind of hold, and in all.
        self.counts = [0, 0, 0, 0]
        self.live_count = 0
        self.by_consumer: dict[str, int] = {}
        # An ordered set.
        self.leases: dict[Hold, None] = {}
        self._lease_alarms: list[tuple[int, Hold]] = []
        # Beginnings of spans that may be delivered now, by lane, in order; and of those that wait for their time.
        self.ready: dict[int, list[int]] = {}
        self._delayed: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[Span]:
        """In the order of the offsets."""
        for block in self._blocks:
            for first in self._firsts[block]:
                yield self._spans[first]

    # ------------------------------------------------------------------ looking

    def find(self, offset: int) -> Span | None:
        firsts = self._firsts.get(offset >> _BLOCK_BITS)
        if firsts is None:
            return None
        place = bisect_right(firsts, offset)
        if not place:
            return None
        span = self._spans[firsts[place - 1]]
        return span if span.last >= offset else None

    def at(self, first: int) -> Span:
        return self._spans[first]

    def first_offset(self) -> int | None:
        return self._firsts[self._blocks[0]][0] if self._blocks else None

    def pieces(self, first: int, last: int) -> list[Span]:
        """What is kept of a range, cut to it, in order."""
        span = self.find(first)
        if span is not None and span.last >= last:
            return [span if span.first == first and span.last == last else _cut(span, first, last)]
        found: list[Span] = []
        first_block, last_block = first >> _BLOCK_BITS, last >> _BLOCK_BITS
        if last_block - first_block < len(self._blocks):
            blocks = [block for block in range(first_block, last_block + 1) if block in self._firsts]
        else:
            blocks = self._blocks[bisect_left(self._blocks, first_block) : bisect_right(self._blocks, last_block)]
        for block in blocks:
            firsts = self._firsts[block]
            for place in range(max(bisect_right(firsts, first) - 1, 0), len(firsts)):
                span = self._spans[firsts[place]]
                if span.first > last:
                    break
                if span.last >= first:
                    found.append(_cut(span, max(first, span.first), min(last, span.last)))
        return found

    # ------------------------------------------------------------------ changing

    def add(self, first: int, last: int, *, count: int, hold: Hold, failure: Failure | None, lane: int) -> None:
        """Nothing of the range may be kept already."""
        while first <= last:
            end = min(last, first | _BLOCK_MASK)
            self._insert(Span(first, end, count, hold, failure, lane))
            first = end + 1

    def carve(self, first: int, last: int) -> list[Span]:
        """Takes out a range; what is left of spans that reach beyond it stays as it was."""
        pieces = self.pieces(first, last)
        for piece in pieces:
            if self._spans.get(piece.first) is piece:
                self._remove(piece)
                continue
            whole = self.find(piece.first)
            assert whole is not None
            self._remove(whole)
            if whole.first < piece.first:
                self._insert(_cut(whole, whole.first, piece.first - 1))
            if whole.last > piece.last:
                self._insert(_cut(whole, piece.last + 1, whole.last))
        return pieces

    def _insert(self, span: Span) -> None:
        first, hold = span.first, span.hold
        size = span.last - first + 1
        block = first >> _BLOCK_BITS
        firsts = self._firsts.get(block)
        if firsts is None:
            self._firsts[block] = [first]
            if not self._blocks or block > self._blocks[-1]:
                self._blocks.append(block)
            else:
                insort(self._blocks, block)
        elif first > firsts[-1]:
            firsts.append(first)
        else:
            insort(firsts, first)
        self._spans[first] = span
        self.live_count += size
        kind = hold.kind
        self.counts[kind] += size
        if kind is HoldKind.LEASED:
            self.by_consumer[hold.consumer] = self.by_consumer.get(hold.consumer, 0) + size
            if not hold.firsts:
                self.leases[hold] = None
                if not hold.has_alarm:
                    hold.has_alarm = True
                    heappush(self._lease_alarms, (hold.until_ms, hold))
        elif kind is HoldKind.WAITING:
            if hold.until_ms:
                # Whether its time has come is looked at when somebody asks what is ready.
                heappush(self._delayed, (hold.until_ms, first))
            else:
                self._note_ready(span)
        hold.firsts.add(first)

    def _remove(self, span: Span) -> None:
        first, hold = span.first, span.hold
        size = span.last - first + 1
        block = first >> _BLOCK_BITS
        firsts = self._firsts[block]
        if len(firsts) == 1:
            del self._firsts[block]
            del self._blocks[bisect_left(self._blocks, block)]
        else:
            del firsts[bisect_left(firsts, first)]
        del self._spans[first]
        self.live_count -= size
        kind = hold.kind
        self.counts[kind] -= size
        hold.firsts.discard(first)
        if kind is HoldKind.LEASED:
            left = self.by_consumer[hold.consumer] - size
            if left:
                self.by_consumer[hold.consumer] = left
            else:
                del self.by_consumer[hold.consumer]
            if not hold.firsts:
                self.leases.pop(hold, None)
        elif kind is HoldKind.WAITING:
            self._forget_ready(span)

    def _note_ready(self, span: Span) -> None:
        ready = self.ready.setdefault(span.lane, [])
        if not ready or span.first > ready[-1]:
            ready.append(span.first)
        elif ready[place := bisect_left(ready, span.first)] != span.first:
            ready.insert(place, span.first)

    def _forget_ready(self, span: Span) -> None:
        ready = self.ready.get(span.lane)
        if ready is None:
            return
        place = bisect_left(ready, span.first)
        if place < len(ready) and ready[place] == span.first:
            del ready[place]
            if not ready:
                del self.ready[span.lane]

    # ------------------------------------------------------------------ time

    def ripen(self, now_ms: int) -> None:
        """What has waited long enough is ready. Changes nothing that is kept: a span itself says how long it waits."""
        delayed = self._delayed
        while delayed and delayed[0][0] <= now_ms:
            until_ms, first = heappop(delayed)
            span = self._spans.get(first)
            if span is None or span.hold.kind is not HoldKind.WAITING or span.hold.until_ms != until_ms:
                continue
            self._note_ready(span)
        if len(delayed) > 2 * len(self._spans) + _STALE_MAX:
            self._delayed = sorted({alarm for alarm in delayed if self._is_waiting(*alarm)})

    def _is_waiting(self, until_ms: int, first: int) -> bool:
        span = self._spans.get(first)
        return span is not None and span.hold.kind is HoldKind.WAITING and span.hold.until_ms == until_ms

    def expired_leases(self, now_ms: int, *, count_max: int) -> list[Hold]:
        """Whose deadline has come; they stay until somebody takes them out."""
        alarms = self._lease_alarms
        due: list[tuple[int, Hold]] = []
        while alarms and alarms[0][0] <= now_ms and len(due) < count_max:
            alarm = heappop(alarms)
            if alarm[1].firsts:
                due.append(alarm)
        for alarm in due:
            heappush(alarms, alarm)
        return [hold for _until_ms, hold in due]

    @property
    def alarm_count(self) -> int:
        """With those of what is gone."""
        return len(self._lease_alarms) + len(self._delayed)

    def next_deadline_ms(self) -> int | None:
        """Of a lease or of a wait; may be of something that is gone."""
        self._drop_stale()
        lease_ms = self._lease_alarms[0][0] if self._lease_alarms else None
        delayed_ms = self._delayed[0][0] if self._delayed else None
        if lease_ms is None or delayed_ms is None:
            return lease_ms if delayed_ms is None else delayed_ms
        return min(lease_ms, delayed_ms)

    def _drop_stale(self) -> None:
        alarms = self._lease_alarms
        while alarms and not alarms[0][1].firsts:
            heappop(alarms)
        if len(alarms) > 2 * len(self.leases) + _STALE_MAX:
            self._lease_alarms = sorted((hold.until_ms, hold) for hold in self.leases)


def _cut(span: Span, first: int, last: int) -> Span:
    if first == span.first and last == span.last:
        return span
    return Span(first, last, span.count, span.hold, span.failure, span.lane)
