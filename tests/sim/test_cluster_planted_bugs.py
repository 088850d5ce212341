"""The simulation of a cluster is only as good as what it catches: bugs planted one at a time, each must be found."""

from __future__ import annotations

from typing import Final

import pytest

from support.planted_bugs import planted
from support.sim.bugs import ANEW
from support.sim.cluster_bugs import BUGS, STORY, ClusterBug
from support.sim.cluster_story import tell

# More than the hardest of them needs.
SEEDS_MAX: Final = 500


@pytest.mark.heavy
@pytest.mark.parametrize("planted_bug", BUGS, ids=[f"{case.number}-{case.bug.name.replace(' ', '-')}" for case in BUGS])
def test_the_simulation_of_a_cluster_catches_the_bug(planted_bug: ClusterBug) -> None:
    found = first_broken(planted_bug)
    assert found is not None, f"{SEEDS_MAX} seeds did not notice: {planted_bug.bug.name}"
    seed, broken = found
    assert getattr(broken, "invariant", "") in planted_bug.caught_by, f"{planted_bug.bug.name}: {broken}"
    # It is the bug that was found, and not a fault of ours that this seed shows.
    tell(seed, loads=(planted_bug.load,), weighted=planted_bug.faults)


def first_broken(planted_bug: ClusterBug) -> tuple[int, AssertionError] | None:
    with planted(planted_bug.bug, world=STORY, anew=ANEW) as story:
        for seed in planted_bug.bug.seeds(SEEDS_MAX):
            try:
                story.tell(seed, loads=(planted_bug.load,), weighted=planted_bug.faults)
            except AssertionError as broken:
                return seed, broken
    return None
