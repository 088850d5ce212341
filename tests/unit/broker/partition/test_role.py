"""Who leads a partition: nobody else takes a batch or answers a reader, and each refusal says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.commitment import Loss
from penstock.broker.partition.deletion import delete_before
from penstock.broker.partition.marker import write_marker
from penstock.broker.partition.outcome import Appended, AppendRefused, Refusal
from penstock.broker.partition.read import ReadProblem
from penstock.broker.partition.role import Following, Idle, Leading, Role
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.partition.waiting import Waiter
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.state import VERSION_TWO
from support.partition import PartitionDesk
from support.storage.gated_disk import GatedDisk

PATIENCE_SECONDS = 10.0
NOT_LEADING = [
    (Following(epoch=5, leader=2), "orders-0 is led by node 2, in epoch 5"),
    (Idle("all its replicas are gone"), "orders-0 has no leader: all its replicas are gone"),
]


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
async def desk(disk: GatedDisk) -> AsyncIterator[PartitionDesk]:
    made = PartitionDesk(disk)
    assert await made.append_synced().kept()
    yield made
    disk.open_gate()
    await made.turn()
    made.store.close(clean=False)


def mark(shell: PartitionShell) -> Appended | AppendRefused:
    return write_marker(
        shell, TransactionEnd(producer_id=7, producer_epoch=1, coordinator_epoch=0, is_commit=True, version=VERSION_TWO)
    )


@pytest.mark.parametrize(("role", "reason"), NOT_LEADING)
async def test_who_does_not_lead_takes_nothing(desk: PartitionDesk, role: Role, reason: str) -> None:
    shell = desk.shell
    shell.take_role(role)
    refusals = [
        shell.append(desk.batch()),
        shell.produce(desk.batch()),
        shell.append_checked(desk.batch()),
        shell.append_released(bytearray(desk.batch()), shell.leadership),
        shell.append_decided(desk.batch(), shell.leadership),
        mark(shell),
        shell.refusal(),
    ]
    assert refusals == [AppendRefused(Refusal.NOT_LEADER, reason)] * len(refusals)
    assert await delete_before(shell, 1) is ReadProblem.NOT_LEADER
    assert (shell.log.log_start, shell.log.log_end) == (0, 1)


async def test_who_does_not_lead_confirms_no_batch_that_it_has(desk: PartitionDesk) -> None:
    """What it has may be cut off when it hears from the leader."""
    batch = build_batch(
        [Record(value=b"once", timestamp_ms=desk.clock.now_ms())], producer_id=7, producer_epoch=0, base_sequence=0
    )
    assert isinstance(desk.shell.append(memoryview(batch)), Appended)
    desk.shell.take_role(Following(1, 2))
    again = desk.shell.append(memoryview(batch))
    assert isinstance(again, AppendRefused)
    assert again.refusal is Refusal.NOT_LEADER


@pytest.mark.parametrize("role", [role for role, _ in NOT_LEADING])
async def test_who_does_not_lead_answers_no_reader(desk: PartitionDesk, role: Role) -> None:
    desk.shell.take_role(role)
    for is_committed_only in (False, True):
        read = desk.shell.read(0, bytes_max=1000, is_committed_only=is_committed_only)
        assert (read.problem, bytes(read.records)) == (ReadProblem.NOT_LEADER, b"")
        cold = desk.shell.read_from_disk(0, bytes_max=1000, is_committed_only=is_committed_only)
        assert (cold.problem, cold.cold) == (ReadProblem.NOT_LEADER, None)
    assert desk.shell.check_epoch(-1) is ReadProblem.NOT_LEADER


@pytest.mark.parametrize(
    ("role", "believed", "problem"),
    [
        (Leading(5), -1, None),
        (Leading(5), 4, ReadProblem.FENCED_EPOCH),
        (Leading(5), 5, None),
        (Leading(5), 6, ReadProblem.UNKNOWN_EPOCH),
        (Following(5, 2), 4, ReadProblem.FENCED_EPOCH),
        (Following(5, 2), 5, ReadProblem.NOT_LEADER),
        (Following(5, 2), 6, ReadProblem.UNKNOWN_EPOCH),
        (Idle("nobody is left"), 0, ReadProblem.UNKNOWN_EPOCH),
    ],
)
async def test_client_learns_first_whether_it_knows_the_epoch(
    desk: PartitionDesk, role: Role, believed: int, problem: ReadProblem | None
) -> None:
    desk.shell.take_role(role)
    assert desk.shell.check_epoch(believed) is problem
    assert desk.shell.read(1, bytes_max=1000, leader_epoch=believed).problem is problem


async def test_batches_carry_the_epoch_they_were_led_in(desk: PartitionDesk) -> None:
    desk.shell.take_role(Leading(3))
    assert isinstance(mark(desk.shell), Appended)
    assert await desk.append_synced().kept()
    read = desk.shell.read(0, bytes_max=1000)
    assert [header.leader_epoch for _, header in walk_headers(bytes(read.records))] == [0, 3, 3]
    assert desk.shell.epoch_end(0) == (0, 1)
    assert desk.shell.epoch_end(3) == (3, 3)


async def test_promises_are_broken_when_the_lead_is_lost_and_not_when_the_disk_answers(
    desk: PartitionDesk, disk: GatedDisk
) -> None:
    disk.close_gate()
    running = desk.append_synced()
    await disk.wait_until_syncing()
    following = desk.append_synced()
    desk.shell.take_role(Following(1, 2))
    assert (running.loss, following.loss) == (Loss.LEADERSHIP, Loss.LEADERSHIP)
    disk.open_gate()
    await desk.turn()
    assert (running.loss, following.loss) == (Loss.LEADERSHIP, Loss.LEADERSHIP)


async def test_promise_of_a_second_time_in_the_lead_is_its_own(desk: PartitionDesk, disk: GatedDisk) -> None:
    """Both were written before the same turn of the disk."""
    disk.close_gate()
    lost = desk.append_synced()
    desk.shell.take_role(Following(1, 2))
    desk.shell.take_role(Leading(2))
    kept = desk.append_synced()
    disk.open_gate()
    assert await kept.kept()
    assert lost.loss is Loss.LEADERSHIP


async def test_promise_outlives_a_new_epoch_of_the_same_leader(desk: PartitionDesk) -> None:
    commitment = desk.append_synced()
    desk.shell.take_role(Leading(1))
    assert await commitment.kept()


async def test_reader_that_waits_is_woken_to_learn_who_leads(desk: PartitionDesk) -> None:
    waiter = Waiter()
    waiter.watch([desk.shell.readers])
    parked = asyncio.create_task(waiter.wait(60_000))
    await asyncio.sleep(0)
    assert not parked.done()
    desk.shell.take_role(Following(1, 2))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await parked
