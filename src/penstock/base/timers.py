"""A timing wheel for millions of numbers, each with a time: eight bytes for one.

    far     slots of 1,024 ms, in no order                   ──► spread when their time comes
    near    one row for each millisecond, oldest first       ──► looked at and dropped from the front

Adding costs the same however many there are, and so does taking the next ones: nothing is ever sorted but the few
milliseconds and slots that are not empty, and rows whose numbers came out of order, for numbers of one millisecond
come out in their own order. There is no clock in it and nothing rings: whoever owns it asks for the `earliest` time and
looks again then. Times never go back in it, and those that are past already are welcome.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections.abc import Callable
from typing import Final

_SLOT_BITS: Final = 10
_SLOT_MASK: Final = (1 << _SLOT_BITS) - 1
# What is left of eight bytes for the number: with a million a second, two hundred years.
_NUMBER_BITS: Final = 64 - _SLOT_BITS
_NUMBER_MASK: Final = (1 << _NUMBER_BITS) - 1
# At once, whether they are spread or turn out to be dead: some ten milliseconds.
WORK_MAX: Final = 50_000


class TimingWheel:
    __slots__ = (
        "_far",
        "_heads",
        "_near",
        "_near_times",
        "_slots",
        "_spread_count",
        "_spread_until_ms",
        "_unsorted",
        "_work_max",
        "count",
    )

    def __init__(self, *, work_max: int = WORK_MAX) -> None:
        self._work_max = work_max
        self._far: dict[int, array[int]] = {}
        self._slots: list[int] = []
        self._near: dict[int, array[int]] = {}
        self._near_times: list[int] = []
        # How much of a row is gone already.
        self._heads: dict[int, int] = {}
        # Rows in which a number stands behind a higher one.
        self._unsorted: set[int] = set()
        # How much of the first slot is near already.
        self._spread_count = 0
        # Below it everything is near.
        self._spread_until_ms = 0
        # With the dead.
        self.count = 0

    def add(self, at_ms: int, number: int) -> None:
        self.count += 1
        if at_ms < self._spread_until_ms:
            self._add_near(at_ms, number)
            return
        slot = at_ms >> _SLOT_BITS
        row = self._far.get(slot)
        if row is None:
            row = self._far[slot] = array("Q")
            insort(self._slots, slot)
        row.append((at_ms & _SLOT_MASK) << _NUMBER_BITS | number)

    def _add_near(self, at_ms: int, number: int) -> None:
        row = self._near.get(at_ms)
        if row is None:
            row = self._near[at_ms] = array("Q")
            insort(self._near_times, at_ms)
        elif number < row[-1]:
            self._unsorted.add(at_ms)
        row.append(number)

    def earliest_ms(self) -> int | None:
        """Nothing is before it. It may be a slot's beginning, and what is there may be dead."""
        firsts = [*self._near_times[:1], *(slot << _SLOT_BITS for slot in self._slots[:1])]
        return min(firsts, default=None)

    def peek(self, before_ms: int, *, count_max: int, is_live: Callable[[int], bool]) -> tuple[list[int], int]:
        """The next ones whose time is before `before_ms`, in order, and how many to `drop` when they are taken.

        The dead in front of them are forgotten. There may be more than it finds: it looks at so many and no more.
        """
        work = self._work_max - self._spread(before_ms, self._work_max)
        found: list[int] = []
        looked = 0
        for at_ms in self._near_times:
            # A slot that is only half spread may hold earlier ones.
            if at_ms >= before_ms or at_ms >= self._spread_until_ms:
                break
            row, place = self._sorted_row(at_ms), self._heads.get(at_ms, 0)
            while place < len(row):
                if len(found) >= count_max or looked >= work:
                    return self._without_dead_front(found, looked)
                # Never more than are asked for, so that none is looked at and left.
                some = row[place : place + min(count_max - len(found), work - looked)]
                found += filter(is_live, some)
                looked += len(some)
                place += len(some)
        return self._without_dead_front(found, looked)

    def _sorted_row(self, at_ms: int) -> array[int]:
        if at_ms in self._unsorted:
            self._unsorted.discard(at_ms)
            left = self._near[at_ms][self._heads.pop(at_ms, 0) :]
            self._near[at_ms] = array("Q", sorted(left))
        return self._near[at_ms]

    def _without_dead_front(self, found: list[int], looked: int) -> tuple[list[int], int]:
        if not found:
            self.drop(looked)
            return found, 0
        return found, looked

    def spread_ahead(self, before_ms: int, count_max: int) -> None:
        """Some of the work of a later `peek`, so that it need not be done all at once when the time comes."""
        self._spread(before_ms, count_max)

    def drop(self, count: int) -> None:
        """The first ones."""
        self.count -= count
        emptied = 0
        for at_ms in self._near_times:
            if not count:
                break
            head = self._heads.get(at_ms, 0)
            size = len(self._near[at_ms])
            if size - head > count:
                self._heads[at_ms] = head + count
                break
            count -= size - head
            del self._near[at_ms]
            self._heads.pop(at_ms, None)
            self._unsorted.discard(at_ms)
            emptied += 1
        del self._near_times[:emptied]

    def _spread(self, before_ms: int, work_max: int) -> int:
        """Slots that begin before then become rows. One that is too large for one turn is spread in several."""
        work = 0
        while self._slots and self._slots[0] << _SLOT_BITS < before_ms:
            slot = self._slots[0]
            row = self._far[slot]
            base_ms = slot << _SLOT_BITS
            # Until it is spread wholly, nothing of it may go.
            self._spread_until_ms = max(self._spread_until_ms, base_ms)
            some = row[self._spread_count : self._spread_count + work_max - work]
            for packed in some:
                self._add_near(base_ms | packed >> _NUMBER_BITS, packed & _NUMBER_MASK)
            work += len(some)
            self._spread_count += len(some)
            if self._spread_count < len(row):
                return work
            del self._far[slot], self._slots[0]
            self._spread_count = 0
            self._spread_until_ms = max(self._spread_until_ms, base_ms + _SLOT_MASK + 1)
        return work
