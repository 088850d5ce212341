"""The rules of replication walked at random: three replicas in a world of its own, from seeds (`support.replication`).

`PENSTOCK_SIM_SEEDS` is the number of stories of each kind; a failure names its seed, and `run_story(seed, kind)` tells
the same story again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.planted_bugs import planted
from support.replication.invariants import BrokenError
from support.replication.stories import KINDS, PLAIN, digest_of, run_story
from support.replication.world_bugs import ANEW, BUGS, WORLD, WalkBug

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "60"))
# A bug that needs an unlikely coincidence shows within so many stories, or the world has become too kind.
BUG_SEEDS_MAX = 3_000


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_committed_is_lost_whatever_happens(kind: str) -> None:
    for seed in range(SEEDS):
        try:
            run_story(seed, kind)
        except BrokenError as broken:
            pytest.fail(f"seed {seed} of {kind}: {broken}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_tells_the_same_story_whatever_the_hash_seed(kind: str) -> None:
    script = f"from support.replication.stories import digest_of, run_story; print(digest_of(run_story(7, {kind!r})))"
    paths = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
    told = {digest_of(run_story(7, kind))}
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)}
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        told.add(run.stdout.strip())
    assert len(told) == 1


@pytest.mark.heavy
def test_stories_bring_out_what_they_are_about() -> None:
    """Elections, lost disks and damage must happen, or nothing is proved by surviving them."""
    worlds = [run_story(seed, PLAIN) for seed in range(100)]
    assert sum(world.book.count for world in worlds) > 1_000
    assert sum(len(world.leaders) for world in worlds) > 250
    assert sum(world.faults.wiped_count for world in worlds) > 50
    assert sum(world.faults.restored_count for world in worlds) > 5
    assert sum(world.faults.damaged_count for world in worlds) > 20
    # A partition that nobody can lead without a person's word is the end of few stories.
    assert sum(not world.store.state.in_sync for world in worlds) < 5


@pytest.mark.heavy
@pytest.mark.parametrize("walk_bug", BUGS, ids=lambda walk_bug: walk_bug.bug.name.replace(" ", "-"))
def test_planted_bug_is_caught(walk_bug: WalkBug) -> None:
    caught: set[str] = set()
    with planted(walk_bug.bug, world=WORLD, anew=ANEW) as stories:
        for seed in walk_bug.bug.seeds(BUG_SEEDS_MAX):
            try:
                stories.run_story(seed, walk_bug.kind)
            except AssertionError as broken:
                # The world's own class, imported anew with it.
                caught.add(getattr(broken, "invariant", "assertion"))
            if walk_bug.bug.invariant in caught:
                return
    pytest.fail(f"{BUG_SEEDS_MAX} stories, and {walk_bug.bug.invariant!r} did not catch it; caught: {caught}")
