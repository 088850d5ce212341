"""All coordinators of a node: the internal topic behind them, who asks which, and the markers that they send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.outcome import Appended
from penstock.broker.transaction.markers import MarkerOutcome
from penstock.broker.transaction.metrics import TransactionCollector
from penstock.broker.transaction.shell import TransactionShell
from penstock.codec.batch.header import read_header
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.topic_rules import TRANSACTION_STATE
from penstock.domain.transaction.commands import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    PartitionsVerified,
    ProducerReady,
    Refused,
    TransactionEnded,
    TransactionListing,
    TransactionProblem,
)
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.state import TopicPartition, TransactionMetadata, TransactionState
from support.door.conversation import TalkingNode, running_node

UNAVAILABLE = Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node() as running:
        await running.create_topic("orders")
        yield running


async def begin(node: TalkingNode, transactional_id: str = "payments") -> ProducerReady:
    reply = await node.transactions.submit(InitProducer(transactional_id, 60_000))
    assert isinstance(reply, ProducerReady), reply
    return reply


async def open_one(node: TalkingNode, transactional_id: str = "payments") -> ProducerReady:
    producer = await begin(node, transactional_id)
    whose = (transactional_id, producer.producer_id, producer.producer_epoch)
    assert await node.transactions.submit(AddPartitions(*whose, (ORDERS,), 2)) == PartitionsAdded()
    return producer


async def state_of(node: TalkingNode, transactional_id: str = "payments") -> TransactionState:
    found = await node.transactions.describe(transactional_id)
    assert isinstance(found, TransactionMetadata), found
    return found.state


# The internal topic


async def test_looking_creates_nothing(node: TalkingNode) -> None:
    assert await node.transactions.describe("payments") is None
    assert await node.transactions.list_transactions() == []
    assert node.broker.topic(TRANSACTION_STATE) is None


async def test_first_producers_create_one_topic_that_is_compacted_and_durable(node: TalkingNode) -> None:
    ready = await asyncio.gather(*(begin(node, f"producer-{number}") for number in range(20)))
    assert len({producer.producer_id for producer in ready}) == 20
    topic = node.broker.topic(TRANSACTION_STATE)
    assert topic is not None
    assert topic.partition_count == 8
    assert (topic.config.is_compacted, topic.config.durability) == (True, "fsync")


async def test_ids_are_spread_and_listed_together(node: TalkingNode) -> None:
    names = [f"producer-{number}" for number in range(20)]
    for name in names:
        await begin(node, name)
    assert len({node.transactions.partition_of(name) for name in names}) > 1
    listed = await node.transactions.list_transactions(id_matches=lambda name: name != names[3])
    assert isinstance(listed, list)
    assert [listing.transactional_id for listing in listed] == sorted(set(names) - {names[3]})


async def test_settings_of_the_node_reach_the_coordinator(node: TalkingNode) -> None:
    too_long = InitProducer("payments", node.transactions.settings.timeout_ms_max + 1)
    reply = await node.transactions.submit(too_long)
    assert reply == Refused(TransactionProblem.INVALID_TRANSACTION_TIMEOUT)


# What a batch must wait for


async def test_batches_are_admitted_by_adding_or_by_verifying(node: TalkingNode) -> None:
    producer = await begin(node)
    whose = {
        "transactional_id": "payments",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "partitions": (ORDERS,),
    }
    admit = node.transactions.admit
    assert await admit(**whose, version=1) == PartitionsVerified((ORDERS,))  # type: ignore[arg-type]
    assert await admit(**whose, version=2) == PartitionsAdded()  # type: ignore[arg-type]
    assert await admit(**whose, version=1) == PartitionsVerified()  # type: ignore[arg-type]
    found = await node.transactions.describe("payments")
    assert isinstance(found, TransactionMetadata)
    assert (found.partitions, found.client_version) == ((ORDERS,), 2)


async def test_end_of_the_transaction_before_is_waited_for(node: TalkingNode) -> None:
    producer = await open_one(node)
    end = EndTransaction("payments", producer.producer_id, producer.producer_epoch, is_commit=True, version=2)
    ended = await node.transactions.submit(end)
    assert isinstance(ended, TransactionEnded)
    add = AddPartitions("payments", ended.producer_id, ended.producer_epoch, (ORDERS,), 2)
    assert await node.transactions.submit(add) == Refused(TransactionProblem.CONCURRENT_TRANSACTIONS)
    assert await node.transactions.submit_patiently(add) == PartitionsAdded()


async def test_successor_waits_for_the_abort_of_what_it_finds(node: TalkingNode) -> None:
    before = await open_one(node)
    after = await node.transactions.submit_patiently(InitProducer("payments", 60_000))
    assert isinstance(after, ProducerReady)
    assert (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch + 2)


async def test_end_that_takes_long_is_not_waited_for(node: TalkingNode) -> None:
    await open_one(node)
    node.shell("orders").log.fail("the disk is gone")
    reply = await node.transactions.submit_patiently(InitProducer("payments", 60_000), wait_ms=10)
    assert reply == Refused(TransactionProblem.CONCURRENT_TRANSACTIONS)


# Failing


async def test_lost_journal_is_read_again_when_its_log_is_back(node: TalkingNode) -> None:
    producer = await open_one(node)
    topic = node.broker.topic(TRANSACTION_STATE)
    assert topic is not None
    for shell in topic.shells:
        shell.log.fail("the disk is gone")
    end = EndTransaction("payments", producer.producer_id, producer.producer_epoch, is_commit=True, version=2)
    assert await node.transactions.submit(end) == UNAVAILABLE
    assert await node.transactions.list_transactions() == UNAVAILABLE
    await node.transactions._reload_lost()
    assert await node.transactions.submit(end) == UNAVAILABLE
    await node.broker._upkeep.recover_offline()
    await node.transactions._reload_lost()
    assert isinstance(await node.transactions.submit(end), TransactionEnded)
    async with asyncio.timeout(10):
        # Asking gives the node a turn, in which it goes on with what it is about.
        while await state_of(node) is not TransactionState.COMPLETE_COMMIT:
            await asyncio.wait([asyncio.ensure_future(node.transactions.describe("payments"))])


async def test_coordinator_whose_memory_was_deleted_begins_anew(node: TalkingNode) -> None:
    before = await open_one(node)
    await node.catalog.delete_topic(TRANSACTION_STATE)
    assert await node.transactions.describe("payments") is None
    after = await begin(node)
    assert after.producer_id > before.producer_id


async def test_node_that_stops_decides_nothing() -> None:
    async with running_node() as node:
        await begin(node)
    assert await node.transactions.submit(InitProducer("payments", 60_000)) == UNAVAILABLE


# Markers


async def mark(node: TalkingNode, topic: str = "orders", partition: int = 0, **differently: int) -> MarkerOutcome:
    said = {"producer_id": 7, "producer_epoch": 3, "coordinator_epoch": 5, **differently}
    return await node.markers.write(topic, partition, TransactionEnd(**said, is_commit=True))


async def test_marker_ends_as_its_partition_says(node: TalkingNode) -> None:
    assert await mark(node) is MarkerOutcome.WRITTEN
    shell = node.shell("orders")
    assert (shell.log.log_end, shell.last_stable_offset) == (1, 1)
    assert await mark(node) is MarkerOutcome.WRITTEN
    assert shell.log.log_end == 1, "one that says nothing new is not written again"
    assert await mark(node, producer_epoch=2) is MarkerOutcome.PRODUCER_FENCED
    assert await mark(node, coordinator_epoch=4) is MarkerOutcome.COORDINATOR_FENCED
    assert await mark(node, partition=9) is MarkerOutcome.GONE
    assert await mark(node, "nowhere") is MarkerOutcome.GONE
    shell.log.fail("the disk is gone")
    assert await mark(node) is MarkerOutcome.UNAVAILABLE


# Metrics


async def test_open_and_ended_transactions_are_counted(node: TalkingNode) -> None:
    def shown() -> dict[str, float]:
        samples = (sample for metric in TransactionCollector(node.transactions).collect() for sample in metric.samples)
        return {"".join((sample.name, *sample.labels.values())): sample.value for sample in samples}

    assert shown()["penstock_open_transactions"] == 0
    producer = await open_one(node)
    await open_one(node, "other")
    assert shown()["penstock_open_transactions"] == 2
    assert shown()["penstock_oldest_open_transaction_seconds"] >= 0
    for name, is_commit in (("payments", True), ("other", False)):
        found = await node.transactions.describe(name)
        assert isinstance(found, TransactionMetadata)
        await node.transactions.submit(EndTransaction(name, found.producer_id, found.producer_epoch, is_commit, 2))
    assert shown()["penstock_open_transactions"] == 0
    assert shown()["penstock_ended_transactions_totalcommitted"] == 1
    assert shown()["penstock_ended_transactions_totalaborted"] == 1
    listed = await node.transactions.list_transactions(producer_ids=[producer.producer_id])
    assert isinstance(listed, list)
    assert isinstance(listed[0], TransactionListing)


async def test_a_commit_has_the_disk_take_what_it_covers_first() -> None:
    """Also where the topic acknowledges before that: a power cut must not leave half of a transaction."""
    async with running_node() as node:
        await node.create_topic("orders", durability="interval", durability_interval_ms="60000")
        producer = await open_one(node)
        shell = node.broker.topic("orders").shells[0]  # type: ignore[union-attr]
        batch = build_batch(
            [Record(value=b"paid")],
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )
        guard = shell.begin_verification(read_header(batch), version=2)  # type: ignore[arg-type]
        assert isinstance(shell.append(memoryview(batch), guard=guard), Appended)
        assert shell.log.durable_end == 0
        durable_ends: list[int] = []
        coordinator = await node.transactions._shell_of("payments")
        assert isinstance(coordinator, TransactionShell)
        submit = coordinator.submit

        async def watched(command: object) -> object:
            durable_ends.append(shell.log.durable_end)
            return await submit(command)  # type: ignore[arg-type]

        coordinator.submit = watched  # type: ignore[method-assign, assignment]
        whose = ("payments", producer.producer_id, producer.producer_epoch)
        assert isinstance(await node.transactions.submit(EndTransaction(*whose, True, 2)), TransactionEnded)
        assert durable_ends == [1]
