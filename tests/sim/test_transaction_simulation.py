"""Transactional producers, their coordinator, partitions and readers in a world of their own, from seeds: see
`support.transaction.world`.

`PENSTOCK_SIM_SEEDS` is the number of worlds for each story; a failure names its seed, and `run_world(seed, story)`
is the same world again.
"""

from __future__ import annotations

import os

import pytest

from support.planted_bugs import planted
from support.transaction.world import STORIES, World, run_world
from support.transaction.world_bugs import ANEW, BUGS, WORLD, TransactionBug
from support.transaction.world_check import InvariantBrokenError

SEEDS = int(os.environ.get("PENSTOCK_SIM_SEEDS", "40"))
# A bug that needs an unlikely coincidence shows within so many worlds, or the world has become too kind.
BUG_SEEDS_MAX = 150


@pytest.mark.parametrize("story", STORIES)
def test_transactions_keep_their_promises_whatever_happens(story: str) -> None:
    for seed in range(SEEDS):
        try:
            run_world(seed, story)
        except InvariantBrokenError as broken:
            pytest.fail(f"seed {seed} of {story}: {broken}")


def everything_in(world: World) -> object:
    logs = [partition.log for partition in world.partitions.values()]
    return world.coordinator.machine.as_dict(), logs, world.ledger.seen


@pytest.mark.parametrize("story", STORIES)
def test_the_same_seed_makes_the_same_world(story: str) -> None:
    assert everything_in(run_world(7, story)) == everything_in(run_world(7, story))


@pytest.mark.heavy
def test_worlds_bring_out_what_they_are_about() -> None:
    """Commits, aborts, successors, restarts and used-up epochs must happen, or nothing is proved by surviving them."""
    worlds = [run_world(seed, story) for story in STORIES for seed in range(6)]
    assert sum(len(world.ledger.committed) for world in worlds) > 200
    assert sum(len(world.ledger.seen) for world in worlds) > 500
    assert sum(len(partition.transactions.aborted) for world in worlds for partition in world.partitions.values()) > 100
    assert sum(world.coordinator.life for world in worlds) > 100
    assert sum(partition.life for world in worlds for partition in world.partitions.values()) > 50
    assert sum(world.incarnation_count for world in worlds) > 200
    # A transactional id that came to the end of its producer id's epochs got another one.
    assert sum(world.producer_id_count - len(world.versions) for world in worlds) > 20


@pytest.mark.heavy
@pytest.mark.parametrize("planted_bug", BUGS, ids=lambda planted_bug: planted_bug.bug.name)
def test_planted_bug_is_caught(planted_bug: TransactionBug) -> None:
    caught: set[str] = set()
    with planted(planted_bug.bug, world=WORLD, anew=ANEW) as world:
        for seed in planted_bug.bug.seeds(BUG_SEEDS_MAX):
            try:
                world.run_world(seed, planted_bug.story)
            # The world's own class, imported anew with it; or an assertion of the machines.
            except (world.InvariantBrokenError, AssertionError) as broken:
                caught.add(getattr(broken, "invariant", "assertion"))
            if planted_bug.bug.invariant in caught:
                return
    pytest.fail(f"{BUG_SEEDS_MAX} worlds, and {planted_bug.bug.invariant!r} did not catch it; caught: {caught}")
