"""Queues over logs of every kind: transactions, compaction, partitions that come later, journals that are lost."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from random import Random
from typing import cast

import pytest

from penstock.broker.partition.marker import write_marker
from penstock.broker.partition.outcome import Appended, VerificationNeeded
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.delivery import Message, ReceiptSettlement
from penstock.broker.queue.shell import QueueUnavailable
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.queue.commands import Act
from penstock.domain.queue.definition import QueueName, QueueOptions, Start
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.state import VERSION_TWO
from support.queue.broker import QueueBroker
from support.queue.lives import MortalBroker
from support.storage.faulty_files import CrashMode, FaultyFiles


@pytest.fixture
async def desk() -> AsyncIterator[QueueBroker]:
    made = QueueBroker()
    await made.start()
    yield made
    await made.stop()


def values(messages: list[Message]) -> list[bytes | None]:
    return [message.record.value for message in messages]


def partition_of(desk: QueueBroker, index: int = 0) -> PartitionShell:
    topic = desk.broker.topic("orders")
    assert topic is not None
    return topic.shells[index]


async def settle(desk: QueueBroker, name: QueueName, messages: list[Message], act: Act) -> list[object]:
    outcomes = await desk.delivery.settle(name, [ReceiptSettlement(message.receipt, act) for message in messages])
    assert isinstance(outcomes, list)
    return list(outcomes)


# Transactions


def write_in_transaction(desk: QueueBroker, producer_id: int, *texts: bytes) -> None:
    partition = partition_of(desk)
    records = [Record(text, timestamp_ms=desk.clock.now_ms()) for text in texts]

    def batch() -> memoryview:
        made = build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True)
        return memoryview(made)

    outcome = partition.append(batch())
    if isinstance(outcome, VerificationNeeded):
        guard = partition.begin_verification(outcome.header, version=VERSION_TWO)
        outcome = partition.append(batch(), guard=guard)
    assert isinstance(outcome, Appended), outcome


async def end_transaction(desk: QueueBroker, producer_id: int, *, is_commit: bool) -> None:
    end = TransactionEnd(
        producer_id=producer_id, producer_epoch=1, coordinator_epoch=1, is_commit=is_commit, version=VERSION_TWO
    )
    outcome = write_marker(partition_of(desk), end)
    assert isinstance(outcome, Appended), outcome
    if outcome.commitment is not None:
        await outcome.commitment.kept()


async def test_an_aborted_transaction_is_passed_over_and_an_open_one_waited_for(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    write_in_transaction(desk, 7, b"aborted", b"too")
    await end_transaction(desk, 7, is_commit=False)
    await desk.send("orders", [b"plain"])
    write_in_transaction(desk, 8, b"committed")
    await desk.send("orders", [b"behind"])
    assert values(await desk.receive(name)) == [b"plain"]
    await end_transaction(desk, 8, is_commit=True)
    messages = await desk.receive(name)
    assert values(messages) == [b"committed", b"behind"]
    (shell,) = desk.queues.loaded_shells()
    queue = shell.queue("workers")
    assert queue is not None
    assert queue.in_flight_count == 3
    assert queue.cursor() == partition_of(desk).readable_end


async def test_who_asks_for_it_is_given_what_is_not_committed(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders", options=QueueOptions(is_committed_only=False))
    write_in_transaction(desk, 7, b"open")
    await desk.send("orders", [b"plain"])
    assert values(await desk.receive(name)) == [b"open", b"plain"]


# Partitions


async def test_partitions_that_come_later_are_read_from_their_beginning(desk: QueueBroker) -> None:
    await desk.topic("orders")
    await desk.send("orders", [b"before"])
    name = await desk.queue("orders", options=QueueOptions(start=Start.LATEST))
    await desk.catalog.create_partitions("orders", 2)
    await desk.send("orders", [b"on the new one"], 1)
    assert values(await desk.receive(name, wait_ms=5_000)) == [b"on the new one"]


async def test_who_waits_learns_of_a_new_partition(desk: QueueBroker) -> None:
    await desk.topic("orders")
    name = await desk.queue("orders")
    waiting = asyncio.ensure_future(desk.receive(name, wait_ms=30_000))
    (shell,) = desk.queues.loaded_shells()
    async with asyncio.timeout(5):
        while not len(shell.room("workers")):  # noqa: ASYNC110  a room tells nobody who enters it
            await asyncio.sleep(0)
    await desk.catalog.create_partitions("orders", 2)
    await desk.send("orders", [b"on the new one"], 1)
    assert values(await asyncio.wait_for(waiting, 5)) == [b"on the new one"]


# Journals


async def test_what_the_disk_did_not_take_was_not_said() -> None:
    desk = MortalBroker(Random(1))
    await desk.start()
    await desk.topic("orders")
    name = await desk.queue("orders")
    await desk.send("orders", [b"a", b"b"])
    first, second = await desk.receive(name)
    files = cast(FaultyFiles, cast(object, desk.files))
    files.can_sync_all = False
    files.fail_next("sync", errno.EIO)
    (outcome,) = await settle(desk, name, [first], Act.ACCEPT)
    assert isinstance(outcome, QueueUnavailable)
    # And nothing more until it is known what is on the disk.
    assert isinstance((await settle(desk, name, [second], Act.ACCEPT))[0], QueueUnavailable)
    await desk.broker._upkeep.recover_offline()
    await desk.queues._reload_lost()
    again = await settle(desk, name, [first, second], Act.ACCEPT)
    assert not any(isinstance(each, QueueUnavailable) for each in again), "both are an answer: done, or finished"
    assert await desk.receive(name) == []
    await desk.die(CrashMode.KILL)


async def test_a_queue_defined_while_its_journal_is_lost_works_when_it_is_back() -> None:
    desk = MortalBroker(Random(1))
    await desk.start()
    await desk.topic("orders")
    await desk.queue("orders", "first")
    await desk.send("orders", [b"a"])
    (shell,) = desk.queues.loaded_shells()
    shell._companion.log.fail("the disk is gone")
    name = await desk.queue("orders", "second")
    await desk.broker._upkeep.recover_offline()
    await desk.queues._reload_lost()
    assert values(await desk.receive(name)) == [b"a"]
    await desk.die(CrashMode.KILL)
