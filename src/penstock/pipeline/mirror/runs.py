"""Which offset of a mirrored partition stands for which offset of its source.

Every transaction of the mirror writes one *run* for each partition: stretches of offsets that lie side by side in both
logs. They lie apart, because markers and holes take offsets in one log and not in the other. Runs are kept in slots of
a compacted topic, near ones densely and old ones ever more sparsely, so that a year of them is a few hundred records:

    run number   1 2 3 4 5 6 7 8 …           its level is the number of zeros at its end, in binary
    level 0      *   *   *   *               the last 32 of each level are kept
    level 1        *       *
    level 2            *         …

The last run also says where the mirror goes on, and becomes true with the records that it speaks of.

A translated offset never lies behind anything unread: where runs are missing, the answer is the end of the last
stretch before, so a consumer that moves over reads some records twice and none too few.

Runs speak of two topics, and of no others that came to have their names. When the copy is made anew, runs begin anew:
their numbers go on, and those that begin with a smaller `first` are void.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import msgspec

# Of each level.
KEPT_COUNT: Final = 32
# Of one run: the others of a transaction with more are left out.
STRETCHES_MAX: Final = 64

_source_of = attrgetter("source")
_number_of = attrgetter("number")


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    source: int
    target: int
    count: int


class Lineage(msgspec.Struct, frozen=True):
    """Which topic is mirrored into which, by their ids: a name may pass on. Empty: the cluster is too old for ids."""

    source_id: str = ""
    target_id: str = ""


class Run(msgspec.Struct, frozen=True, array_like=True):
    number: int
    # The first offset of the source that is not mirrored yet.
    source_next: int
    stretches: tuple[Stretch, ...]
    # The number of the first run into this copy.
    first: int = 0
    source_id: str = ""
    target_id: str = ""


class RunBook:
    """The runs of one partition."""

    def __init__(self, lineage: Lineage | None = None, *, first: int = 0) -> None:
        self._lineage = lineage or Lineage()
        self._first = first
        self._runs: dict[str, Run] = {}
        self._last: Run | None = None
        # Of all runs, by source offset; made when it is asked for.
        self._stretches: list[Stretch] | None = None

    @property
    def source_next(self) -> int | None:
        return None if self._last is None else self._last.source_next

    def make(self, stretches: Sequence[Stretch], source_next: int) -> Run:
        number = self._first if self._last is None else self._last.number + 1
        lineage = self._lineage
        thinned = _thinned(joined(stretches))
        return Run(number, source_next, thinned, self._first, lineage.source_id, lineage.target_id)

    def add(self, run: Run) -> None:
        """In any order: a compacted topic holds them by the time of their slot's last use."""
        if run.first < self._first:
            # Of a copy that is gone.
            return
        if run.first > self._first:
            self._first, self._last = run.first, None
            self._runs.clear()
        self._runs[slot_of(run.number, run.first)] = run
        if self._last is None or run.number > self._last.number:
            self._last = run
            self._lineage = Lineage(run.source_id, run.target_id)
        self._stretches = None

    def taken_up(self, lineage: Lineage) -> RunBook | None:
        """The book to go on with. None: the copy holds records of another topic that had the source's name."""
        if self._last is None:
            return RunBook(lineage, first=self._first)
        if _differ(self._lineage.target_id, lineage.target_id):
            return RunBook(lineage, first=self._last.number + 1)
        if _differ(self._lineage.source_id, lineage.source_id):
            return None
        self._lineage = lineage
        return self

    def translate(self, source_offset: int) -> int | None:
        """Where a group goes on that has read up to `source_offset`. None: nothing is mirrored yet."""
        if self._stretches is None:
            runs = sorted(self._runs.values(), key=_number_of)
            # Stable: of two that begin alike the younger one counts.
            self._stretches = sorted((stretch for run in runs for stretch in run.stretches), key=_source_of)
        if not self._stretches:
            return None
        place = bisect_right(self._stretches, source_offset, key=_source_of) - 1
        if place < 0:
            return self._stretches[0].target
        stretch = self._stretches[place]
        return stretch.target + min(source_offset - stretch.source, stretch.count)


def slot_of(number: int, first: int = 0) -> str:
    """The first run has a slot of its own: what lies before it lies before everything that was mirrored."""
    if number == first:
        return "first"
    level = (number & -number).bit_length() - 1
    return f"{level}.{(number >> (level + 1)) % KEPT_COUNT}"


def _differ(one: str, other: str) -> bool:
    return bool(one and other and one != other)


def joined(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Those that go on in both logs where the one before ended are one."""
    out: list[Stretch] = []
    for stretch in stretches:
        last = out[-1] if out else None
        if (
            last is not None
            and last.source + last.count == stretch.source
            and last.target + last.count == stretch.target
        ):
            out[-1] = Stretch(last.source, last.target, last.count + stretch.count)
        else:
            out.append(stretch)
    return out


def _thinned(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """The last one always stays: who has read everything has nothing to read again."""
    if len(stretches) <= STRETCHES_MAX:
        return tuple(stretches)
    step = -(-len(stretches) // (STRETCHES_MAX - 1))
    return (*stretches[:-1:step], stretches[-1])
