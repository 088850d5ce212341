"""A schedule, its files, its producers and the log it releases to in a world of their own, from seeds: see
`support.schedule.world`.

`PENSTOCK_SIM_SEEDS` is the number of worlds for each story; a failure names its seed, and `run_world(seed, story)`
is the same world again.
"""

from __future__ import annotations

import os

import pytest

from support.planted_bugs import planted
from support.schedule.world import STORIES, run_world
from support.schedule.world_bugs import ANEW, BUGS, WORLD, ScheduleBug
from support.schedule.world_check import InvariantBrokenError

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "12"))
# A bug that needs an unlikely coincidence shows within so many worlds, or the world has become too kind.
BUG_SEEDS_MAX = 60


@pytest.mark.parametrize("story", STORIES)
def test_a_schedule_keeps_its_promises_whatever_happens(story: str) -> None:
    for seed in range(SEEDS):
        try:
            run_world(seed, story)
        except InvariantBrokenError as broken:
            pytest.fail(f"seed {seed} of {story}: {broken}")


@pytest.mark.parametrize("story", STORIES)
def test_the_same_seed_makes_the_same_schedule(story: str) -> None:
    first, second = run_world(7, story), run_world(7, story)
    assert first.book.released == second.book.released
    assert first.node.stored == second.node.stored


@pytest.mark.heavy
def test_worlds_of_schedules_bring_out_what_they_are_about() -> None:
    """Releases, cancellations, refusals and restarts must happen, or nothing is proved by surviving them."""
    worlds = [run_world(seed, story) for story in STORIES for seed in range(4)]
    told = [told for world in worlds for told in world.book.messages.values()]
    assert sum(len(world.book.released) for world in worlds) > 3_000
    assert sum(each.is_cancelled for each in told) > 40
    assert sum(each.is_too_late for each in told) > 3
    assert sum(each.is_aborted for each in told) > 100
    assert sum("cron" in name for world in worlds for name in world.book.seen) > 100
    assert sum(world.restarts for world in worlds) > 150


@pytest.mark.heavy
@pytest.mark.parametrize("planted_bug", BUGS, ids=lambda planted_bug: planted_bug.bug.name)
def test_bug_planted_into_a_schedule_is_caught(planted_bug: ScheduleBug) -> None:
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
