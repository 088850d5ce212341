"""What a controller does when nothing is urgent: the longest log leads where all memories were lost, and preferred
replicas lead again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from penstock.cluster.controller.elections import Place
from penstock.cluster.controller.runner import PREFER_MS
from penstock.domain.replication.election import CHANGES_A_STEP_MAX
from penstock.domain.replication.state import NO_LEADER, PartitionState
from support.cluster.members import TTL_MS, MemberWorld


@pytest.fixture
async def world() -> AsyncIterator[MemberWorld]:
    world = await MemberWorld.open()
    yield world
    await world.close()


class Ends:
    """What nodes say when they are asked how far their logs reach."""

    def __init__(self, **ends: tuple[int, int]) -> None:
        self.by_node = {int(name[1:]): end for name, end in ends.items()}
        self.asked: list[int] = []

    async def __call__(self, node: int, _place: Place) -> tuple[int, int] | None:
        self.asked.append(node)
        return self.by_node.get(node)


async def power_cut(world: MemberWorld, ends: Ends, *back: int) -> None:
    """All machines went down at once; `back` are those that have been started since."""
    for node_id in list(world.living):
        await world.kill(node_id)
    for directory in world.directories.values():
        directory.boot_id = "boot-2"
    await world.pass_time(2 * TTL_MS)
    await bring_back(world, ends, *back)


async def bring_back(world: MemberWorld, ends: Ends, *back: int) -> None:
    for node in await world.start(*back):
        node.controller.ask_ends_by(ends)
    await settle(world)
    for node_id in back:
        await world.living[node_id].serve()
    await settle(world)


async def settle(world: MemberWorld) -> None:
    """Also what runs beside a controller's turn."""
    for _ in range(3):
        await world.settle()
        await asyncio.sleep(0)
        await world.pass_time(1000)
    await world.settle()


async def test_longest_log_leads_when_all_that_lost_their_memory_are_back(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(1, 2, 3), durability="replicated", min_insync_replicas="2")
    ends = Ends(n1=(0, 40), n2=(0, 70), n3=(0, 50))
    await power_cut(world, ends, 1, 2)
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.unsure) == (NO_LEADER, (1, 2)), "node 3 may hold more"
    assert ends.asked == [], "nobody is asked before all are back"
    with capture_logs() as logs:
        await bring_back(world, ends, 3)
    after = await world.state(topic_id)
    assert after is not None
    assert (after.leader, after.in_sync, after.unsure) == (2, (2,), ())
    assert after.unclean_epoch == after.epoch
    (told,) = [each for each in logs if each["event"].startswith("possible loss")]
    assert (told["leader"], told["log_level"]) == (2, "warning")


async def test_nobody_leads_while_one_of_them_cannot_tell_its_end(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic("orders", world.place(1, 2), durability="replicated", min_insync_replicas="2")
    ends = Ends(n1=(3, 40))
    await power_cut(world, ends, 1, 2)
    state = await world.state(topic_id)
    assert state is not None
    assert state.leader == NO_LEADER
    # It is asked again, every second.
    ends.by_node[2] = (4, 10)
    await settle(world)
    after = await world.state(topic_id)
    assert after is not None
    assert after.leader == 2, "the later epoch counts before the end"


async def test_disks_are_believed_after_a_power_cut(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic("orders", world.place(1, 2))
    ends = Ends()
    await power_cut(world, ends, 1, 2)
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.unsure, state.unclean_epoch) == (1, (), -1)
    assert ends.asked == []


async def away(world: MemberWorld, count: int, *, of: int) -> bytes:
    """A topic of which so many partitions are led by node 2 and prefer node 1."""
    topic_id = await world.put_topic("orders", world.place(1, 2, count=of))
    for index in range(count):
        led = PartitionState(leader=2, life=world.living[2].life, epoch=1, replicas=(1, 2), in_sync=(1, 2))
        await world.put_state(topic_id, index, led)
    await world.settle()
    return topic_id


async def led_by_2(world: MemberWorld, topic_id: bytes, count: int) -> int:
    states = [await world.state(topic_id, index) for index in range(count)]
    return sum(state is not None and state.leader == 2 for state in states)


async def test_preferred_replicas_lead_again_after_five_minutes(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await away(world, 3, of=10)
    assert await led_by_2(world, topic_id, 3) == 3
    await world.pass_time(PREFER_MS)
    await world.settle()
    assert await led_by_2(world, topic_id, 3) == 0


async def test_few_that_are_away_stay_there(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await away(world, 1, of=20)
    await world.pass_time(PREFER_MS)
    await world.settle()
    assert await led_by_2(world, topic_id, 1) == 1


async def test_preferred_replicas_lead_again_sixty_at_a_time(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await away(world, 100, of=100)
    await world.pass_time(PREFER_MS)
    await world.living[1].controller.turn()
    await world.hear()
    assert await led_by_2(world, topic_id, 100) == 100 - CHANGES_A_STEP_MAX
    await world.pass_time(1000)
    await world.settle()
    assert await led_by_2(world, topic_id, 100) == 0
