"""Several whole nodes that replicate, in a world of their own, from seeds: see `support.sim.cluster_story`.

`PENSTOCK_SIM_SEEDS` is the number of stories (`make sim`). One that breaks an invariant names it, its seed, and the
command that tells it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.sim.cluster_story import tell

SEEDS: Final = int(os.environ.get("PENSTOCK_SIM_SEEDS", "20"))
# In shares, so that they can run side by side.
SHARES: Final = 8
TESTS: Final = Path(__file__).parents[1]


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.timeout(3600)
def test_no_story_of_a_cluster_breaks_an_invariant(share: int) -> None:
    for seed in range(share, SEEDS, SHARES):
        tell(seed)


def test_a_story_of_a_cluster_does_not_hang_on_hashes_or_addresses() -> None:
    """Another process has other addresses and, told so, other hashes: a set that is walked through would show."""
    assert _told_by(hash_seed="1") == _told_by(hash_seed="2")


def _told_by(*, hash_seed: str) -> str:
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "support.sim", "cluster", *map(str, range(3, 7))]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
