"""A node that dies at any moment of a schedule's life: nothing early, nothing twice, nothing lost, and who cancels has
won or was told that it is too late.

Bugs planted into the shells must show.
"""

from __future__ import annotations

from itertools import product

import pytest

from support.planted_bugs import Bug, planted
from support.schedule.lives import die_after
from support.storage.faulty_files import CrashMode

pytestmark = pytest.mark.heavy

STEPS_MAX = 360
MODES = [CrashMode.KILL, CrashMode.LOST, CrashMode.SCATTERED]

BUGS = [
    Bug(
        "a reply does not wait for the disk",
        "penstock.broker.schedule.shell",
        "        if not await self._is_settled():\n"
        "            return RESIGNED if self._is_resigned else LOST\n"
        "        origins",
        "        origins",
        "lost",
    ),
    Bug(
        "the mover does not write its intent down",
        "penstock.broker.schedule.mover",
        "shell.write([write_row(record) for record in decision.records])",
        "pass",
        "twice",
    ),
    # A mover that knows nothing of what was there before it was made. It counts what it writes itself, or it would
    # never come to an end.
    Bug(
        "the mover does not look what is there already",
        "penstock.broker.schedule.mover",
        "return 0 if state is None else _written_count(state, move)",
        "own = vars(self).setdefault('own', (state and list(state.batches),))[0]\n"
        "        return 0 if state is None or list(state.batches) == own else _written_count(state, move)",
        "twice",
    ),
    Bug(
        "the schedule forgets before the topic has it",
        "penstock.broker.schedule.mover",
        "commitment = partition.commit_unless_kept()",
        "commitment = None",
        "lost",
    ),
    Bug(
        "rows behind the checkpoint are not read",
        "penstock.broker.schedule.replay",
        "start = max(start, stored.next_position)",
        "start = companion.log.log_end",
        "lost",
    ),
]


@pytest.mark.parametrize("durability", ["fsync", "interval"])
@pytest.mark.parametrize("mode", MODES)
async def test_a_death_at_any_moment_loses_doubles_and_hastens_nothing(mode: CrashMode, durability: str) -> None:
    busy = [await die_after(steps, mode, durability) for steps in range(1, STEPS_MAX, 17)]
    assert sum(busy) > len(busy) // 3, "the door was done too early for this to prove anything"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
async def test_planted_bug_is_caught(bug: Bug) -> None:
    caught: list[str] = []
    anew = ("penstock.broker", "support.schedule.", "support.queue.")
    with planted(bug, world="support.schedule.lives", anew=anew) as world:
        for steps, mode, durability in product(range(7, STEPS_MAX, 7), MODES[1:], ("interval", "fsync")):
            try:
                await world.die_after(steps, mode, durability)
            except AssertionError as broken:
                caught.append(str(broken).splitlines()[0])
                if bug.invariant in caught[-1]:
                    return
    pytest.fail(f"{bug.invariant!r} did not catch it; caught: {set(caught)}")
