"""Commitments of a partition with several replicas: kept by the watermark, and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.acks import Acks
from penstock.broker.partition.commitment import Commitment, Loss
from penstock.broker.partition.marker import write_marker
from penstock.broker.partition.outcome import Appended, AppendRefused, Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.replicated_commits import ReplicatedCommits
from penstock.broker.partition.role import Following, Leading
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.state import VERSION_TWO
from support.partition import TOPIC_ID, PartitionDesk
from support.storage.gated_disk import GatedDisk

ALONE = Leading(0)
TOGETHER = Leading(0, is_replicated=True)
PATIENCE_SECONDS = 10.0


class Listener:
    """In place of the replica group."""

    def __init__(self) -> None:
        self.written = self.synced = self.failed = 0

    def on_written(self) -> None:
        self.written += 1

    def on_own_end(self) -> None:
        self.synced += 1

    def on_failed(self) -> None:
        self.failed += 1


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
async def desk(disk: GatedDisk) -> AsyncIterator[PartitionDesk]:
    made = PartitionDesk(disk)
    made.shell.take_role(TOGETHER)
    yield made
    disk.open_gate()
    await made.turn()
    made.store.close(clean=False)


@pytest.fixture
def commits(desk: PartitionDesk) -> ReplicatedCommits:
    return commits_of(desk)


def commits_of(desk: PartitionDesk) -> ReplicatedCommits:
    replicated = desk.shell.replicated
    assert replicated is not None
    return replicated


def append(desk: PartitionDesk, acks: Acks) -> Commitment | None:
    outcome = desk.shell.append(desk.batch(), acks=acks)
    assert isinstance(outcome, Appended), outcome
    return outcome.commitment


async def test_acks_all_waits_for_the_watermark_and_not_for_the_disk(
    desk: PartitionDesk, commits: ReplicatedCommits
) -> None:
    first, second = desk.append_synced(), desk.append_synced()
    await desk.turn()
    assert (first.is_known, desk.shell.readable_end) == (False, 0)
    commits.advance(1)
    assert (first.is_known, first.loss, second.is_known) == (True, None, False)
    commits.advance(2)
    assert (second.is_known, second.loss) == (True, None)


async def test_watermark_between_two_ends_of_batches_confirms_the_lower_one(
    desk: PartitionDesk, commits: ReplicatedCommits
) -> None:
    records = [Record(value=b"x", timestamp_ms=desk.clock.now_ms())] * 3
    outcome = desk.shell.append(memoryview(build_batch(records)))
    assert isinstance(outcome, Appended)
    assert outcome.commitment is not None
    commits.advance(2)
    assert (outcome.commitment.is_known, desk.shell.readable_end) == (False, 0)
    commits.advance(3)
    assert outcome.commitment.is_known


async def test_acks_one_waits_for_this_disk_alone(
    desk: PartitionDesk, disk: GatedDisk, commits: ReplicatedCommits
) -> None:
    disk.close_gate()
    own = append(desk, Acks(is_all=False))
    assert own is not None
    await disk.wait_until_syncing()
    commits.advance(1)
    assert not own.is_known, "others have it, and this replica may lose it"
    disk.open_gate()
    assert await asyncio.wait_for(own.kept(), PATIENCE_SECONDS)


async def test_own_end_is_what_the_topic_asks_of_a_replica(disk: GatedDisk) -> None:
    disk.close_gate()
    for durability, own_end in (("fsync", 0), ("interval", 1)):
        desk = PartitionDesk(GatedDisk(), durability=durability)
        desk.shell.take_role(TOGETHER)
        append(desk, Acks())
        assert commits_of(desk).own_end == own_end
        await desk.turn()
        assert commits_of(desk).own_end == 1
        desk.shell.close()
        desk.store.close(clean=False)


async def test_nothing_less_than_the_disk_is_readable_before_the_watermark() -> None:
    desk = PartitionDesk(GatedDisk(), durability="interval")
    desk.shell.take_role(TOGETHER)
    commitment = append(desk, Acks())
    assert commitment is not None
    assert desk.shell.readable_end == 0
    assert append(desk, Acks(is_all=False)) is None, "the kernel has it, which is all that the topic asks for"
    commits_of(desk).advance(1)
    assert commitment.loss is None
    assert commitment.is_known
    desk.shell.close()
    await desk.turn()
    desk.store.close(clean=False)


async def test_group_hears_of_writes_and_of_syncs(desk: PartitionDesk, commits: ReplicatedCommits) -> None:
    commits.listener = listener = Listener()
    desk.append()
    assert (listener.written, listener.synced) == (1, 0)
    await desk.turn()
    assert (listener.written, listener.synced, listener.failed) == (1, 1, 0)


async def test_disk_that_fails_breaks_everything_that_waits(
    desk: PartitionDesk, disk: GatedDisk, commits: ReplicatedCommits
) -> None:
    commits.listener = listener = Listener()
    early = desk.append_synced()
    await desk.turn()
    disk.fail(TOPIC_ID, 0)
    late = desk.append_synced()
    await desk.turn()
    assert (early.loss, late.loss, listener.failed) == (Loss.DISK, Loss.DISK, 1)
    assert desk.shell.commit().loss is Loss.DISK
    disk.heal()


@pytest.mark.parametrize(("has_enough", "loss"), [(True, Loss.TIMEOUT), (False, Loss.REPLICAS)])
async def test_sender_is_told_at_its_deadline_why_nobody_knows(
    desk: PartitionDesk, commits: ReplicatedCommits, has_enough: bool, loss: Loss
) -> None:
    patient, hasty = append(desk, Acks()), append(desk, Acks(timeout_ms=10))
    assert patient is not None
    assert hasty is not None
    commits.has_enough = has_enough
    assert not await asyncio.wait_for(hasty.kept(), PATIENCE_SECONDS)
    assert (hasty.loss, patient.is_known) == (loss, False)
    # It was written, and may well be kept.
    commits.advance(2)
    assert (patient.is_known, patient.loss, hasty.loss) == (True, None, loss)


async def test_shorter_deadline_is_not_kept_waiting_by_a_longer_one(
    desk: PartitionDesk, commits: ReplicatedCommits
) -> None:
    long, short = append(desk, Acks(timeout_ms=60_000)), append(desk, Acks(timeout_ms=5))
    assert long is not None
    assert short is not None
    assert not await asyncio.wait_for(short.kept(), PATIENCE_SECONDS)
    assert not long.is_known
    commits.advance(2)
    assert long.is_known


async def test_who_loses_the_lead_keeps_no_promise(desk: PartitionDesk, commits: ReplicatedCommits) -> None:
    waiting = desk.append_synced()
    desk.shell.take_role(Following(1, 2))
    assert waiting.loss is Loss.LEADERSHIP
    await desk.turn()
    assert desk.shell.readable_end == 0, "a follower's disk says nothing about what is committed"


async def test_too_few_in_sync_are_told_before_anything_is_written(
    desk: PartitionDesk, commits: ReplicatedCommits
) -> None:
    commits.has_enough = False
    refused = desk.shell.append(desk.batch())
    assert isinstance(refused, AppendRefused)
    assert refused.refusal is Refusal.NOT_ENOUGH_REPLICAS
    assert desk.shell.log.log_end == 0
    assert isinstance(desk.shell.append(desk.batch(), acks=Acks(is_all=False)), Appended)
    marker = write_marker(desk.shell, end_of(7))
    assert isinstance(marker, AppendRefused)
    assert marker.refusal is Refusal.NOT_ENOUGH_REPLICAS
    told = desk.shell.refusal()
    assert told is not None
    assert told.refusal is Refusal.NOT_ENOUGH_REPLICAS


async def test_repeated_batch_is_confirmed_when_it_is_committed(
    desk: PartitionDesk, commits: ReplicatedCommits
) -> None:
    batch = build_batch(
        [Record(value=b"once", timestamp_ms=desk.clock.now_ms())], producer_id=7, producer_epoch=0, base_sequence=0
    )
    desk.shell.append(memoryview(bytearray(batch)))
    await desk.turn()
    again = desk.shell.append(memoryview(bytearray(batch)))
    assert isinstance(again, Appended)
    assert again.commitment is not None, "the disk has it, and the others may not"
    commits.advance(1)
    assert again.commitment.is_known
    last = desk.shell.append(memoryview(bytearray(batch)))
    assert isinstance(last, Appended)
    assert (last.base_offset, last.commitment) == (0, None)


async def test_everything_that_asks_whether_it_is_kept_asks_for_the_watermark(
    desk: PartitionDesk, commits: ReplicatedCommits
) -> None:
    desk.append()
    await desk.turn()
    shell = desk.shell
    assert not shell.is_kept(0)
    assert shell.commit_unless_kept() is not None
    assert shell.commitment_of(0) is not None
    commits.advance(1)
    assert shell.is_kept(0)
    assert shell.commit_unless_kept() is None
    assert shell.commitment_of(0) is None


async def test_partition_that_gets_a_second_replica_loses_no_promise_and_gives_none_too_early(disk: GatedDisk) -> None:
    desk = PartitionDesk(disk)
    disk.close_gate()
    waiting = desk.append_synced()
    await disk.wait_until_syncing()
    desk.shell.take_role(TOGETHER)
    disk.open_gate()
    await desk.turn()
    assert (waiting.is_known, desk.shell.readable_end) == (False, 0), "the turn of before decides no longer"
    commits_of(desk).advance(1)
    assert (waiting.is_known, waiting.loss, desk.shell.readable_end) == (True, None, 1)
    desk.store.close(clean=False)


async def test_partition_that_is_left_alone_keeps_its_promises_by_its_disk(desk: PartitionDesk) -> None:
    waiting = desk.append_synced()
    await desk.turn()
    desk.shell.take_role(ALONE)
    assert await asyncio.wait_for(waiting.kept(), PATIENCE_SECONDS)
    assert desk.shell.readable_end == 1


async def test_end_is_not_told_before_what_was_there_is_committed(desk: PartitionDesk) -> None:
    desk.append()
    desk.shell.take_role(Following(1, 2))
    desk.shell.take_role(Leading(2, is_replicated=True))
    assert desk.shell.check_end() is ReadProblem.END_UNKNOWN
    assert desk.shell.epoch_end(2) == (2, 1), "a client would take the readable end for a cut"
    assert desk.shell.log.epochs.entries() == [(0, 0), (2, 1)], "noted before its first batch"
    commits_of(desk).advance(1)
    assert desk.shell.check_end() is None


def end_of(producer_id: int) -> TransactionEnd:
    return TransactionEnd(
        producer_id=producer_id, producer_epoch=1, coordinator_epoch=0, is_commit=True, version=VERSION_TWO
    )
