"""What a node is to a partition follows the metadata: which logs it opens, which it leads, and who has the others."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.partition.role import Following, Idle, Leading, Role
from penstock.broker.topic.companion import CompanionKind
from penstock.broker.topic.not_here import Absence, NotHere
from penstock.broker.topic.roles import has_replica, role_of
from penstock.cluster.catalog.first_placement import Run
from penstock.cluster.catalog.topic_image import StoredTopic
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.values import encode
from penstock.domain.replication.state import NO_LEADER, PartitionState, first_state
from support.door.conversation import PATIENCE_SECONDS, TalkingNode, running_node

KEYS = KeySpace()
TOPIC_ID = b"o" * 16
ME, OTHER, LIFE = 1, 2, 40


def state(leader: int, life: int, *replicas: int, epoch: int = 3) -> PartitionState:
    return PartitionState(leader=leader, life=life, epoch=epoch, replicas=replicas, in_sync=tuple(sorted(replicas)))


@pytest.mark.parametrize(
    ("given", "role"),
    [
        (state(ME, LIFE, ME, OTHER), Leading(3, is_replicated=True)),
        (state(OTHER, LIFE, ME, OTHER), Following(3, OTHER)),
        (state(OTHER, 12, OTHER), Following(3, OTHER)),
        (state(ME, LIFE - 1, ME, OTHER), Idle("node 1 led it in an earlier life and waits to be elected anew", 3)),
        # Nobody whom an epoch would have to be told from.
        (state(ME, LIFE - 1, ME), Leading(3)),
        (state(NO_LEADER, 0, ME, OTHER), Idle("none of its replicas [1, 2] may lead", 3)),
        (first_state((ME,), 0), Leading(0)),
    ],
)
def test_role_follows_leader_and_life(given: PartitionState, role: Role) -> None:
    assert role_of(given, ME, LIFE) == role


def test_replica_that_is_being_added_is_here() -> None:
    added = PartitionState(leader=OTHER, life=1, epoch=0, replicas=(OTHER,), in_sync=(OTHER,), adding=(ME,))
    assert has_replica(added, ME)
    assert not has_replica(first_state((OTHER,), 1), ME)


async def put_topic(node: TalkingNode, *placed: Run) -> None:
    count = sum(run.count for run in placed)
    await write(node, KEYS.topic("orders"), encode(StoredTopic(TOPIC_ID, count, placed=placed)))


async def put_state(node: TalkingNode, index: int, given: PartitionState) -> None:
    await write(node, KEYS.partition(TOPIC_ID, index), encode(given))


async def write(node: TalkingNode, key: str, value: bytes) -> None:
    """As another node would; returns when everybody here has heard of it."""
    store = node.catalog._store
    result = await store.txn(puts={key: value})
    await node.catalog._watch.wait_for(result.revision)


def life_of(node: TalkingNode) -> int:
    return node.broker._life()


async def test_only_what_is_assigned_here_is_opened() -> None:
    async with running_node() as node:
        await put_topic(node, Run((OTHER,), 7), Run((ME,), life_of(node)), Run((OTHER, ME), 7))
        topic = node.broker.topic("orders")
        assert topic is not None
        assert [shell.index for shell in topic.shells] == [1, 2]
        assert [shell.role for shell in topic.shells] == [Leading(0), Following(0, OTHER)]
        elsewhere = NotHere(Absence.NOT_LED_HERE, "orders-0 is led by node 2, in epoch 0", OTHER, 0)
        assert node.broker.find("orders", 0) == elsewhere
        assert topic.find(2) == NotHere(Absence.NOT_LED_HERE, "orders-2 is led by node 2, in epoch 0", OTHER, 0)
        assert topic.find(3) == NotHere(Absence.NO_PARTITION, "topic 'orders' has no partition 3")
        assert {home.home.partition for home in node.broker._store.logs if home.home.topic_id == TOPIC_ID} == {1, 2}


async def test_elections_reach_shells_and_their_companions() -> None:
    async with running_node() as node:
        await put_topic(node, Run((OTHER, ME), 7))
        shell = node.shell("orders")
        companion = await node.broker.companion(shell, CompanionKind.QUEUES)
        generation = node.broker.generation
        await put_state(node, 0, state(ME, life_of(node), OTHER, ME, epoch=1))
        assert shell.role == companion.role == Leading(1, is_replicated=True)
        assert node.broker.find("orders", 0) is shell
        assert node.broker.generation > generation, "what was looked up before holds no longer"
        await put_state(node, 0, state(NO_LEADER, 0, OTHER, ME, epoch=2))
        assert isinstance(companion.role, Idle)
        assert node.broker.find("orders", 0) == NotHere(
            Absence.NO_LEADER, "orders-0 has no leader: none of its replicas [2, 1] may lead", epoch=2
        )
        await put_state(node, 0, state(ME, life_of(node) + 1, OTHER, ME, epoch=3))
        assert not shell.is_leading, "elected in another life"


async def test_partition_that_moves_here_is_opened_and_one_that_moves_away_is_not_led() -> None:
    async with running_node() as node:
        await put_topic(node, Run((OTHER,), 7), Run((OTHER, ME), 7))
        topic = node.broker.topic("orders")
        assert topic is not None
        assert topic.shell(0) is None
        await put_state(node, 0, state(ME, life_of(node), ME, OTHER, epoch=1))
        shell = node.shell("orders", 0)
        assert node.broker.find("orders", 0) is shell
        assert [each.index for each in node.broker.topic("orders").shells] == [0, 1]  # type: ignore[union-attr]
        await put_state(node, 0, state(OTHER, 7, OTHER, epoch=2))
        assert node.broker.find("orders", 0) == NotHere(
            Absence.NOT_LED_HERE, "orders-0 is led by node 2, in epoch 2", OTHER, 2
        )
        assert shell.is_closed
        # And back: its log was set aside, and another one is begun.
        await put_state(node, 0, state(ME, life_of(node), ME, OTHER, epoch=3))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while isinstance(found := node.broker.find("orders", 0), NotHere):  # noqa: ASYNC110  a thread renames it
                await asyncio.sleep(0.001)
        assert found is not shell


async def test_another_life_of_the_node_leads_nothing_of_the_earlier_one() -> None:
    async with running_node() as node:
        life = life_of(node)
        await put_topic(node, Run((ME, OTHER), life), Run((ME,), life))
        assert [shell.is_leading for shell in node.broker.topic("orders").shells] == [True, True]  # type: ignore[union-attr]
        node.broker._life = lambda: life + 1
        node.broker.take_roles()
        assert [shell.is_leading for shell in node.broker.topic("orders").shells] == [False, True]  # type: ignore[union-attr]


async def test_topic_of_a_node_alone_is_led_in_the_first_epoch() -> None:
    async with running_node() as node:
        await node.create_topic("orders", 3)
        assert [shell.role for shell in node.broker.topic("orders").shells] == [Leading(0)] * 3  # type: ignore[union-attr]
        stored = await node.catalog._store.range(KEYS.partitions)
        assert stored.entries == (), "no key for each partition"
