"""Three nodes with one partition: what is committed is on all that are in sync, and outlives each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.base.clock import SystemClock
from penstock.broker.partition.acks import Acks
from penstock.broker.partition.commitment import Loss
from penstock.broker.partition.outcome import Appended, AppendRefused, Refusal
from penstock.broker.topic.companion import CompanionKind
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.replication.exchange import (
    Barrier,
    DescribeReplica,
    KnownLeader,
    LogBarrier,
    LogName,
    ReplicaFetch,
    ReplicaProblem,
)
from penstock.domain.replication.progress import GroupLog
from penstock.domain.replication.view import Duty
from support.replication.trio import PATIENCE_SECONDS, TOPIC, Trio
from support.storage.gated_disk import GatedDisk


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
    assert shell.readable_end == 1, "the watermark moved below the minimum"
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2))
    # Both members hold all that is committed: who left is eligible, and nothing is committed while it is.
    assert trio.stated(1).state.eligible == (3,)
    trio.wire.mend()
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2, 3))
    assert waiting.commitment is not None
    assert await asyncio.wait_for(waiting.commitment.kept(), PATIENCE_SECONDS)


async def test_leader_that_is_elected_anew_goes_on(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    await trio.elect(1, in_sync=(1, 2, 3))
    await trio.produce(1, b"b")
    assert trio.nodes[1].shell().log.epochs.entries() == [(0, 0), (1, 1)]
    assert trio.written(2) == [b"a", b"b"]


async def test_follower_whose_disk_fails_takes_itself_out_and_comes_back_whole(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    disk = trio.files[3]
    assert isinstance(disk, GatedDisk)
    topic_id = trio.nodes[3].shell().log.home.topic_id
    disk.fail(topic_id, 0)
    await trio.produce(1, b"b")
    await trio.until(lambda: (trio.stated(1).state.in_sync, trio.stated(1).state.mending) == ((1, 2), (3,)))
    disk.heal()
    await trio.produce(1, b"c")
    await trio.nodes[3].broker.recover_offline()
    await trio.until(lambda: (trio.stated(1).state.in_sync, trio.stated(1).state.mending) == ((1, 2, 3), ()))
    assert trio.written(3) == [b"a", b"b", b"c"]


async def test_leader_whose_disk_fails_hands_over(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    disk = trio.files[1]
    assert isinstance(disk, GatedDisk)
    disk.fail(trio.nodes[1].shell().log.home.topic_id, 0)
    lost = trio.append(1, b"b").commitment
    assert lost is not None
    assert not await asyncio.wait_for(lost.kept(), PATIENCE_SECONDS)
    assert lost.loss is Loss.DISK
    await trio.until(lambda: trio.nodes[2].shell().is_leading)
    assert trio.stated(2).state.mending == (1,)
    await trio.produce(2, b"c")
    disk.heal()


async def test_companions_are_replicated_with_their_partition(trio: Trio) -> None:
    await trio.create()
    leader = trio.nodes[1]
    journal = await leader.broker.companion(leader.shell(), CompanionKind.QUEUES)
    outcome = journal.append(batch())
    assert isinstance(outcome, Appended)
    assert outcome.commitment is not None
    assert await asyncio.wait_for(outcome.commitment.kept(), PATIENCE_SECONDS)
    for node in (2, 3):
        follower = trio.nodes[node]
        copy = follower.broker.open_companion_of(follower.shell(), CompanionKind.QUEUES)
        assert copy is not None
        assert copy.log.durable_end == 1
    await trio.stop(1)
    await trio.elect(2, in_sync=(2, 3))
    new = trio.nodes[2]
    group = new.replication.groups[new.shell().log.home.topic_id, 0]
    await trio.until(lambda: group.has_barrier)
    copy = new.broker.open_companion_of(new.shell(), CompanionKind.QUEUES)
    assert copy is not None
    assert (copy.is_leading, copy.readable_end) == (True, 1)


async def test_companion_on_the_disk_is_open_before_its_partition_is_led(trio: Trio) -> None:
    await trio.create()
    leader = trio.nodes[1]
    journal = await leader.broker.companion(leader.shell(), CompanionKind.QUEUES)
    outcome = journal.append(batch())
    assert isinstance(outcome, Appended)
    assert outcome.commitment is not None
    assert await asyncio.wait_for(outcome.commitment.kept(), PATIENCE_SECONDS)
    await trio.stop(1, 2, 3)
    await trio.start(2, 3)
    await trio.elect(2, in_sync=(2, 3))
    new = trio.nodes[2]
    place = (new.shell().log.home.topic_id, 0)
    await trio.until(lambda: place in new.replication.groups)
    assert new.replication.groups[place].logs[GroupLog.QUEUE_JOURNAL].log_end == 1
    await trio.until(lambda: new.replication.groups[place].has_barrier)


async def test_node_that_begins_to_serve_joins_without_another_write(trio: Trio) -> None:
    await trio.create()
    await trio.stop(3)
    await trio.produce(1, b"a")
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2))
    await trio.start(3, duty=Duty.STARTING)
    await trio.until(lambda: trio.nodes[3].shell().readable_end == 1)
    assert trio.stated(1).state.in_sync == (1, 2), "one that does not serve yet is in no set"
    await trio.nodes[3].tell(Duty.SERVING)
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2, 3))


async def test_follower_does_not_ask_for_what_its_disk_owes(trio: Trio) -> None:
    """With its disk held back it counts for nothing, whatever it has in memory."""
    await trio.create(min_insync_replicas="3")
    await trio.produce(1, b"a")
    disk = trio.files[3]
    assert isinstance(disk, GatedDisk)
    disk.close_gate()
    waiting = trio.append(1, b"b").commitment
    assert waiting is not None
    await trio.until(lambda: trio.nodes[3].shell().log.log_end == 2)
    await trio.until(lambda: trio.nodes[2].shell().log.durable_end == 2)
    assert not waiting.is_known
    disk.open_gate()
    assert await asyncio.wait_for(waiting.kept(), PATIENCE_SECONDS)


async def test_node_that_is_no_replica_any_more_asks_nobody(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    state = trio.stated(1).state
    await trio.put(replace(state, replicas=(1, 2), in_sync=(1, 2)), seen_by=1)
    assert trio.nodes[3].replication.followed_count == 0
    await trio.produce(1, b"b")
    served = trio.nodes[3].broker.topic(TOPIC)
    assert served is not None
    assert served.shell(0) is None, "its log is set aside"


async def test_barrier_is_passed_when_all_that_was_there_is_committed(trio: Trio) -> None:
    await trio.create()
    trio.wire.cut(2, 3)
    trio.append(1, b"a")
    shell = trio.nodes[1].shell()
    log = LogName(shell.log.home.topic_id, 0)
    replicas = trio.nodes[1].replication.replicas
    (early,) = await replicas.barrier(Barrier([LogBarrier(log, 0)], timeout_ms=5))
    assert early.problem is ReplicaProblem.TIMED_OUT
    trio.wire.mend()
    (passed,) = await replicas.barrier(Barrier([LogBarrier(log, 0)], timeout_ms=10_000))
    assert (passed.problem, passed.high_watermark) == (None, 1)
    (other,) = await trio.nodes[2].replication.replicas.barrier(Barrier([LogBarrier(log, 0)], timeout_ms=10))
    assert other.problem is ReplicaProblem.NOT_LEADER
    assert other.leader == KnownLeader(1, 0)


async def test_replicas_are_compared_by_checksums(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a", b"b", b"c")
    await trio.until(lambda: all(trio.nodes[node].shell().readable_end == 3 for node in (1, 2, 3)))
    log = LogName(trio.nodes[1].shell().log.home.topic_id, 0)
    asked = DescribeReplica(log=log, from_offset=0, to_offset=3, step_offsets=2)
    told = [await trio.nodes[node].replication.replicas.describe(asked) for node in (1, 2, 3)]
    assert [(each.from_offset, each.to_offset) for each in told[0].checksums] == [(0, 2), (2, 3)]
    assert told[0].checksums == told[1].checksums == told[2].checksums
    assert told[0].checksums[0].checksum != told[0].checksums[1].checksum


async def test_fetch_of_another_life_counts_for_nothing(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    asked = next(fetch for node, _, fetch in trio.wire.fetches if node == 2 and fetch.logs)
    stale = ReplicaFetch(node_id=2, life=asked.life - 1, bytes_max=1000, logs=asked.logs)
    reply = await trio.nodes[1].replication.feed.fetch(stale)
    assert {answer.problem for answer in reply.logs if answer.problem} != set()


async def test_metrics_tell_who_leads_and_who_is_missing(trio: Trio) -> None:
    await trio.create()
    await trio.produce(1, b"a")
    await trio.stop(3)
    await trio.produce(1, b"b")
    assert metric(trio, 1, "led_partitions") == 1
    assert metric(trio, 1, "under_replicated_partitions") == 1
    assert metric(trio, 1, "under_minimum_partitions") == 0
    assert metric(trio, 1, "in_sync_changes_total") == 1
    assert metric(trio, 1, "uncommitted_offsets") == 0
    assert metric(trio, 2, "followed_partitions") == 1
    assert metric(trio, 2, "leaderless_partitions") == 0
    assert (metric(trio, 2, "fetched_bytes_total", lane="synced") or 0) > 0
    assert metric(trio, 2, "fetch_lag_bytes", lane="synced") == 0
    assert (metric(trio, 2, "fetch_lag_seconds", lane="synced") or 0) < 5
    assert metric(trio, 2, "elections_total", cause="hand-over") == 0
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2))
    await trio.elect(2, in_sync=(1, 2), seen_by=1)
    await trio.until(lambda: metric(trio, 2, "led_partitions") == 1)
    assert metric(trio, 2, "elections_total", cause="hand-over") == 1


def metric(trio: Trio, node_id: int, name: str, **labels: str) -> float | None:
    return trio.nodes[node_id].metrics.get_sample_value(f"penstock_replication_{name}", labels)


def batch() -> memoryview:
    return memoryview(build_batch([Record(value=b"x", timestamp_ms=SystemClock().now_ms())]))
