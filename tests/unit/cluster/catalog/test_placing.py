"""Where new partitions go: by the nodes that serve, and by what a caller asks for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.cluster.catalog.placing import ON_NODE_1, InvalidAssignment, InvalidReplication, Placing
from penstock.cluster.catalog.topic_image import RemovedTopic
from penstock.cluster.catalog.topics import Created, Grown, InvalidPartitions, NewTopic, TopicCatalog
from penstock.cluster.store.values import decode
from penstock.domain.replication.state import PartitionState
from support.cluster.members import KEYS, MemberNode, MemberWorld


@pytest.fixture
async def world() -> AsyncIterator[MemberWorld]:
    world = await MemberWorld.open()
    yield world
    await world.close()


async def create(catalog: TopicCatalog, new: NewTopic) -> object:
    (result,) = await catalog.create_topics([new])
    return result


def replicas(node: MemberNode, created: object) -> list[tuple[int, ...]]:
    assert isinstance(created, Created | Grown), created
    return [stated.state.replicas for _, stated in node.topics.states(created.topic.topic_id)]


async def test_leaders_and_replicas_are_spread_over_the_nodes_that_serve(world: MemberWorld) -> None:
    first, _, _ = await world.form(1, 2, 3)
    await world.start(4)
    await world.settle()  # admitted, and not serving yet
    created = await create(first.topics, NewTopic("orders", 6, replication=2))
    placed = replicas(first, created)
    assert sorted(row[0] for row in placed) == [1, 1, 2, 2, 3, 3]
    assert all(len(set(row)) == 2 for row in placed)
    assert isinstance(created, Created)
    assert created.topic.replication == 2
    for run in created.topic.placed:
        assert run.life == world.living[run.replicas[0]].life, "the first of them leads at once"
    assert (await world.store.range(KEYS.partitions)).entries == ()


@pytest.mark.parametrize(("nodes", "wanted"), [((1,), 1), ((1, 2), 2), ((1, 2, 3, 4), 3)])
async def test_replication_that_is_not_said_is_three_or_as_many_as_there_are(
    world: MemberWorld, nodes: tuple[int, ...], wanted: int
) -> None:
    first, *_ = await world.form(*nodes)
    assert [len(row) for row in replicas(first, await create(first.topics, NewTopic("orders", 2)))] == [wanted] * 2


async def test_replication_needs_as_many_nodes(world: MemberWorld) -> None:
    first, _ = await world.form(1, 2)
    for factor, reason in (
        (3, "3 replicas need 3 nodes that take partitions, and there are 2"),
        (0, "a partition needs at least 1 replica, not 0"),
    ):
        assert await create(first.topics, NewTopic("orders", 1, replication=factor)) == InvalidReplication(reason)
    configured = Placing(1, first.nodes, by_default=3)
    assert isinstance(configured.replication(-1), InvalidReplication), "who configures it means it"


async def test_assignment_is_taken_as_it_is_or_refused_with_the_reason(world: MemberWorld) -> None:
    first, _, _ = await world.form(1, 2, 3)
    created = await create(first.topics, NewTopic("orders", 2, assignment=((3, 1), (2, 3))))
    assert replicas(first, created) == [(3, 1), (2, 3)]
    for assignment, reason in (
        (((1, 9), (2, 3)), "partition 0 is given to node 9, which is not there"),
        (((1, 2), (3,)), "partition 1 is given 1 replicas and partition 0 2: "),
        (((1, 2),), "1 assignments for 2 new partitions"),
    ):
        refused = await create(first.topics, NewTopic("other", 2, assignment=assignment))
        assert isinstance(refused, InvalidAssignment)
        assert refused.reason.startswith(reason)


async def test_new_partitions_have_as_many_replicas_and_go_where_there_are_fewest(world: MemberWorld) -> None:
    first, _, _ = await world.form(1, 2, 3)
    await create(first.topics, NewTopic("orders", 2, assignment=((1, 2), (2, 1))))
    grown = await first.topics.create_partitions("orders", 3)
    assert replicas(first, grown)[:2] == [(1, 2), (2, 1)]
    assert replicas(first, grown)[2][0] == 3
    grown = await first.topics.create_partitions("orders", 4, assignment=((3, 1),))
    assert replicas(first, grown)[3] == (3, 1)
    refused = await first.topics.create_partitions("orders", 5, assignment=((3,),))
    assert refused == InvalidAssignment("1 replicas are given, and the other partitions have 2")
    await world.expire(3)
    await world.expire(2)
    assert isinstance(await first.topics.create_partitions("orders", 5), InvalidReplication)
    assert isinstance(await first.topics.create_partitions("orders", 4), InvalidPartitions)


async def test_racks_are_told_apart(world: MemberWorld) -> None:
    nodes = await world.form(1, 2, 3, 4)
    for node, rack in zip(nodes, "aabb", strict=True):
        await node.tell_rack(rack)
    await world.hear()
    placed = replicas(nodes[0], await create(nodes[0].topics, NewTopic("orders", 8, replication=2)))
    assert all(len({"aabb"[node_id - 1] for node_id in row}) == 2 for row in placed)


async def test_removal_is_remembered_until_every_node_has_removed_its_files(world: MemberWorld) -> None:
    first, second, third = await world.form(1, 2, 3)
    created = await create(first.topics, NewTopic("orders", 1, assignment=((3, 1),)))
    assert isinstance(created, Created)
    topic_id = created.topic.topic_id
    # Node 2 has a replica meanwhile.
    moved = PartitionState(leader=1, life=first.life, epoch=1, replicas=(1, 3), in_sync=(1, 3), adding=(2,))
    await world.put_state(topic_id, 0, moved)
    await world.hear()
    await first.topics.delete_topic("orders")
    key = KEYS.removed_topic(topic_id)
    for node, left in ((second, (1, 3)), (first, (3,)), (first, (3,))):
        await node.topics.forget_removed(topic_id)
        entry = await world.store.get(key)
        assert entry is not None
        assert decode(key, entry.value, RemovedTopic).nodes == left
    # It was killed before it could tell.
    await third.topics.forget_all_removed()
    assert await world.store.get(key) is None


def test_node_alone_needs_nobody() -> None:
    assert ON_NODE_1.replication(-1) == 1
    runs = ON_NODE_1.place(10_000, 1, None)
    assert isinstance(runs, tuple)
    assert [(run.replicas, run.count) for run in runs] == [((1,), 10_000)]
