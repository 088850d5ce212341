"""A queue, its consumers, its journal and its dead letters in a world of their own, from seeds: see
`support.queue.world`.

`PENSTOCK_SIM_SEEDS` is the number of worlds for each story; a failure names its seed, and `run_world(seed, story)`
is the same world again.
"""

from __future__ import annotations

import os

import pytest

from support.planted_bugs import planted
from support.queue.world import STORIES, run_world
from support.queue.world_bugs import ANEW, BUGS, WORLD, QueueBug
from support.queue.world_check import InvariantBrokenError

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "10"))
# A bug that needs an unlikely coincidence shows within so many worlds, or the world has become too kind.
BUG_SEEDS_MAX = 60


@pytest.mark.parametrize("story", STORIES)
def test_a_queue_keeps_its_promises_whatever_happens(story: str) -> None:
    for seed in range(SEEDS):
        try:
            run_world(seed, story)
        except InvariantBrokenError as broken:
            pytest.fail(f"seed {seed} of {story}: {broken}")


@pytest.mark.parametrize("story", STORIES)
def test_the_same_seed_makes_the_same_world(story: str) -> None:
    first, second = run_world(7, story), run_world(7, story)
    assert first.node.queue.snapshot() == second.node.queue.snapshot()
    assert first.book.fates == second.book.fates
    assert first.book.dead == second.book.dead


@pytest.mark.heavy
def test_worlds_bring_out_what_they_are_about() -> None:
    """Redeliveries, dead letters, restarts and dropped moves must happen, or nothing is proved by surviving them."""
    worlds = [run_world(seed, story) for story in STORIES for seed in range(6)]
    assert sum(world.book.delivered for world in worlds) > 10_000
    assert sum(world.book.redelivered for world in worlds) > 4_000
    assert sum(len(world.book.dead) for world in worlds) > 500
    assert sum(world.restarts for world in worlds) > 100
    assert sum(world.dropped for world in worlds) > 5


@pytest.mark.heavy
@pytest.mark.parametrize("planted_bug", BUGS, ids=lambda planted_bug: planted_bug.bug.name)
def test_planted_bug_is_caught(planted_bug: QueueBug) -> None:
    caught: set[str] = set()
    with planted(planted_bug.bug, world=WORLD, anew=ANEW) as world:
        for seed in range(BUG_SEEDS_MAX):
            try:
                world.run_world(seed, planted_bug.story)
            # The world's own class, imported anew with it; or an assertion of the machine.
            except (world.InvariantBrokenError, AssertionError) as broken:
                caught.add(getattr(broken, "invariant", "assertion"))
            if planted_bug.bug.invariant in caught:
                return
    pytest.fail(f"{BUG_SEEDS_MAX} worlds, and {planted_bug.bug.invariant!r} did not catch it; caught: {caught}")
