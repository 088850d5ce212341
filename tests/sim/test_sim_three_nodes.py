"""Three nodes that share a metadata store, in one world: the ground on which clusters will be simulated."""

from __future__ import annotations

import asyncio

import pytest

from penstock.base.clock import ManualClock
from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.offsets import LATEST, list_offsets
from penstock.client.kafka.producer import Acknowledged, PartitionBatch, Producer, ProducerOptions
from penstock.cluster.nodes import NodeRegistry
from penstock.cluster.store.keys import KeySpace
from penstock.codec.batch.records import Record, build_batch
from penstock.net.errors import BrokerError
from support.sim.node import SimNode
from support.sim.store import SimStore
from support.sim.world import World
from support.storage.faulty_files import CrashMode

TOPIC = "orders"
# The longest that a registration outlives its node, and more.
GONE_SECONDS = 30.0


async def started(world: World) -> None:
    assert all(await asyncio.gather(*(node.start() for node in world.nodes)))


async def spread_topic(world: World) -> None:
    """Each node leads one partition."""
    async with ClusterClient([world.nodes[0].address]) as client:
        await create_topic(client, TOPIC, partitions=len(world.nodes), replication=1)


async def produce(node: SimNode, count: int) -> list[float]:
    """To a partition that the node leads, if it leads any. How long each of them took, by the loop's clock."""
    loop = asyncio.get_running_loop()
    took = []
    async with ClusterClient([node.address]) as client:
        topic = await client.topic(TOPIC, auto_create=True)
        partition = next((each.partition for each in topic.partitions if each.leader == node.number), 0)
        producer = Producer(client, ProducerOptions(is_idempotent=True))
        await producer.start()
        for number in range(count):
            began = loop.time()
            batch = build_batch([Record(value=b"%d" % number)])
            (outcome,) = await producer.send([PartitionBatch(TOPIC, partition, batch, 1)])
            assert isinstance(outcome, Acknowledged)
            took.append(loop.time() - began)
    return took


async def registered(world: World) -> list[int]:
    nodes = await NodeRegistry(SimStore(world.engine, "world"), KeySpace(), clock=ManualClock()).nodes()
    return [record.node_id for record in nodes]


def test_three_nodes_serve_while_one_is_paused() -> None:
    async def story(world: World) -> None:
        await started(world)
        await spread_topic(world)
        works = [asyncio.ensure_future(produce(node, 60)) for node in world.nodes]
        await asyncio.sleep(0.1)
        world.nodes[1].pause()
        await asyncio.sleep(2)
        world.nodes[1].resume()
        first, paused, third = await asyncio.gather(*works)
        assert max(paused) > 1.9
        assert max(*first, *third) < 1.0

    World(1, node_count=3).run(story)


def test_a_topic_made_by_one_is_known_to_all() -> None:
    async def story(world: World) -> None:
        await started(world)
        await produce(world.nodes[0], 1)
        async with ClusterClient([world.nodes[2].address]) as client:
            assert (await client.topic(TOPIC)).name == TOPIC

    World(2, node_count=3).run(story)


def test_a_node_that_is_gone_or_paused_for_long_is_no_longer_registered() -> None:
    async def story(world: World) -> None:
        await started(world)
        assert await registered(world) == [1, 2, 3]
        world.nodes[0].pause()
        world.nodes[1].crash(CrashMode.LOST)
        await asyncio.sleep(GONE_SECONDS)
        assert await registered(world) == [3]
        world.nodes[0].resume()
        await world.nodes[1].start()
        await asyncio.sleep(GONE_SECONDS)
        assert await registered(world) == [1, 2, 3]

    World(3, node_count=3).run(story)


def test_many_nodes_tell_the_same_story_twice() -> None:
    async def story(world: World) -> None:
        await started(world)
        await asyncio.gather(*(produce(node, 20) for node in world.nodes))

    worlds = [World(4, node_count=3), World(4, node_count=3)]
    for world in worlds:
        world.run(story)
    assert worlds[0].trace == worlds[1].trace


async def leads_nothing(node: SimNode) -> None:
    """It has less than was promised in its name, and says so instead of serving that."""
    await node.start()
    assert node.failure is None
    with pytest.raises(BrokerError, match="leader not available"):
        await log_end(node)


def test_a_disk_that_was_put_back_is_as_it_was_and_leads_nothing() -> None:
    async def story(world: World) -> None:
        await started(world)
        node = world.nodes[0]
        await produce(node, 5)
        await node.stop()
        image = node.files.image()
        await node.start()
        await produce(node, 5)
        assert await log_end(node) == 10
        node.crash(CrashMode.LOST)
        node.roll_back(image)
        assert node.files.image() == image
        await leads_nothing(node)
        await node.stop()
        node.wipe()
        assert node.files.image() == {}
        await leads_nothing(node)

    World(5, node_count=1).run(story)


async def log_end(node: SimNode) -> int:
    async with ClusterClient([node.address]) as client:
        return (await list_offsets(client, TOPIC, {0: LATEST}))[0]
