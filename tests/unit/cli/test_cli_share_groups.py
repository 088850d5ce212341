"""`penstock group …` and share groups: listed with their type, described with what is not finished."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from penstock.net.address import parse_addresses
from support.client.command import command
from support.node_process import NodeProcess


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), memory=True) as running:
        yield running


async def beat(node: NodeProcess, epoch: int) -> None:
    async with ClusterClient(parse_addresses(node.kafka)) as client:
        names = ("orders",) if epoch == 0 else None
        request = ShareGroupHeartbeatRequest("packers", "ann", epoch, None, names)
        reply = await client.call(request, ShareGroupHeartbeatResponse)
        assert reply.error_code == ErrorCode.NONE, reply


def test_a_share_group_is_listed_described_and_deleted(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    penstock = command(capsys, last=("--bootstrap", node.kafka))
    assert penstock("topic", "create", "orders", "--partitions", "2")[0] == 0
    asyncio.run(beat(node, 0))
    listed = json.loads(penstock("group", "list", "--type", "share", "--json")[1])["groups"]
    assert [(row["group"], row["type"], row["state"]) for row in listed] == [("packers", "share", "Stable")]
    described = json.loads(penstock("group", "describe", "packers", "--json")[1])
    assert [(row["partition"], row["committed"], row["lag"]) for row in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 0),
    ]
    assert [(row["member_id"], row["partitions"]) for row in described["members"]] == [("ann", 2)]
    assert penstock("group", "delete", "packers", "--yes")[0] != 0
    asyncio.run(beat(node, -1))
    assert penstock("group", "delete", "packers", "--yes")[0] == 0
    assert json.loads(penstock("group", "list", "--json")[1])["groups"] == []
