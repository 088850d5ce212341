"""Three whole nodes on one metadata store, by real sockets: what was confirmed with acks=all outlives a leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.shell import PartitionShell
from penstock.cluster.catalog.placing import InvalidAssignment
from penstock.cluster.catalog.topic_image import Topic
from penstock.cluster.catalog.topics import Created, NewTopic
from penstock.codec.batch.records import Record, build_batch
from penstock.config import ClusterConfig, Config, NodeConfig
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.node import Node

PATIENCE_SECONDS = 60.0
TOPIC = "orders"


class Cluster:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.nodes: dict[int, Node] = {}

    async def start(self, node_id: int) -> None:
        config = Config(
            node=NodeConfig(
                id=node_id,
                data_dir=str(self._directory / str(node_id)),
                metadata=f"sqlite:{self._directory / 'metadata.sqlite'}",
            ),
            kafka=KafkaServerConfig(listen="127.0.0.1:0"),
            http=HttpServerConfig(listen="off"),
            cluster=ClusterConfig(listen="127.0.0.1:0", session_ms=2_000, replica_lag_ms=2_000),
        )
        node = Node(config)
        await node.start()
        self.nodes[node_id] = node

    async def stop(self, node_id: int) -> None:
        await self.nodes.pop(node_id).stop()

    async def create(self) -> Topic:
        """When node 1 has heard of the others."""
        topics, new = self.nodes[1].parts.topics, NewTopic(TOPIC, 1, {}, assignment=((1, 2, 3),))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                (result,) = await topics.create_topics([new])
                if not isinstance(result, InvalidAssignment):
                    break
                await asyncio.sleep(0.05)
        assert isinstance(result, Created), result
        return result.topic

    def in_sync(self, topic: Topic) -> tuple[int, ...]:
        stated = self.nodes[2].parts.topics.state(topic.topic_id, 0)
        return () if stated is None else stated.state.in_sync

    def shell(self, node_id: int) -> PartitionShell | None:
        served = self.nodes[node_id].parts.broker.topic(TOPIC)
        return None if served is None else served.shell(0)

    def leader(self) -> PartitionShell | None:
        shells = [self.shell(node_id) for node_id in self.nodes]
        return next((shell for shell in shells if shell is not None and shell.is_leading), None)

    async def produce(self, *values: bytes) -> None:
        """To whoever leads, until it is confirmed."""
        for value in values:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await self._try(value):  # noqa: ASYNC110  an election is waited for
                    await asyncio.sleep(0.05)

    async def _try(self, value: bytes) -> bool:
        shell = self.leader()
        if shell is None:
            return False
        outcome = shell.append(memoryview(build_batch([Record(value=value, timestamp_ms=shell.now_ms())])))
        if not isinstance(outcome, Appended):
            return False
        return outcome.commitment is None or await outcome.commitment.kept()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():  # noqa: ASYNC110  what is waited for comes by many ways
                await asyncio.sleep(0.02)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    for node_id in (1, 2, 3):
        await made.start(node_id)
    yield made
    for node_id in list(made.nodes):
        await made.stop(node_id)


async def test_confirmed_records_outlive_their_leader(cluster: Cluster) -> None:
    topic = await cluster.create()
    await cluster.until(lambda: all(cluster.shell(node_id) is not None for node_id in (1, 2, 3)))
    await cluster.produce(b"a", b"b", b"c")
    await cluster.stop(1)
    await cluster.produce(b"d")
    leader = cluster.leader()
    assert leader is not None
    assert leader.role.epoch > 0
    assert leader.readable_end == 4
    await cluster.start(1)
    await cluster.until(lambda: (shell := cluster.shell(1)) is not None and shell.readable_end == 4)
    await cluster.until(lambda: cluster.in_sync(topic) == (1, 2, 3))


INTERNAL = ("__consumer_offsets", "__transaction_state")


def replicas_of(node: Node, name: str) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Sorted replicas, and the set, of each partition as that node knows it."""
    topic = node.parts.topics.by_name(name)
    if topic is None:
        return set()
    states = [stated.state for _, stated in node.parts.topics.states(topic.topic_id)]
    return {(tuple(sorted(state.replicas)), state.in_sync) for state in states}


def replication_of(node: Node, name: str) -> int:
    topic = node.parts.topics.by_name(name)
    return 0 if topic is None else topic.replication


async def test_internal_topics_are_made_with_the_cluster_and_grow_to_three_replicas(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        await cluster.start(1)
        # A node alone has made one of them, and goes on leading what it has.
        assert await cluster.nodes[1].parts.groups.ready()
        assert replicas_of(cluster.nodes[1], INTERNAL[0]) == {((1,), (1,))}
        await cluster.start(2)
        await cluster.until(lambda: all(replicas_of(cluster.nodes[2], name) == {((1, 2), (1, 2))} for name in INTERNAL))
        await cluster.start(3)
        whole = {((1, 2, 3), (1, 2, 3))}
        await cluster.until(lambda: all(replicas_of(cluster.nodes[3], name) == whole for name in INTERNAL))
        await cluster.until(lambda: [replication_of(cluster.nodes[3], name) for name in INTERNAL] == [3, 3])
    finally:
        for node_id in list(cluster.nodes):
            await cluster.stop(node_id)
