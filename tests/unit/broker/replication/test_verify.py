"""Replicas are compared over all nodes: the same bytes, or the same last record of each key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.broker.replication.verify import LogCompared, ReplicaVerifier
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.replication.exchange import DescribeReplica, ReplicaDescription
from penstock.domain.replication.progress import GroupLog
from penstock.net.errors import PeerUnreachableError
from support.replication.trio import Trio
from support.storage.forgery import forge


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    metadata = await SqliteStore.open(
        str(tmp_path / "metadata.sqlite"), clock=SystemClock(), is_secret=KeySpace().is_secret
    )
    made = Trio(metadata)
    await made.start()
    yield made
    await made.stop()
    await metadata.close()


class Others:
    def __init__(self, trio: Trio) -> None:
        self._trio = trio

    async def describe(self, node_id: int, asked: DescribeReplica, /, *, timeout_ms: int) -> ReplicaDescription:
        assert timeout_ms > 0
        node = self._trio.nodes.get(node_id)
        if node is None:
            raise PeerUnreachableError(f"node {node_id} is not there")
        return await node.replication.replicas.describe(asked)


async def compare(trio: Trio) -> dict[GroupLog, LogCompared]:
    """As node 1 does."""
    node = trio.nodes[1]
    verifier = ReplicaVerifier(node.broker, node.topics)
    verifier.talk_by(node.replication.replicas, Others(trio))
    compared = await verifier.compare(node.shell().log.home.topic_id, 0)
    return {each.log: each for each in compared}


def keyed(key: bytes, value: bytes | None) -> memoryview:
    record = Record(value=value, key=key, timestamp_ms=1_700_000_000_000)
    return memoryview(build_batch([record], producer_id=-1))


async def everywhere(trio: Trio, end: int) -> None:
    await trio.until(lambda: all(node.shell().readable_end == end for node in trio.nodes.values()))


async def test_replicas_that_are_the_same_are_told_so_with_how_far(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, *(b"%d" % number for number in range(20)))
    await everywhere(trio, 20)
    data = (await compare(trio))[GroupLog.DATA]
    assert (data.from_offset, data.to_offset, data.next_offset) == (0, 20, None)
    assert (data.nodes, data.differences, data.missing) == ([1, 2, 3], [], {})


async def test_node_that_is_away_is_named(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    await everywhere(trio, 1)
    await trio.stop(3)
    data = (await compare(trio))[GroupLog.DATA]
    assert data.nodes == [1, 2]
    assert list(data.missing) == [3]


async def test_replica_with_other_bytes_is_found(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a", b"before", b"c")
    await everywhere(trio, 3)
    await trio.stop(3)
    assert forge(trio.files[3], b"before", b"AFTER!") == 1
    await trio.start(3)
    await trio.until(lambda: trio.nodes[3].shell().readable_end == 3)
    (difference,) = (await compare(trio))[GroupLog.DATA].differences
    assert (difference.from_offset, difference.to_offset) == (0, 3)
    assert difference.checksums[1] == difference.checksums[2] != difference.checksums[3]


async def test_compacted_replicas_are_the_same_whoever_has_compacted(trio: Trio) -> None:
    await trio.create(cleanup_policy="compact")
    shell = trio.nodes[1].shell()
    for key, value in ((b"x", b"1"), (b"y", b"1"), (b"x", b"2"), (b"z", b"1"), (b"z", None)):
        outcome = shell.append(keyed(key, value))
        assert not hasattr(outcome, "refusal"), outcome
    await everywhere(trio, 5)
    data = (await compare(trio))[GroupLog.DATA]
    assert (data.is_compacted, data.to_offset, data.differences, data.missing) == (True, 5, [], {})


async def test_compacted_replica_with_another_last_value_is_found(trio: Trio) -> None:
    await trio.create(cleanup_policy="compact")
    shell = trio.nodes[1].shell()
    for key, value in ((b"x", b"first"), (b"y", b"alike"), (b"x", b"final")):
        shell.append(keyed(key, value))
    await everywhere(trio, 3)
    await trio.stop(3)
    # What compaction may remove at any time is not compared.
    assert forge(trio.files[3], b"first", b"FIRST") == 1
    await trio.start(3)
    await trio.until(lambda: trio.nodes[3].shell().readable_end == 3)
    assert (await compare(trio))[GroupLog.DATA].differences == []
    await trio.stop(3)
    assert forge(trio.files[3], b"final", b"FINAL") == 1
    await trio.start(3)
    await trio.until(lambda: trio.nodes[3].shell().readable_end == 3)
    (difference,) = (await compare(trio))[GroupLog.DATA].differences
    assert difference.checksums[1] == difference.checksums[2] != difference.checksums[3]
