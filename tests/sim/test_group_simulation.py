"""Groups of both protocols, offsets and transactions in a world of its own, from seeds: see `support.group.world`.

`PENSTOCK_SIM_SEEDS` is the number of stories of each kind; a failure names its seed, and
`run_story(seed, kind)` tells the same story again.
"""

from __future__ import annotations

import os

import pytest

from support.group.world import ViolationError
from support.group.world_bugs import ANEW, BUGS, WORLD, GroupBug
from support.group.world_story import KINDS, run_story
from support.planted_bugs import planted

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "60"))
# A bug that needs an unlikely coincidence shows within so many stories, or the world has become too kind.
BUG_SEEDS_MAX = 400


@pytest.mark.parametrize("kind", KINDS)
def test_group_keeps_its_promises_whatever_happens(kind: str) -> None:
    for seed in range(SEEDS):
        try:
            run_story(seed, kind)
        except ViolationError as violation:
            pytest.fail(f"seed {seed} of {kind}: {violation}")


def test_the_same_seed_tells_the_same_story() -> None:
    for kind in KINDS:
        assert run_story(7, kind).log == run_story(7, kind).log


@pytest.mark.heavy
def test_stories_bring_out_what_they_are_about() -> None:
    """Fences, restarts and rebalances must happen, or nothing is proved by surviving them."""
    refusals: dict[str, int] = {}
    restarts = late_commits = 0
    for kind in KINDS:
        for seed in range(20):
            world = run_story(seed, kind)
            restarts += world.restarts
            late_commits += world.transactions.late_count
            for name, count in world.refusals.items():
                refusals[name] = refusals.get(name, 0) + count
    assert restarts > 100
    assert late_commits > 0
    assert {"STALE_MEMBER_EPOCH", "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS"} <= set(refusals)
    assert {"UNRELEASED_INSTANCE_ID", "FENCED_INSTANCE_ID"} <= set(refusals)


@pytest.mark.heavy
@pytest.mark.parametrize("planted_bug", BUGS, ids=lambda planted_bug: planted_bug.bug.name)
def test_planted_bug_is_caught(planted_bug: GroupBug) -> None:
    caught: set[str] = set()
    with planted(planted_bug.bug, world=WORLD, anew=ANEW) as story:
        for seed in planted_bug.bug.seeds(BUG_SEEDS_MAX):
            try:
                story.run_story(seed, planted_bug.kind)
            except AssertionError as violation:
                # The world's own class, imported anew with it.
                caught.add(getattr(violation, "invariant", "assertion"))
            if planted_bug.bug.invariant in caught:
                return
    pytest.fail(f"{BUG_SEEDS_MAX} stories, and {planted_bug.bug.invariant!r} did not catch it; caught: {caught}")
