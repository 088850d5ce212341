"""The simulation of nodes is only as good as what it catches: bugs planted one at a time, each must be found."""

from __future__ import annotations

from typing import Final

import pytest

from support.planted_bugs import planted
from support.sim.bugs import ANEW, BUGS, STORY, NodeBug

# More than the hardest of them needs by far.
SEEDS_MAX: Final = 500


@pytest.mark.heavy
@pytest.mark.parametrize("planted_bug", BUGS, ids=[case.bug.name.replace(" ", "-") for case in BUGS])
def test_the_simulation_catches_the_bug(planted_bug: NodeBug) -> None:
    broken = first_broken(planted_bug)
    assert broken is not None, f"{SEEDS_MAX} seeds did not notice: {planted_bug.bug.name}"
    assert getattr(broken, "invariant", "") in planted_bug.caught_by, f"{planted_bug.bug.name}: {broken}"


def first_broken(planted_bug: NodeBug) -> AssertionError | None:
    with planted(planted_bug.bug, world=STORY, anew=ANEW) as story:
        for seed in planted_bug.bug.seeds(SEEDS_MAX):
            try:
                story.tell(seed, loads=(planted_bug.load,))
            except AssertionError as broken:
                return broken
    return None
