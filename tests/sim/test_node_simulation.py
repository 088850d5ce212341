"""Whole nodes in a world of its own, from seeds: see `support.sim.story`.

`PENSTOCK_SIM_SEEDS` is the number of stories (`make sim`: 2,000). One that breaks an invariant names it, its seed, and
the command that tells it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.sim.story import LOADS, tell

SEEDS: Final = int(os.environ.get("PENSTOCK_SIM_SEEDS", "60"))
# In shares, so that they can run side by side.
SHARES: Final = 8
TESTS: Final = Path(__file__).parents[1]


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.timeout(3600)
def test_no_story_breaks_an_invariant(share: int) -> None:
    for seed in range(share, SEEDS, SHARES):
        tell(seed)


@pytest.mark.parametrize("load", LOADS)
def test_the_same_seed_tells_the_same_story(load: str) -> None:
    first, again = tell(7, loads=[load]), tell(7, loads=[load])
    assert (first.trace, first.loop.step_count) == (again.trace, again.loop.step_count)
    assert tell(8, loads=[load]).trace != first.trace


def test_a_story_does_not_hang_on_where_objects_lie_in_memory() -> None:
    """Another process has other addresses and, told so, other hashes: a set that is walked through would show."""
    assert _told_by(hash_seed="1") == _told_by(hash_seed="2")


def _told_by(*, hash_seed: str) -> str:
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "support.sim", *map(str, range(3, 10))]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
