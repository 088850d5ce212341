"""A commit acknowledged is a commit kept: positions of groups across kill -9 and across a graceful stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.client.kafka import admin, groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses
from penstock.net.errors import ClientError
from support.node_process import NodeProcess

TOPIC = "orders"
PARTITIONS = 4
GROUPS = 12
CYCLES = 3
COMMITS_PER_CYCLE = 100


class Committers:
    """Each group commits position after position; what was answered is on record."""

    def __init__(self) -> None:
        self.acknowledged = dict.fromkeys(range(GROUPS), -1)
        self.sent = dict.fromkeys(range(GROUPS), -1)
        self._count = 0
        self.is_enough = asyncio.Event()

    async def run(self, client: ClusterClient, number: int) -> None:
        """Until the node is gone."""
        try:
            while True:
                offset = self.sent[number] = self.sent[number] + 1
                await groups.commit_offsets(client, f"group-{number}", {(TOPIC, offset % PARTITIONS): offset})
                self.acknowledged[number] = offset
                self._count += 1
                if self._count >= COMMITS_PER_CYCLE:
                    self.is_enough.set()
        except (ClientError, OSError):
            self.is_enough.set()

    async def until_enough(self, node: NodeProcess, end: Callable[[], object]) -> None:
        self._count = 0
        self.is_enough.clear()
        async with ClusterClient(parse_addresses(node.kafka)) as client:
            running = [asyncio.ensure_future(self.run(client, number)) for number in range(GROUPS)]
            await asyncio.wait_for(self.is_enough.wait(), 30)
            await asyncio.to_thread(end)
            await asyncio.wait_for(asyncio.gather(*running), 30)

    async def check(self, node: NodeProcess) -> None:
        async with ClusterClient(parse_addresses(node.kafka)) as client:
            for number in range(GROUPS):
                found = max((await groups.committed_offsets(client, f"group-{number}")).values(), default=-1)
                assert self.acknowledged[number] <= found <= self.sent[number]
                # An unanswered one may have arrived.
                self.sent[number] = self.acknowledged[number] = found


@pytest.mark.parametrize("flush_ms", ["0", "5"])
async def test_acknowledged_positions_survive_kill_and_stop(tmp_path: Path, flush_ms: str) -> None:
    environment = {"PENSTOCK_GROUPS__OFFSETS_FLUSH_MS": flush_ms}
    committers = Committers()
    with NodeProcess(tmp_path, environment=environment) as node:
        async with ClusterClient(parse_addresses(node.kafka)) as client:
            await admin.create_topic(client, TOPIC, partitions=PARTITIONS)
        for _ in range(CYCLES):
            await committers.until_enough(node, node.kill)
            node.start()
            await committers.check(node)
        await committers.until_enough(node, node.terminate)
        node.start()
        await committers.check(node)
    assert min(committers.acknowledged.values()) > CYCLES
