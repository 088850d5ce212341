"""A coordinator's shell between the pure machine and real logs: what was decided is done, whatever comes in between."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.comeback import come_back
from penstock.broker.partition.marker import write_marker
from penstock.broker.partition.outcome import AppendRefused, Refusal
from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    ProducerReady,
    Refused,
    TransactionEnded,
    TransactionProblem,
)
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.rules import TransactionSettings
from penstock.domain.transaction.state import TopicPartition, TransactionMetadata, TransactionState
from support.storage.faulty_files import CrashMode
from support.transaction.desk import ORDERS, POSITIONS, TIMEOUT_MS, DeskProducer, TransactionDesk

BOTH = pytest.mark.parametrize("version", [1, 2])


@pytest.fixture
async def desk() -> AsyncIterator[TransactionDesk]:
    made = TransactionDesk()
    await made.start()
    yield made
    await made.close()


async def state_of(desk: TransactionDesk, transactional_id: str = "payments") -> TransactionState | None:
    found = await desk.shell.describe(transactional_id)
    return found.state if isinstance(found, TransactionMetadata) else None


async def until_state(desk: TransactionDesk, state: TransactionState | None) -> None:
    """Durably so."""
    await desk.until(lambda: desk.state_of("payments") is state)
    assert await state_of(desk) is state


# Whole or not at all


@BOTH
async def test_committed_records_are_stable_in_every_partition(desk: TransactionDesk, version: int) -> None:
    producer = await DeskProducer(desk, version=version).begin()
    await producer.send(b"a", 0, 1)
    assert (desk.values(0), desk.values(1)) == ([], [])
    assert isinstance(await producer.end(is_commit=True), TransactionEnded)
    await desk.until(desk.is_stable)
    assert (desk.values(0), desk.values(1)) == ([b"a"], [b"a"])
    await until_state(desk, TransactionState.COMPLETE_COMMIT)


@BOTH
async def test_aborted_records_are_left_out(desk: TransactionDesk, version: int) -> None:
    producer = await DeskProducer(desk, version=version).begin()
    await producer.send(b"lost", 0)
    assert isinstance(await producer.end(is_commit=False), TransactionEnded)
    await producer.send(b"kept", 0)
    await producer.end(is_commit=True)
    await desk.until(desk.is_stable)
    assert desk.values(0) == [b"kept"]
    assert desk.values(0, is_committed_only=False) == [b"lost", b"kept"]


async def test_positions_of_groups_are_ended_too(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.add((POSITIONS,))
    await producer.end(is_commit=True)
    await until_state(desk, TransactionState.COMPLETE_COMMIT)
    assert desk.groups.ended == [(producer.producer_id, True)]


async def test_a_deleted_topic_does_not_hold_its_transaction(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0)
    del desk.topics[ORDERS]
    await producer.end(is_commit=True)
    await until_state(desk, TransactionState.COMPLETE_COMMIT)


async def test_a_marker_waits_for_the_disk_where_its_topic_does_not() -> None:
    desk = TransactionDesk(durability="interval")
    await desk.start()
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0)
    await producer.end(is_commit=True)
    await until_state(desk, TransactionState.COMPLETE_COMMIT)
    await desk.restart(CrashMode.LOST)
    assert desk.values(0) == [b"a"], "a transaction that is complete has its markers on the disk, and all before them"
    await desk.close()


async def test_a_marker_of_an_operator_does_not_hold_the_transaction(desk: TransactionDesk) -> None:
    """Written with a coordinator's epoch that is not ours, as tools for hanging transactions do."""
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0, 1)
    write_marker(
        desk.partition(0),
        TransactionEnd(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=1000,
            is_commit=False,
        ),
    )
    await producer.end(is_commit=False)
    await until_state(desk, TransactionState.COMPLETE_ABORT)
    await desk.until(desk.is_stable)


# Waiting


async def test_a_marker_leaves_only_when_the_decision_is_durable(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0)
    data_end = desk.partition(0).log.log_end
    task = asyncio.ensure_future(producer.end(is_commit=True))
    while desk.partition(0).log.log_end == data_end:
        journal = desk.journal.log
        was_durable = journal.durable_end == journal.log_end
        await asyncio.sleep(0)
    assert was_durable, "the marker came before the turn that made its Prepare record durable"
    await task


