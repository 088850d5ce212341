"""Which bytes of a segment are known to be right: merged ranges, plus everything from one position to the end.

Bytes come from the disk unchecked once, at their first read; after that only the list is asked. Appending keeps no
books: what this process writes lies past `tail_start`.

Threads add while the loop asks: the lists are replaced, never changed. Of two additions at once one may be forgotten,
and its bytes are checked once more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class VerifiedRanges:
    __slots__ = ("_ranges", "tail_start")

    def __init__(self) -> None:
        self.tail_start = 0
        self._ranges: tuple[list[int], list[int]] = ([], [])

    def covers(self, start: int, end: int) -> bool:
        if start >= self.tail_start:
            return True
        starts, ends = self._ranges
        place = bisect_right(starts, start)
        if place == 0:
            return False
        known_end = ends[place - 1]
        return end <= known_end or known_end >= self.tail_start

    def add(self, start: int, end: int) -> None:
        if start >= end:
            return
        starts, ends = self._ranges
        # All ranges that touch [start, end) become one with it.
        first = bisect_left(ends, start)
        last = bisect_right(starts, end)
        if first < last:
            start = min(start, starts[first])
            end = max(end, ends[last - 1])
        self._ranges = ([*starts[:first], start, *starts[last:]], [*ends[:first], end, *ends[last:]])

    def forget_below(self, tail_start: int) -> None:
        """Nothing below `tail_start` has been checked."""
        self._ranges = ([], [])
        self.tail_start = tail_start
