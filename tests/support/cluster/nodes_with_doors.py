"""Three whole nodes in one process, by real sockets, on one metadata file: with a door for HTTP and SQS each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx

from penstock.cluster.catalog.placing import InvalidAssignment
from penstock.cluster.catalog.topics import Created, NewTopic
from penstock.config import ClusterConfig, Config, NodeConfig
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.node import Node

PATIENCE_SECONDS = 60.0


class NodesWithDoors:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.nodes: dict[int, Node] = {}
        self.http: dict[int, httpx.AsyncClient] = {}

    async def start(self, node_id: int) -> None:
        config = Config(
            node=NodeConfig(
                id=node_id,
                data_dir=str(self._directory / str(node_id)),
                metadata=f"sqlite:{self._directory / 'metadata.sqlite'}",
            ),
            kafka=KafkaServerConfig(listen="127.0.0.1:0"),
            http=HttpServerConfig(listen="127.0.0.1:0"),
            cluster=ClusterConfig(listen="127.0.0.1:0", session_ms=2_000, replica_lag_ms=2_000),
        )
        node = Node(config)
        await node.start()
        self.nodes[node_id] = node
        self.http[node_id] = httpx.AsyncClient(base_url=f"http://{self.address(node_id)}", timeout=30)

    def address(self, node_id: int) -> str:
        return self.nodes[node_id].addresses["http"]

    async def stop(self, node_id: int) -> None:
        await self.http.pop(node_id).aclose()
        await self.nodes.pop(node_id).stop()

    async def create(self, topic: str, *replicas: tuple[int, ...]) -> None:
        """One partition for each, led by the first of its replicas, and known to all nodes."""
        catalog, new = self.nodes[1].parts.topics, NewTopic(topic, len(replicas), {}, assignment=replicas)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                (result,) = await catalog.create_topics([new])
                if not isinstance(result, InvalidAssignment):
                    break
                await asyncio.sleep(0.05)
        assert isinstance(result, Created), result
        await self.until(lambda: all(self._knows(node, topic, replicas) for node in self.nodes.values()))

    def _knows(self, node: Node, topic: str, replicas: tuple[tuple[int, ...], ...]) -> bool:
        served = node.parts.broker.topic(topic)
        if served is None:
            return False
        own = node.parts.site.node_id
        led = [index for index, (first, *_) in enumerate(replicas) if first == own]
        return [shell.index for shell in served.led()] == led

    async def knows_queue(self, topic: str, group: str) -> None:
        def has_it(node: Node) -> bool:
            return any((each.name.topic, each.name.group) == (topic, group) for each in node.parts.queues.all())

        await self.until(lambda: all(map(has_it, self.nodes.values())))

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():  # noqa: ASYNC110  what is waited for comes by many ways
                await asyncio.sleep(0.02)
