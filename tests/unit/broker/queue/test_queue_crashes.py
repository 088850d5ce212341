"""A node that dies at any moment of a queue's life: what was told holds, and nothing is lost, doubled or hidden.

Bugs planted into the shells must show.
"""

from __future__ import annotations

from itertools import product

import pytest

from support.planted_bugs import Bug, planted
from support.queue.lives import die_after
from support.storage.faulty_files import CrashMode

pytestmark = pytest.mark.heavy

STEPS_MAX = 180
MODES = [CrashMode.KILL, CrashMode.LOST, CrashMode.SCATTERED]

BUGS = [
    Bug(
        "an ack does not wait for the disk",
        "penstock.broker.queue.settling",
        "if not await shell.is_durable():",
        "if False:",
        "came back",
    ),
    Bug(
        "the mover forgets its sequence",
        "penstock.broker.queue.mover",
        "records, producer_id=move.producer_id, producer_epoch=move.producer_epoch, base_sequence=move.base_sequence",
        "records",
        "buried twice",
    ),
    Bug(
        "a cursor runs ahead of what the disk has",
        "penstock.broker.queue.take",
        "commitment = shell.partition.commit_if_unsynced() if sight.found else None",
        "commitment = None",
        # The log begins anew below the cursor; when it has grown past it, what lies between would be hidden.
        "out of range",
    ),
    Bug(
        "nobody buries what an earlier life had decided to",
        "penstock.broker.queue.shell",
        "if queue.pending_move() is not None or queue.dying(1):",
        "if False:",
        "never became empty",
    ),
]


@pytest.mark.parametrize("durability", ["fsync", "interval"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_death_at_any_moment_loses_doubles_and_hides_nothing(mode: CrashMode, durability: str) -> None:
    busy = [await die_after(steps, mode, durability) for steps in range(1, STEPS_MAX, 6)]
    assert sum(busy) > len(busy) // 3, "the consumer was done too early for this to prove anything"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
async def test_planted_bug_is_caught(bug: Bug) -> None:
    caught: list[str] = []
    with planted(bug, world="support.queue.lives", anew=("penstock.broker", "support.queue.")) as world:
        for steps, mode, durability in product(range(2, STEPS_MAX, 2), MODES, ("interval", "fsync")):
            try:
                await world.die_after(steps, mode, durability)
            except AssertionError as broken:
                caught.append(str(broken).splitlines()[0])
                if bug.invariant in caught[-1]:
                    return
    pytest.fail(f"{bug.invariant!r} did not catch it; caught: {set(caught)}")