async def test_a_reply_waits_for_records_of_others_that_it_has_seen(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    partitions = (TopicPartition(ORDERS, 0),)
    command = AddPartitions("payments", producer.producer_id, producer.producer_epoch, partitions, 2)
    first = asyncio.ensure_future(desk.submit(command))
    second = asyncio.ensure_future(desk.submit(command))
    await desk.until(lambda: first.done() or second.done())
    assert desk.journal.log.durable_end == desk.journal.log.log_end
    assert (await first, await second) == (PartitionsAdded(), PartitionsAdded())


async def test_the_next_transaction_waits_for_the_markers_of_the_one_before(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.add((POSITIONS,))
    desk.groups.is_there = False
    await producer.end(is_commit=True)
    refused = await desk.submit(
        AddPartitions("payments", producer.producer_id, producer.producer_epoch, (POSITIONS,), 2)
    )
    assert refused == Refused(TransactionProblem.CONCURRENT_TRANSACTIONS)
    desk.groups.is_there = True
    await until_state(desk, TransactionState.COMPLETE_COMMIT)
    assert await producer.add((POSITIONS,)) == PartitionsAdded()


# Failing


async def test_markers_are_written_as_soon_as_their_log_is_back(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0, 1)
    lost = desk.partition(1)
    lost.log.fail("the disk is gone")
    assert isinstance(await producer.end(is_commit=True), TransactionEnded)
    await desk.until(lambda: desk.values(0) == [b"a"])
    assert await state_of(desk) is TransactionState.PREPARE_COMMIT
    come_back(lost, desk.store.recover_log(lost.log))
    await until_state(desk, TransactionState.COMPLETE_COMMIT)
    assert desk.values(1) == [b"a"]


async def test_a_decision_that_was_not_stored_was_not_made(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0)
    desk.files.can_sync_all = False
    desk.files.fail_next("sync", errno.EIO)
    assert await producer.end(is_commit=True) == Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)
    assert desk.shell.is_lost
    assert await producer.end(is_commit=True) == Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)
    come_back(desk.journal, desk.store.recover_log(desk.journal.log))
    desk.shell.close()
    await desk.shell.load()
    # Whether the record was kept is up to the disk; the producer asks again, and both are an answer.
    assert isinstance(await producer.end(is_commit=True), TransactionEnded)
    await desk.until(desk.is_stable)
    assert desk.values(0) == [b"a"]


async def test_whoever_waits_while_the_journal_is_lost_is_told_to_try_again(desk: TransactionDesk) -> None:
    desk.journal.log.fail("the disk is gone")
    reply = await desk.submit(InitProducer("payments", TIMEOUT_MS, spare_producer_id=7))
    assert reply == Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)
    assert await desk.shell.list_transactions() == Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)
    assert await desk.shell.describe("payments") == Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)


# Lives


@BOTH
@pytest.mark.parametrize("is_commit", [True, False])
async def test_what_was_decided_before_a_crash_is_done_after_it(
    desk: TransactionDesk, version: int, is_commit: bool
) -> None:
    producer = await DeskProducer(desk, version=version).begin()
    await producer.send(b"a", 0, 1)
    for index in (0, 1):
        desk.partition(index).log.fail("so that no marker comes through")
    assert isinstance(await producer.end(is_commit=is_commit), TransactionEnded)
    await desk.restart(CrashMode.LOST)
    await desk.until(desk.is_stable)
    assert [desk.values(0), desk.values(1)] == ([[b"a"], [b"a"]] if is_commit else [[], []])


async def test_every_life_of_a_coordinator_has_a_higher_epoch(desk: TransactionDesk) -> None:
    epochs = [desk.shell.coordinator_epoch]
    for mode in (CrashMode.KILL, CrashMode.LOST, CrashMode.KILL):
        producer = await DeskProducer(desk).begin()
        await producer.send(b"a", 0)
        await producer.end(is_commit=True)
        await desk.until(desk.is_stable)
        await desk.restart(mode)
        epochs.append(desk.shell.coordinator_epoch)
    assert epochs == sorted(set(epochs))


async def test_an_open_transaction_goes_on_after_a_crash(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0)
    await desk.restart()
    await producer.send(b"b", 0)
    await producer.end(is_commit=True)
    await desk.until(desk.is_stable)
    assert desk.values(0) == [b"a", b"b"]


# Time


async def test_a_transaction_that_takes_too_long_is_aborted(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    await producer.send(b"a", 0)
    desk.clock.advance_ms(TIMEOUT_MS)
    await desk.restart()  # the alarm of the new life rings at once
    await desk.until(desk.is_stable)
    assert desk.values(0) == []
    assert desk.shell.aborted_count == 1
    late = await producer.append(b"late", 0)
    assert isinstance(late, AppendRefused)
    assert late.refusal is Refusal.PRODUCER_FENCED


async def test_an_id_that_nobody_uses_is_forgotten() -> None:
    desk = TransactionDesk(settings=TransactionSettings(id_expiration_ms=1000))
    await desk.start()
    await DeskProducer(desk).begin()
    desk.clock.advance_ms(1000)
    await desk.restart()
    await until_state(desk, None)
    await desk.restart()
    assert await desk.shell.describe("payments") is None
    await desk.close()


async def test_open_transactions_are_counted(desk: TransactionDesk) -> None:
    producer = await DeskProducer(desk).begin()
    assert desk.shell.open_since_ms() == []
    began_ms = desk.clock.now_ms()
    await producer.send(b"a", 0)
    assert desk.shell.open_since_ms() == [began_ms]
    await producer.end(is_commit=True)
    assert desk.shell.open_since_ms() == []
    assert (desk.shell.committed_count, desk.shell.aborted_count) == (1, 0)


async def test_listings_are_by_id_and_filtered(desk: TransactionDesk) -> None:
    for name in ("b", "a"):
        assert isinstance(await desk.submit(InitProducer(name, TIMEOUT_MS)), ProducerReady)
    listed = await desk.shell.list_transactions()
    assert isinstance(listed, list)
    assert [listing.transactional_id for listing in listed] == ["a", "b"]
    assert await desk.shell.list_transactions(states=[TransactionState.ONGOING]) == []


async def test_an_end_without_a_transaction_is_refused(desk: TransactionDesk) -> None:
    reply = await desk.submit(EndTransaction("nobody", 1, 0, is_commit=True))
    assert reply == Refused(TransactionProblem.INVALID_PRODUCER_ID_MAPPING)
