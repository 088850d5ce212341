"""Internal topics get the replicas that they lack from the controller; other topics do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from penstock.cluster.catalog.topic_image import StoredTopic
from penstock.cluster.store.values import decode
from penstock.domain.replication.growth import MOVES_AT_ONCE
from penstock.domain.replication.state import PartitionState
from support.cluster.members import KEYS, MemberWorld

OFFSETS = "__consumer_offsets"


@pytest.fixture
async def world() -> AsyncIterator[MemberWorld]:
    world = await MemberWorld.open()
    yield world
    await world.close()


async def states(world: MemberWorld, topic_id: bytes, count: int) -> list[PartitionState | None]:
    return [await world.state(topic_id, index) for index in range(count)]


async def let_join(world: MemberWorld, topic_id: bytes, count: int) -> int:
    """Who is being added has caught up, and its leader takes it into the set; how many there were."""
    joined = 0
    for index, state in enumerate(await states(world, topic_id, count)):
        if state is not None and state.adding:
            in_sync = tuple(sorted({*state.in_sync, *state.adding}))
            await world.put_state(topic_id, index, replace(state, in_sync=in_sync))
            joined += 1
    await world.settle()
    return joined


async def replication_of(world: MemberWorld, name: str) -> int:
    entry = await world.store.get(KEYS.topic(name))
    assert entry is not None
    return decode(entry.key, entry.value, StoredTopic).replication


async def test_internal_topic_grows_to_three_replicas_when_a_third_node_serves(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic(OFFSETS, world.place(1, 2, count=3), world.place(2, 1, count=3))
    await world.settle()
    assert await states(world, topic_id, 6) == [None] * 6
    await world.form(3)
    assert [state.adding for state in await states(world, topic_id, 6) if state is not None] == [(3,)] * 6
    assert await replication_of(world, OFFSETS) == 2
    await let_join(world, topic_id, 6)
    grown = [state for state in await states(world, topic_id, 6) if state is not None]
    assert [(sorted(state.replicas), state.in_sync, state.adding) for state in grown] == [
        ([1, 2, 3], (1, 2, 3), ())
    ] * 6
    assert await replication_of(world, OFFSETS) == 3
    # The new one is preferred for its share: all coordinators would stay where they were made.
    assert Counter(state.replicas[0] for state in grown)[3] == 2
    # Nobody is disturbed by it: no leader has changed.
    assert {state.epoch for state in grown} == {0}


async def test_topic_of_a_user_keeps_the_replicas_it_was_made_with(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic("orders", world.place(1, 2))
    await world.form(3)
    assert await world.state(topic_id) is None


async def test_only_some_are_added_to_a_node_at_once(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic(OFFSETS, world.place(1, 2, count=20))
    await world.form(3)
    rounds = []
    while joined := await let_join(world, topic_id, 20):
        rounds.append(joined)
    assert rounds == [MOVES_AT_ONCE, MOVES_AT_ONCE, 20 - 2 * MOVES_AT_ONCE]
    assert await replication_of(world, OFFSETS) == 3


async def test_internal_topic_of_a_node_alone_grows_with_the_cluster(world: MemberWorld) -> None:
    (first,) = await world.form(1)
    topic_id = await world.put_topic(OFFSETS, world.place(1, count=2))
    await world.form(2, 3)
    while await let_join(world, topic_id, 2):
        pass
    grown = [state for state in await states(world, topic_id, 2) if state is not None]
    assert [sorted(state.replicas) for state in grown] == [[1, 2, 3]] * 2
    # Whoever leads has begun an epoch in this life of its: it has followers now.
    assert [(state.leader, state.life, state.epoch) for state in grown] == [(1, first.life, 1)] * 2
    assert await replication_of(world, OFFSETS) == 3


async def test_new_controller_goes_on_with_what_is_being_added(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic(OFFSETS, world.place(2, 1))
    await world.form(3)
    await world.expire(1)
    world.clock.advance_ms(1000)
    await world.settle()
    await let_join(world, topic_id, 1)
    state = await world.state(topic_id)
    assert state is not None
    assert (state.replicas, state.in_sync, state.adding) == ((2, 1, 3), (2, 3), ())


async def test_added_node_that_is_away_is_waited_for(world: MemberWorld) -> None:
    await world.form(1, 2)
    topic_id = await world.put_topic(OFFSETS, world.place(1, 2))
    await world.form(3)
    await world.expire(3)
    await world.settle()
    state = await world.state(topic_id)
    assert state is not None
    assert (state.adding, state.in_sync) == ((3,), (1, 2))
    # Another one could have it instead.
    await world.form(4)
    state = await world.state(topic_id)
    assert state is not None
    assert state.adding == (4,)


async def test_who_has_come_into_sync_takes_over_from_the_last_one_that_leaves(world: MemberWorld) -> None:
    """Nobody is left whom it could be added for, and it holds everything: it is to lead."""
    _, second = await world.form(1, 2)
    topic_id = await world.put_topic(OFFSETS, world.place(2, 1))
    (third,) = await world.form(3)
    await world.expire(1)
    world.clock.advance_ms(1000)
    await world.settle()
    await second.drain()
    await world.settle()
    await let_join(world, topic_id, 1)
    state = await world.state(topic_id)
    assert state is not None
    assert (state.leader, state.life, state.adding) == (3, third.life, ())
