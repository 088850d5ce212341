"""Elections that somebody asks for: the preferred replica, or whoever is left; by any node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.cluster.controller.requested import (
    Elected,
    NoPartition,
    NotNeeded,
    NotPossible,
    RequestedElections,
    Wish,
)
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.domain.replication.state import NO_LEADER, PartitionState
from support.cluster.members import KEYS, FakeDirectory, MemberNode, MemberWorld


@pytest.fixture
async def world() -> AsyncIterator[MemberWorld]:
    world = await MemberWorld.open()
    yield world
    await world.close()


def elections_of(node: MemberNode) -> RequestedElections:
    return RequestedElections(node.store, KEYS, node.topics, node.nodes)


async def led_elsewhere(world: MemberWorld, *, count: int = 1) -> bytes:
    """Partitions that prefer node 3 and are led by another since it was away."""
    topic_id = await world.put_topic("orders", world.place(3, 2, 1, count=count))
    await world.expire(3)
    await world.settle()
    await world.form(3)
    for index in range(count):
        state = await world.state(topic_id, index)
        assert state is not None
        back = PartitionState(
            leader=state.leader, life=state.life, epoch=state.epoch, replicas=(3, 2, 1), in_sync=(1, 2, 3)
        )
        await world.put_state(topic_id, index, back)
    await world.settle()
    return topic_id


async def test_preferred_replica_leads_again_when_it_is_asked_for(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await led_elsewhere(world)
    # Node 2 is not the controller.
    elections = elections_of(world.living[2])
    assert await elections.elect([(topic_id, 0)], Wish.PREFERRED) == [Elected(3, 2)]
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.life, state.in_sync) == (3, world.living[3].life, (1, 2, 3))
    assert await elections.elect([(topic_id, 0)], Wish.PREFERRED) == [NotNeeded(3)]
    assert await elections.elect([(topic_id, 0)], Wish.UNCLEAN) == [NotNeeded(3)]


async def test_preferred_replica_that_is_not_in_sync_is_not_elected(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await world.put_topic("orders", world.place(3, 2, 1))
    await world.expire(3)
    await world.settle()
    (told,) = await elections_of(world.living[1]).elect([(topic_id, 0)], Wish.PREFERRED)
    assert isinstance(told, NotPossible)
    assert told.reason == "node 3, which is preferred, is not in sync or does not serve: in sync are [1, 2]"


async def test_single_replica_whose_disk_was_replaced_is_elected_only_uncleanly(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic("orders", world.place(2))
    await world.expire(2)
    world.directories[2] = FakeDirectory(2, "another-disk")
    await world.form(2)
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.in_sync) == (NO_LEADER, ())
    elections = elections_of(world.living[1])
    (told,) = await elections.elect([(topic_id, 0)], Wish.PREFERRED)
    assert isinstance(told, NotPossible)
    assert await elections.elect([(topic_id, 0)], Wish.UNCLEAN) == [Elected(2, state.epoch + 1)]
    after = await world.state(topic_id)
    assert after is not None
    assert (after.leader, after.in_sync, after.unclean_epoch) == (2, (2,), after.epoch)
    await world.settle()
    assert await world.state(topic_id) == after, "and the controller leaves it so"


async def test_nobody_is_elected_where_nobody_runs(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic("orders", world.place(2))
    await world.expire(2)
    (told,) = await elections_of(world.living[1]).elect([(topic_id, 0)], Wish.UNCLEAN)
    assert told == NotPossible("none of its replicas [2] runs")
    assert await elections_of(world.living[1]).elect([(topic_id, 7), (b"?" * 16, 0)], Wish.UNCLEAN) == [
        NoPartition(),
        NoPartition(),
    ]


async def test_one_that_changed_meanwhile_does_not_hold_up_the_others(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await led_elsewhere(world, count=3)
    node = world.living[2]
    # Node 2 hears late that somebody has left one of the sets.
    node.store.hold()
    state = await world.state(topic_id, 1)
    assert state is not None
    await world.put_state(
        topic_id,
        1,
        PartitionState(leader=state.leader, life=state.life, epoch=state.epoch, replicas=(3, 2, 1), in_sync=(1, 2)),
    )
    asked = elections_of(node).elect([(topic_id, index) for index in range(3)], Wish.PREFERRED)
    # Whoever elects waits until this node has heard of it.
    node.store.release()
    first, second, third = await asked
    assert isinstance(first, Elected)
    assert isinstance(second, NotPossible)
    assert isinstance(third, Elected)


async def test_more_than_sixty_take_several_transactions(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await led_elsewhere(world, count=130)
    node = world.living[1]
    node.store.puts_of_txns.clear()
    told = await elections_of(node).elect([(topic_id, index) for index in range(130)], Wish.PREFERRED)
    assert all(isinstance(each, Elected) for each in told)
    assert node.store.puts_of_txns == [60, 60, 10]


async def test_election_of_unknown_outcome_is_told_and_not_repeated(world: MemberWorld) -> None:
    await world.form(1, 2, 3)
    topic_id = await led_elsewhere(world)
    node = world.living[2]
    node.store.unknown_count = 1
    with pytest.raises(StoreUnavailableError):
        await elections_of(node).elect([(topic_id, 0)], Wish.PREFERRED)
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.epoch) == (3, 2)
