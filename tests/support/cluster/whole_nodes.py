"""Three whole nodes on one metadata store, by real sockets, in one loop. One can be killed, as far as that goes: its
doors and its session end, and nothing is handed over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from penstock.broker.partition.shell import PartitionShell
from penstock.broker.parts import Parts
from penstock.cluster.catalog.placing import InvalidAssignment
from penstock.cluster.catalog.topics import Created, NewTopic
from penstock.config import ClusterConfig, Config, NodeConfig
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.server_config import KafkaServerConfig
from penstock.node import Node

PATIENCE_SECONDS: Final = 60.0
NODES: Final = (1, 2, 3)


class WholeNodes:
    def __init__(self, directory: Path, *, rehearsal_rows: int) -> None:
        self._directory = directory
        self._rehearsal_rows = rehearsal_rows
        self.nodes: dict[int, Node] = {}

    async def start(self, *node_ids: int) -> None:
        for node_id in node_ids or NODES:
            config = Config(
                node=NodeConfig(
                    id=node_id,
                    data_dir=str(self._directory / str(node_id)),
                    metadata=f"sqlite:{self._directory / 'metadata.sqlite'}",
                ),
                kafka=KafkaServerConfig(listen="127.0.0.1:0"),
                http=HttpServerConfig(listen="off"),
                cluster=ClusterConfig(
                    listen="127.0.0.1:0", session_ms=2_000, replica_lag_ms=2_000, rehearsal_rows=self._rehearsal_rows
                ),
            )
            self.nodes[node_id] = Node(config)
            await self.nodes[node_id].start()

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self.nodes):
            await self.nodes.pop(node_id).stop()

    def parts(self, node_id: int) -> Parts:
        return self.nodes[node_id].parts

    async def create(self, topic: str) -> None:
        """One partition, led by node 1, as soon as that has heard of the others."""
        new = NewTopic(topic, 1, {}, assignment=(NODES,))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                (result,) = await self.parts(1).topics.create_topics([new])
                if not isinstance(result, InvalidAssignment):
                    break
                await asyncio.sleep(0.02)
        assert isinstance(result, Created), result
        await self.until(lambda: all(self.shell(node_id, topic) is not None for node_id in NODES))

    async def create_anew(self, internal: str) -> None:
        """An internal topic with one partition, led by node 1, in place of the one that was made at the start."""
        topics = self.parts(1).topics
        await self.until(lambda: topics.by_name(internal) is not None)
        await topics.delete_topic(internal)
        new = NewTopic(internal, 1, {"cleanup.policy": "compact"}, assignment=(NODES,))
        (result,) = await topics.create_topics([new])
        assert isinstance(result, Created), result
        await self.until(
            lambda: all(
                (shell := self.shell(node_id, internal)) is not None
                and shell.log.home.topic_id == result.topic.topic_id
                and shell.is_leading == (node_id == 1)
                for node_id in NODES
            )
        )

    def shell(self, node_id: int, topic: str, index: int = 0) -> PartitionShell | None:
        served = self.parts(node_id).broker.topic(topic)
        return None if served is None else served.shell(index)

    def leader_of(self, topic: str, index: int = 0) -> int | None:
        """A node whose shell says that it leads."""
        return next(
            (
                node_id
                for node_id in self.nodes
                if (shell := self.shell(node_id, topic, index)) is not None and shell.is_leading
            ),
            None,
        )

    async def until(self, is_so: Callable[[], bool]) -> None:
        async def asked() -> bool:
            return is_so()

        await self.until_asked(asked)

    async def until_asked(self, is_so: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await is_so():  # noqa: ASYNC110  what is waited for comes by many ways
                await asyncio.sleep(0.02)
