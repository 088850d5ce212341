"""Replicas whose disk fails them: out of the set before anything is answered from them, and back by themselves."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.topic.companion import CompanionKind
from penstock.cluster.catalog.order import Part
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.storage.errors import Damage
from penstock.storage.files.memory import MemoryFiles
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.log.set_aside import DAMAGED_KEPT_MAX, Aside
from support.replication.trio import PATIENCE_SECONDS, ReplicaNode, Trio

MANY = tuple(b"%d" % number for number in range(20))
# Into a batch: past its header.
RECORDS_AT = 65


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


# Found by whoever reads


async def test_follower_that_finds_damage_leaves_and_is_fetched_anew(trio: Trio) -> None:
    node = await with_many(trio, 3)
    sets = sets_seen_by(trio.nodes[2])
    flip(node, node.shell().log, offset=7)
    assert await asyncio.to_thread(read_all, node.shell().log) is None, "what lies before the place is whole"
    await trio.until(lambda: bool(kept(node)))
    assert sets[:1] == [(1, 2)], "the log was put aside before the replica was out of the set"
    await all_in_sync(trio)
    assert trio.written(3) == list(MANY)
    await trio.produce(1, b"more")
    assert trio.written(3)[-1] == b"more"


async def test_leader_that_finds_damage_answers_nothing_and_hands_over(trio: Trio) -> None:
    node = await with_many(trio, 1)
    flip(node, node.shell().log, offset=7)
    # What lies before and behind the place is whole, and not answered either.
    assert [read(node, offset=offset) for offset in (0, 7, 12)] == [ReadProblem.OFFLINE] * 3
    await trio.until(lambda: trio.nodes[2].shell().is_leading)
    assert read(trio.nodes[2]) is None
    await trio.produce(2, b"more")
    await all_in_sync(trio)
    assert trio.written(1) == [*MANY, b"more"]
    assert len(kept(node)) == 1


async def test_leader_with_a_bad_sector_hands_over(trio: Trio) -> None:
    node = await with_many(trio, 1)
    place = Damage(3, 0, 0, "cannot be read", is_proven=False)
    node.shell().log.note_unreadable(place, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    assert read(node) is None, "for lack of a file handle nothing is given up"
    node.shell().log.note_unreadable(
        Damage(4, 0, 0, "cannot be read", is_proven=False), OSError(errno.EIO, os.strerror(errno.EIO))
    )
    assert read(node) is ReadProblem.OFFLINE
    await trio.until(lambda: trio.nodes[2].shell().is_leading)
    await all_in_sync(trio)
    assert trio.written(1) == list(MANY)


@pytest.mark.parametrize("kind", list(CompanionKind))
async def test_damage_of_a_companion_takes_the_whole_replica_out(trio: Trio, kind: CompanionKind) -> None:
    await with_many(trio, 3)
    leader, node = trio.nodes[1], trio.nodes[3]
    journal = await leader.broker.companion(leader.shell(), kind)
    for _ in range(3):
        append(journal)
    commitment = journal.commit_unless_kept()
    assert commitment is not None
    assert await asyncio.wait_for(commitment.kept(), PATIENCE_SECONDS)
    companion = node.broker.open_companion_of(node.shell(), kind)
    assert companion is not None
    await trio.until(lambda: companion.readable_end == 3)
    sets = sets_seen_by(trio.nodes[2])
    flip(node, companion.log, offset=1)
    await asyncio.to_thread(read_all, companion.log)
    await trio.until(lambda: bool(kept(node)))
    assert sets[:1] == [(1, 2)]
    await all_in_sync(trio)
    assert companion.log.log_end == 3
    assert trio.written(3) == list(MANY), "the other logs of the partition are as they were"


async def test_damage_past_the_watermark_is_cut_off(trio: Trio) -> None:
    await with_many(trio, 3)
    node = trio.nodes[3]
    trio.wire.cut(2)
    waiting = trio.append(1, b"b").commitment
    await trio.until(lambda: node.shell().log.durable_end == 21)
    assert node.shell().readable_end == 20
    flip(node, node.shell().log, offset=20)
    plan = node.shell().log.plan_read(20, bytes_max=1 << 20, is_replica=True)
    assert isinstance(plan, ReadPlan)
    assert isinstance(await asyncio.to_thread(plan.load), Damage)
    await trio.until(lambda: trio.stated(1).state.mending == (3,))
    trio.wire.mend()
    await all_in_sync(trio)
    assert waiting is not None
    assert await asyncio.wait_for(waiting.kept(), PATIENCE_SECONDS)
    assert trio.written(3) == [*MANY, b"b"]
    assert not kept(node), "what was promised to nobody need not be kept"


async def test_of_the_logs_put_aside_the_last_are_kept(trio: Trio) -> None:
    node = await with_many(trio, 3)
    for count in range(DAMAGED_KEPT_MAX + 2):
        flip(node, node.shell().log, offset=7)
        await asyncio.to_thread(read_all, node.shell().log)
        await trio.until(lambda count=count: node.replication.mending.begun_anew_count == count + 1)  # type: ignore[misc]
        await all_in_sync(trio)
        await trio.until(lambda: node.shell().readable_end == 20)
    assert len(kept(node)) == DAMAGED_KEPT_MAX


# Found at a start


async def test_replica_that_starts_damaged_leaves_and_fetches_what_it_lacks(trio: Trio) -> None:
    node = await with_many(trio, 3)
    flip(node, node.shell().log, offset=7)
    await trio.stop(3, clean=False)
    sets = sets_seen_by(trio.nodes[2])
    await trio.start(3)
    # It does not know how much of it is committed: no checkpoint says so. The others do.
    await trio.until(lambda: trio.nodes[3].shell().log.damage is None and trio.nodes[3].shell().log.log_end == 20)
    assert sets[:1] == [(1, 2)]
    await all_in_sync(trio)
    assert trio.written(3) == list(MANY)


async def test_replica_that_comes_back_with_less_than_promised_fetches_the_rest(trio: Trio) -> None:
    node = await with_many(trio, 3)
    await node.store.checkpoint()
    (segment,) = node.shell().log.segments
    await trio.stop(3, clean=False)
    node.files.open(segment.path).truncate(segment.size // 2)
    await trio.start(3)
    node = trio.nodes[3]
    sets = sets_seen_by(trio.nodes[2])
    await trio.until(lambda: node.shell().log.log_end == 20)
    assert sets[:1] == [(1, 2)]
    await all_in_sync(trio)
    assert trio.written(3) == list(MANY)


async def test_leader_that_comes_back_with_less_than_promised_cuts_nobody(trio: Trio) -> None:
    node = await with_many(trio, 1)
    await node.store.checkpoint()
    (segment,) = node.shell().log.segments
    await trio.stop(1, clean=False)
    node.files.open(segment.path).truncate(segment.size // 2)
    await trio.start(1)
    # It is elected before anybody knows, itself included.
    await trio.elect(1, in_sync=(1, 2, 3))
    await trio.until(lambda: trio.nodes[2].shell().is_leading)
    await all_in_sync(trio)
    assert [trio.written(each) for each in (1, 2, 3)] == [list(MANY)] * 3


# Where nobody else is left


async def test_last_replica_serves_what_is_whole_until_somebody_can_lead(trio: Trio) -> None:
    node = await with_many(trio, 1)
    await trio.stop(2, 3)
    trio.append(1, b"promised to nobody")
    await trio.until(lambda: trio.stated(1).state.in_sync == (1,))
    flip(node, node.shell().log, offset=7)
    assert read(node) is ReadProblem.OFFLINE
    # As a node alone, when it is known that nobody can.
    await trio.until(lambda: read(node, offset=12) is None)
    assert read(node, offset=7) is ReadProblem.DAMAGED
    assert node.shell().is_leading
    # Who left when too few were in sync holds all that is committed.
    await trio.start(2, 3)
    await trio.until(lambda: not node.shell().is_leading)
    await all_in_sync(trio)
    assert trio.written(1)[: len(MANY)] == list(MANY)


# Full disks


async def test_leader_without_room_hands_over_to_one_with_room(trio: Trio) -> None:
    node = await with_many(trio, 1)
    disk = fill(node)
    refused = node.shell().append(batch())
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.DISK_FULL
    await trio.until(lambda: trio.nodes[2].shell().is_leading)
    assert trio.stated(2).state.mending == (), "it holds all that it has promised"
    await trio.produce(2, b"more")
    assert 1 not in trio.stated(2).state.in_sync
    disk.bytes_max *= 2
    await all_in_sync(trio)
    assert trio.written(1) == [*MANY, b"more"]


async def test_leader_keeps_the_seat_where_nobody_has_room(trio: Trio) -> None:
    node = await with_many(trio, 1)
    for other in (2, 3):
        await trio.nodes[other].tell_room(has_room=False)
    await trio.until(lambda: not any(node.nodes.view()[other].has_room for other in (2, 3)))
    disk = fill(node)
    for _ in range(3):
        refused = node.shell().append(batch())
        assert isinstance(refused, AppendRefused)
    epoch = trio.stated(1).state.epoch
    await trio.nodes[2].tell_room(has_room=True)
    await trio.until(lambda: node.nodes.view()[2].has_room)
    assert (node.shell().is_leading, trio.stated(1).state.epoch) == (True, epoch)
    disk.bytes_max *= 2


async def test_follower_without_room_leaves_and_comes_back_when_there_is_some(trio: Trio) -> None:
    node = await with_many(trio, 3)
    await node.tell_room(has_room=False)
    disk = fill(node)
    await trio.until(lambda: not trio.nodes[1].nodes.view()[3].has_room)
    await trio.produce(1, b"more")
    await trio.until(lambda: trio.stated(1).state.in_sync == (1, 2))
    disk.bytes_max *= 2
    await trio.until(lambda: node.shell().log.log_end == 21)
    assert trio.stated(1).state.in_sync == (1, 2), "it has not said that there is room"
    await node.tell_room(has_room=True)
    await all_in_sync(trio)


# What the tests have in common


async def with_many(trio: Trio, node_id: int) -> ReplicaNode:
    """Committed, and known to be so by everybody."""
    await trio.create()
    await trio.produce(1, *MANY)
    await trio.until(lambda: all(node.shell().readable_end == len(MANY) for node in trio.nodes.values()))
    return trio.nodes[node_id]


def flip(node: ReplicaNode, log: PartitionLog, *, offset: int) -> None:
    """A bit of the batch at that offset."""
    file = node.files.open(log.segment_of(offset).path)
    batches = walk_headers(file.read_at(0, file.size()))
    place = next(position for position, header in batches if header.base_offset == offset) + RECORDS_AT
    (byte,) = file.read_at(place, 1)
    file.write_at(bytes([byte ^ 1]), place)


def read(node: ReplicaNode, *, offset: int = 0) -> ReadProblem | None:
    """As a client does, from the disk."""
    shell = node.shell()
    found = shell.read_from_disk(offset, bytes_max=1 << 20, is_committed_only=False)
    if found.cold is None:
        return found.problem
    return shell.take_loaded(found, found.cold.load(), bytes_max=1 << 20).problem


def read_all(log: PartitionLog) -> Damage | None:
    plan = log.plan_read(log.log_start, bytes_max=1 << 20)
    assert isinstance(plan, ReadPlan)
    found = plan.load()
    return found if isinstance(found, Damage) else None


def batch() -> memoryview:
    return memoryview(build_batch([Record(key=b"k", value=b"x" * 100, timestamp_ms=SystemClock().now_ms())]))


def append(shell: PartitionShell) -> None:
    assert not isinstance(shell.append(batch()), AppendRefused)


def fill(node: ReplicaNode) -> MemoryFiles:
    disk = node.files
    assert isinstance(disk, MemoryFiles)
    disk.bytes_max = disk.bytes_used
    return disk


def kept(node: ReplicaNode) -> list[str]:
    return [aside.path for aside in node.store.logs_set_aside() if aside.kind is Aside.DAMAGED]


def sets_seen_by(node: ReplicaNode) -> list[tuple[int, ...]]:
    """Every in-sync set that it hears of from now on."""
    sets: list[tuple[int, ...]] = []
    node.topics.on_partition_change(lambda change: sets.append(change.stated.state.in_sync), Part.REPLICATION)
    return sets


async def all_in_sync(trio: Trio) -> None:
    await trio.until(lambda: (trio.stated(2).state.in_sync, trio.stated(2).state.mending) == ((1, 2, 3), ()))
