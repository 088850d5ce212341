"""Three nodes with one partition: what is committed is on all that are in sync, and outlives each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.broker.partition.acks import Acks
from penstock.broker.partition.commitment import Loss
from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.domain.replication.exchange import ReplicaFetch
from support.replication.trio import PATIENCE_SECONDS, Trio


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


async def test_what_is_committed_is_on_every_replica_in_sync(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a", b"b", b"c")
    for node in (2, 3):
        log = trio.nodes[node].shell().log
        assert log.durable_end == 3, "confirmed, and not on every disk"
        assert trio.written(node) == [b"a", b"b", b"c"]
    await trio.until(lambda: all(trio.nodes[node].shell().readable_end == 3 for node in (1, 2, 3)))


async def test_writers_go_on_when_a_follower_is_gone(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    await trio.stop(3)
    await trio.produce(1, b"b")
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2))
    assert trio.written(2) == [b"a", b"b"]


async def test_follower_that_was_away_catches_up_and_joins(trio: Trio) -> None:
    await trio.create()
    await trio.stop(3)
    await trio.produce(1, *(b"%d" % number for number in range(50)))
    await trio.start(3)
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2, 3))
    assert trio.written(3) == [b"%d" % number for number in range(50)]
    await trio.produce(1, b"more")
    assert trio.written(3)[-1] == b"more"


async def test_nothing_committed_is_lost_with_its_leader(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a", b"b")
    await trio.stop(1)
    await trio.elect(2, in_sync=(2, 3))
    await trio.produce(2, b"c")
    for node in (2, 3):
        assert trio.written(node) == [b"a", b"b", b"c"]


async def test_tail_of_a_lost_leader_is_cut_off(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    trio.wire.cut(1)
    lost = trio.append(1, b"of the old leader").commitment
    assert lost is not None
    await trio.elect(2, in_sync=(2, 3))
    assert lost.loss is Loss.LEADERSHIP
    await trio.produce(2, b"of the new one")
    trio.wire.mend()
    await trio.until(lambda: trio.stated(2).state.in_sync == (1, 2, 3))
    assert trio.written(1) == [b"a", b"of the new one"]
    assert trio.nodes[1].shell().log.epochs.entries() == [(0, 0), (1, 1)]


async def test_restarted_leader_does_not_go_on_in_its_epoch(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    await trio.stop(1)
    await trio.start(1)
    refused = trio.nodes[1].shell().append(memoryview(b""))
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.NOT_LEADER


async def test_nothing_is_written_with_too_few_in_sync_and_told_before_and_after(trio: Trio) -> None:
    await trio.create(min_insync_replicas="3")
    await trio.produce(1, b"a")
    trio.wire.cut(3)
    shell = trio.nodes[1].shell()
    waiting = shell.append(batch(), acks=Acks(timeout_ms=60_000))
    assert not isinstance(waiting, AppendRefused)
    await trio.until(lambda: shell.refusal() is not None)
    refused = shell.append(batch())
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.NOT_ENOUGH_REPLICAS
    # Who asks for no more than this replica's own promise is served.
    own = shell.append(batch(), acks=Acks(is_all=False))
    assert not isinstance(own, AppendRefused)
    late = shell.replicated
    assert late is not None
    assert shell.readable_end == 1, "the watermark moved below the minimum"
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2))
    # Both members hold all that is committed: who left is eligible, and nothing is committed while it is.
    assert trio.stated(1).state.eligible == (3,)
    trio.wire.mend()
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2, 3))
    assert waiting.commitment is not None
    assert await asyncio.wait_for(waiting.commitment.kept(), PATIENCE_SECONDS)


async def test_end_is_not_told_before_the_new_leader_knows_it(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    trio.wire.cut(1, 2, 3)
    trio.append(1, b"b")
    await trio.elect(2, in_sync=(1, 2, 3))
    shell = trio.nodes[2].shell()
    shell.log.readable_end = min(shell.log.readable_end, 1)
    if shell.readable_end < shell.epoch_start:
        assert shell.check_end() is ReadProblem.END_UNKNOWN
    trio.wire.mend()
    await trio.until(lambda: shell.readable_end >= shell.epoch_start)
    assert shell.check_end() is None


async def test_fetch_of_another_life_counts_for_nothing(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    asked = next(fetch for node, _, fetch in trio.wire.fetches if node == 2 and fetch.logs)
    stale = ReplicaFetch(node_id=2, life=asked.life - 1, bytes_max=1000, logs=asked.logs)
    reply = await trio.nodes[1].replication.feed.fetch(stale)
    assert {answer.problem for answer in reply.logs if answer.problem} != set()


def batch() -> memoryview:
    from penstock.codec.batch.records import Record, build_batch

    return memoryview(build_batch([Record(value=b"x", timestamp_ms=SystemClock().now_ms())]))
