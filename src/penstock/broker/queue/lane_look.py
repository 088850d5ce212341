"""What each lane has for a receive: from the default lane's window, which was read, and from the index of the rest.

    offsets        own cursor          default cursor      window's end            known end
                       |                     |=================|                       |
    of a lane     [ index, before ][      window, all of it    ][   index, behind      ]

The window shows all lanes of its batches, index or not. So whatever the default lane's cursor passes, its lane is told
with it, and a lane whose cursor is elsewhere goes by its own. Messages that were delivered ahead lie below their lane's
cursor when the default lane comes by, and are not in its ranges anyway.

What the index names is opened, for it says only which batches to look at: the batch tells the messages, their time to
live and, to readers of committed messages, leaves out what was aborted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from penstock.broker.partition.read import ReadProblem
from penstock.broker.queue.batch import QueueBatch
from penstock.broker.queue.lanes import LaneIndex
from penstock.domain.queue.commands import Found
from penstock.domain.queue.lanes import DEFAULT_LANE, LANE_MAX, LOWER_TURN
from penstock.domain.queue.values import Range

BatchAt = Callable[[int], Awaitable[QueueBatch | ReadProblem | None]]


class LaneLook:
    """One look; use once."""

    def __init__(
        self,
        index: LaneIndex | None,
        window: Sequence[QueueBatch],
        cursors: Mapping[int, int],
        *,
        log_start: int,
        end: int,
        bytes_max: int,
        batch_at: BatchAt,
    ) -> None:
        """`end`: what this reader may see. `bytes_max`: of batches beside the window, the last one may be larger."""
        self._index = index
        self._window = window
        self._cursors = cursors
        self._cursor = cursors[DEFAULT_LANE]
        self._window_start = max(self._cursor, log_start)
        self._window_end = window[-1].next_offset if window else self._window_start
        self._log_start = log_start
        self._end = end
        self._batch_at = batch_at
        self._bytes_left = bytes_max
        self._batches_max = 0 if index is None else index.batches_max
        # Beside the window.
        self.opened: list[QueueBatch] = []

    @property
    def since(self) -> int:
        """The lowest offset that has to be known."""
        return min(self._cursors.values())

    @property
    def needs_index(self) -> bool:
        """False: the window shows everything that there is."""
        return self._window_end < self._end or self.since < self._cursor

    async def find(self, count: int) -> tuple[Found, ...]:
        """About `count` messages of each lane that may come to give so many, the highest lane first."""
        found: list[Found] = []
        seen = 0
        for lane in self._lanes():
            # Once there are enough, lower lanes get no more than their turns.
            wanted = count if seen < count else count // LOWER_TURN + 1
            part = await self._find(lane, wanted)
            if self._is_worth_telling(part):
                found.append(part)
                seen += sum(last - first + 1 for first, last in part.ranges)
        return tuple(found)

    def _lanes(self) -> list[int]:
        lanes = {DEFAULT_LANE, *self._cursors} | {lane for batch in self._window for lane in batch.lanes}
        if self._index is not None:
            hinted = self._index.lanes_from(self._window_end)
            if hinted:
                lanes |= {lane for lane in range(LANE_MAX + 1) if hinted >> lane & 1}
        return sorted(lanes, reverse=True)

    def _is_worth_telling(self, found: Found) -> bool:
        # A lane that was never seen needs no cursor of its own before its first message.
        return bool(found.ranges) or (found.lane in self._cursors and found.upto > found.since)

    async def _find(self, lane: int, count: int) -> Found:
        cursor = self._cursors.get(lane, self._cursor)
        part = _Part(lane, max(cursor, self._log_start))
        if part.upto < self._window_start:
            await self._open(part, self._window_start, count)
        if part.upto >= self._window_start:
            for batch in self._window:
                part.take(batch, self._window_end)
            part.upto = max(part.upto, self._window_end)
            if lane != DEFAULT_LANE and part.count < count:
                await self._open(part, self._end, count)
        return Found(lane, cursor, max(part.upto, cursor), tuple(part.ranges), (), tuple(part.expiries))

    async def _open(self, part: _Part, end: int, count: int) -> None:
        """Goes on with what the index knows, up to `end`, or until there are enough."""
        index = self._index
        if index is None:
            return
        end = min(end, index.covered_upto(part.upto))
        while part.upto < end and part.count < count and self._has_room:
            batches_max = min(count - part.count, self._batches_max - len(self.opened))
            offsets, known_end = await index.batches(part.lane, part.upto, end, batches_max)
            for offset in offsets:
                if not self._has_room or not await self._open_at(part, max(offset, part.upto), end):
                    part.upto = max(offset, part.upto)  # what lies before it is known
                    return
            if known_end <= part.upto and not offsets:
                return  # what was known is not any more
            part.upto = max(part.upto, known_end)

    @property
    def _has_room(self) -> bool:
        return len(self.opened) < self._batches_max and self._bytes_left > 0

    async def _open_at(self, part: _Part, offset: int, end: int) -> bool:
        """False: it cannot be read now."""
        batch = await self._batch_at(offset)
        if not isinstance(batch, QueueBatch):
            return False
        self.opened.append(batch)
        self._bytes_left -= len(batch.raw)
        # Compaction may have emptied what was here: then the batch is one behind it.
        if batch.base_offset < end:
            part.take(batch, end)
        part.upto = max(part.upto, min(batch.next_offset, end))
        return True


class _Part:
    """Of one lane, as far as it has been looked at."""

    __slots__ = ("count", "expiries", "lane", "ranges", "upto")

    def __init__(self, lane: int, begin: int) -> None:
        self.lane = lane
        self.upto = begin
        self.count = 0
        self.ranges: list[Range] = []
        self.expiries: list[tuple[int, int]] = []

    def take(self, batch: QueueBatch, end: int) -> None:
        """What of it lies below `end`; below `upto` all was taken already, or delivered before."""
        ranges = ((max(first, self.upto), min(last, end - 1)) for first, last in batch.lanes.get(self.lane, ()))
        mine = [(first, last) for first, last in ranges if first <= last]
        if not mine:
            return
        self.ranges += mine
        self.count += sum(last - first + 1 for first, last in mine)
        if batch.expiries:
            self.expiries += [entry for entry in batch.expiries if _holds(mine, entry[0])]


def _holds(ranges: Sequence[Range], offset: int) -> bool:
    return any(first <= offset <= last for first, last in ranges)
