"""What an acknowledgement waits for: kept or lost, known once, and told to everybody who asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.commitment import Commitment, Loss, when_all_known
from penstock.broker.partition.waiting import Waiter
from support.partition import TOPIC_ID, PartitionDesk
from support.storage.gated_disk import GatedDisk

PATIENCE_SECONDS = 10.0


# The value alone


def test_nobody_is_told_before_it_is_known() -> None:
    heard: list[Commitment] = []
    commitment = Commitment()
    commitment.when_known(heard.append)
    assert not commitment.is_known
    assert not heard


@pytest.mark.parametrize("loss", [None, *Loss])
def test_everybody_is_told_once_in_the_order_of_asking_and_at_once_afterwards(loss: Loss | None) -> None:
    heard: list[tuple[str, Loss | None]] = []
    commitment = Commitment()
    commitment.when_known(lambda known: heard.append(("first", known.loss)))
    commitment.when_known(lambda known: heard.append(("second", known.loss)))
    commitment.settle(loss)
    commitment.when_known(lambda known: heard.append(("late", known.loss)))
    assert heard == [("first", loss), ("second", loss), ("late", loss)]


def test_the_first_word_counts() -> None:
    """Its leader is gone, and then the disk says that it has it: whoever waited has been told."""
    heard: list[Loss | None] = []
    commitment = Commitment()
    commitment.when_known(lambda known: heard.append(known.loss))
    commitment.settle(Loss.DISK)
    commitment.settle()
    assert commitment.loss is Loss.DISK
    assert heard == [Loss.DISK]


def test_who_asks_while_it_is_told_is_told_too() -> None:
    heard: list[str] = []
    commitment = Commitment()

    def ask_again(known: Commitment) -> None:
        heard.append("first")
        known.when_known(lambda _: heard.append("within"))

    commitment.when_known(ask_again)
    commitment.settle()
    assert heard == ["first", "within"]


@pytest.mark.parametrize("loss", [None, *Loss])
async def test_who_waits_learns_whether_it_is_kept(loss: Loss | None) -> None:
    commitment = Commitment()
    waiting = asyncio.create_task(commitment.kept())
    await asyncio.sleep(0)
    assert not waiting.done()
    commitment.settle(loss)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await waiting is (loss is None)
        assert await commitment.kept() is (loss is None)


async def test_who_has_given_up_waiting_keeps_it_from_nobody() -> None:
    commitment = Commitment()
    gone, patient = asyncio.create_task(commitment.kept()), asyncio.create_task(commitment.kept())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    commitment.settle()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await patient


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
def test_many_are_known_when_each_of_them_is(order: tuple[int, ...]) -> None:
    heard: list[bool] = []
    commitments = [Commitment() for _ in order]
    when_all_known(list(commitments), lambda: heard.append(True))
    for place in order:
        assert not heard
        commitments[place].settle(Loss.DISK if place == 1 else None)
    assert heard == [True]


def test_many_that_are_known_already_are_told_at_once() -> None:
    heard: list[bool] = []
    commitment = Commitment()
    commitment.settle()
    when_all_known([commitment, commitment], lambda: heard.append(True))
    when_all_known([], lambda: heard.append(True))
    assert heard == [True, True]


# Of a partition


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
async def desk(disk: GatedDisk) -> AsyncIterator[PartitionDesk]:
    made = PartitionDesk(disk)
    yield made
    disk.open_gate()
    await made.shell.commit().kept()
    made.store.close(clean=False)


async def test_appends_until_one_turn_of_the_disk_share_a_commitment_and_later_ones_do_not(
    desk: PartitionDesk, disk: GatedDisk
) -> None:
    disk.close_gate()
    first = desk.append_synced()
    assert desk.append_synced() is first
    await disk.wait_until_syncing()
    later = desk.append_synced()
    assert later is not first
    assert not first.is_known
    disk.open_gate()
    assert await first.kept()
    assert await later.kept()


async def test_each_partition_of_a_turn_has_its_own(desk: PartitionDesk, disk: GatedDisk) -> None:
    other = desk.open(1)
    disk.fail(TOPIC_ID, 1)
    kept, lost = desk.append_synced(), desk.append_synced(other)
    assert await kept.kept()
    assert not await lost.kept()
    assert lost.loss is Loss.DISK
    disk.heal()


async def test_what_is_kept_is_readable_before_anybody_is_told(desk: PartitionDesk) -> None:
    """Whoever is told reads at once, and must find it."""
    seen: list[int] = []
    commitment = desk.append_synced()
    assert desk.shell.readable_end == 0
    commitment.when_known(lambda _: seen.append(desk.shell.readable_end))
    assert await commitment.kept()
    assert seen == [1]


async def test_batch_that_is_there_already_has_a_commitment_until_it_is_readable(desk: PartitionDesk) -> None:
    desk.append_synced()
    again = desk.shell.commitment_of(0)
    assert again is not None
    assert await again.kept()
    assert desk.shell.commitment_of(0) is None


async def test_topic_that_promises_less_is_kept_when_somebody_wants_it(disk: GatedDisk) -> None:
    desk = PartitionDesk(disk, durability="interval")
    shell = desk.shell
    assert shell.commit_if_unsynced() is None
    assert desk.append().commitment is None
    assert shell.readable_end == 1
    commitment = shell.commit_if_unsynced()
    assert commitment is not None
    assert await commitment.kept()
    assert shell.log.durable_end == 1
    assert shell.commit_if_unsynced() is None
    desk.shell.close()
    desk.store.close(clean=False)


async def test_commit_that_brings_nothing_to_read_wakes_no_reader(disk: GatedDisk) -> None:
    """A consumer of a queue has the disk take what it is about to see: woken by that, it would look again and again."""
    desk = PartitionDesk(disk, durability="interval")
    desk.append()
    waiter = Waiter()
    waiter.watch([desk.shell.readers])
    assert await desk.shell.commit().kept()
    parked = asyncio.create_task(waiter.wait(60_000))
    await asyncio.sleep(0)
    assert not parked.done()
    desk.append()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await parked
    desk.shell.close()
    await desk.shell.commit().kept()
    desk.store.close(clean=False)
