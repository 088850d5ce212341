"""From arrivals of records to the gaps that a departure made: for partitions that moved, and for those that did not."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from bench.rebalance_members import Arrivals

# Before the departure: what a gap is without one.
STEADY_SECONDS: Final = 3.0
# After everything is consumed again: whatever the departure did to others has shown itself by then.
AFTER_SECONDS: Final = 2.0


class Departure(msgspec.Struct, frozen=True):
    """What the departure of one member did; milliseconds."""

    how: str
    moved_partitions: int
    # From the moment that the coordinator knew until each partition of the gone member reached somebody else.
    recovery_ms: list[float]
    # The longest gap of each member that kept its partitions, in the partition where it was longest.
    steady_gaps_ms: list[float]
    gaps_ms: list[float]
    # Partitions that went from one member that stayed to another.
    needless_moves: int

    @property
    def recovered_ms(self) -> float:
        return max(self.recovery_ms)

    @property
    def gap_median_ms(self) -> float:
        return statistics.median(self.gaps_ms)


class Owner(msgspec.Struct, frozen=True, order=True):
    partition: int
    member: int


def departure(
    arrivals: Arrivals, *, how: str, gone: int, moved: Collection[int], known_at: float, until: float
) -> Departure:
    """`moved` are the partitions of the one that went. Nothing from `until` on is looked at: more happened there."""
    by_owner = _by_owner(arrivals, known_at - STEADY_SECONDS, until)
    before = {owner for owner, times in by_owner.items() if _any_between(times, known_at - STEADY_SECONDS, known_at)}
    recovered = {partition: _first_elsewhere(by_owner, partition, gone, known_at) for partition in sorted(moved)}
    end = min(max(recovered.values()) + AFTER_SECONDS, until)
    kept = [owner for owner in before if owner.member != gone and _any_between(by_owner[owner], end - 1.0, end)]
    lost = [owner for owner in before if owner.member != gone and owner not in kept]
    return Departure(
        how=how,
        moved_partitions=len(moved),
        recovery_ms=sorted(1000 * (time - known_at) for time in recovered.values()),
        steady_gaps_ms=_gaps(by_owner, kept, known_at - STEADY_SECONDS, known_at),
        gaps_ms=_gaps(by_owner, kept, known_at, end),
        needless_moves=len(lost),
    )


def _first_elsewhere(by_owner: dict[Owner, list[float]], partition: int, gone: int, known_at: float) -> float:
    arrivals = (
        time
        for owner, times in by_owner.items()
        if owner.partition == partition and owner.member != gone
        for time in times
        if time >= known_at
    )
    found = min(arrivals, default=None)
    assert found is not None, f"partition {partition} was not consumed again"
    return found


def _by_owner(arrivals: Arrivals, start: float, end: float) -> dict[Owner, list[float]]:
    found: dict[Owner, list[float]] = defaultdict(list)
    for seconds, member, partition in zip(arrivals.seconds, arrivals.members, arrivals.partitions, strict=True):
        if start <= seconds < end:
            found[Owner(partition, member)].append(seconds)
    return {owner: sorted(times) for owner, times in found.items()}


def _any_between(times: Sequence[float], start: float, end: float) -> bool:
    return any(start <= time < end for time in times)


def _gaps(by_owner: dict[Owner, list[float]], owners: Sequence[Owner], start: float, end: float) -> list[float]:
    """The longest gap of each member, ascending; the time before the first arrival and after the last one counts."""
    longest: dict[int, float] = defaultdict(float)
    for owner in owners:
        times = [start, *(time for time in by_owner[owner] if start <= time < end), end]
        gap = max(later - earlier for earlier, later in pairwise(times))
        longest[owner.member] = max(longest[owner.member], 1000 * gap)
    return sorted(longest.values())
