"""Which partition fires a cron: the rules at random, and that each of them is missed when it is taken out."""

from __future__ import annotations

from typing import Final

import pytest

from support.planted_bugs import Bug, planted
from support.schedule.cron_world import CRON_ONCE, CRON_QUIET, walk

SEEDS: Final = 500
WORLD: Final = "support.schedule.cron_world"
MODULE: Final = "penstock.domain.schedule.cron_place"

BUGS: Final = (
    Bug(
        "another fires before the one before it has let go",
        MODULE,
        "    return CronPlace(partition, version, None if holder == partition else holder, place.fired_ms)\n",
        "    return CronPlace(partition, version, None, place.fired_ms)\n",
        CRON_ONCE,
    ),
    Bug(
        "who was named in between is waited for, and not who fires",
        MODULE,
        "    holder = place.partition if place.held is None else place.held\n",
        "    holder = place.partition\n",
        CRON_ONCE,
    ),
    Bug(
        "what was fired before a move is not told",
        MODULE,
        "fired_ms=max(place.fired_ms, fired_ms))",
        "fired_ms=place.fired_ms)",
        CRON_ONCE,
    ),
    Bug(
        "what was told is not learned",
        MODULE,
        "    if cron.fired_ms < place.fired_ms:\n",
        "    if cron.fired_ms < 0:\n",
        CRON_ONCE,
    ),
    Bug(
        "a replaced row stays",
        MODULE,
        "        return Standing.NEWER if cron.version > place.version else Standing.STALE\n",
        "        return Standing.WAITS\n",
        CRON_QUIET,
    ),
)


def test_no_time_comes_twice_and_one_partition_is_left() -> None:
    assert sum(walk(seed) for seed in range(SEEDS)) > SEEDS * 5, "hardly anything was fired"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_the_walk_catches_the_bug(bug: Bug) -> None:
    broken: AssertionError | None = None
    with planted(bug, world=WORLD, anew=(MODULE, WORLD)) as world:
        for seed in bug.seeds(SEEDS):
            try:
                world.walk(seed)
            except AssertionError as error:
                broken = error
                break
    assert broken is not None, f"{SEEDS} seeds did not notice: {bug.name}"
    assert getattr(broken, "invariant", "") == bug.invariant, broken
