"""A coordinator that dies at any moment: whatever was told to a producer holds, and nothing stays half done.

One producer lives through some transactions; after every number of turns of the loop the machine dies, keeps what the
disk had or a little more, and the next life finishes what the last one had begun. Bugs planted into the shells must
show.
"""

from __future__ import annotations

from itertools import product

import pytest

from support.planted_bugs import Bug, planted
from support.storage.faulty_files import CrashMode
from support.transaction.lives import die_after, fail_after

pytestmark = pytest.mark.heavy

STEPS_MAX = 120
SHELL = "penstock.broker.transaction.shell"

BUGS = [
    Bug(
        "nobody finishes what an earlier life decided",
        SHELL,
        "self._mark_when_durable(machine.pending_markers())",
        "pass",
        "never came",
    ),
    Bug(
        "a reply does not wait for the disk",
        SHELL,
        "return await self._refuse_reply(is_look=not decision.records) or decision.reply",
        "return decision.reply",
        "told",
    ),
]


@pytest.mark.parametrize("mode", [CrashMode.KILL, CrashMode.LOST, CrashMode.SCATTERED])
@pytest.mark.parametrize("version", [1, 2])
async def test_a_crash_at_any_moment_leaves_nothing_half_done(version: int, mode: CrashMode) -> None:
    crashed = [await die_after(steps, version, mode) for steps in range(1, STEPS_MAX, 2)]
    assert sum(crashed) > STEPS_MAX // 3, "the producer was done too early for this to prove anything"


@pytest.mark.parametrize("version", [1, 2])
async def test_a_sync_that_fails_at_any_moment_leaves_nothing_half_done(version: int) -> None:
    hit = [await fail_after(steps, version) for steps in range(1, STEPS_MAX, 4)]
    assert sum(hit) > STEPS_MAX // 12, "the producer was done too early for this to prove anything"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
async def test_planted_bug_is_caught(bug: Bug) -> None:
    caught: list[str] = []
    with planted(bug, world="support.transaction.lives", anew=("penstock.broker", "support.transaction.")) as world:
        for steps in range(1, STEPS_MAX):
            for version, mode in product((1, 2), (CrashMode.LOST, CrashMode.SCATTERED)):
                try:
                    await world.die_after(steps, version, mode)
                except AssertionError as broken:
                    caught.append(str(broken).splitlines()[0])
                    if bug.invariant in caught[-1]:
                        return
    pytest.fail(f"{bug.invariant!r} did not catch it; caught: {set(caught)}")
