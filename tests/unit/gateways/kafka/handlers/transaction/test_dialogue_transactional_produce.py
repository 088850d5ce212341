"""Transactional batches at the Kafka door: who may begin a transaction in a partition, and in what order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.broker.partition.comeback import come_back
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.produce import ProduceRequest, ProduceResponse
from penstock.domain.security.access import Operation, Principal, Resource, ResourceType
from support.door.conversation import PATIENCE_SECONDS, Conversation, TalkingNode, running_node
from support.door.counted_routes import watch_routes
from support.door.kafka_phrases import batch, outcome, outcomes, produce, produce_many, records_in
from support.storage.gated_disk import GatedDisk
from support.transaction.phrases import (
    NONE,
    PAYMENTS,
    TransactionalProducer,
    committed_values,
    fetched,
    until_committed,
    until_state,
)

OLDEST, VERIFIED, ABORTABLE, ADDING = 3, 10, 11, 12
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
REFUSED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node() as running:
        await running.create_topic("orders", 3)
        yield running


async def producer_on(talk: Conversation, protocol: int = 2) -> TransactionalProducer:
    return await TransactionalProducer(talk, protocol).ready()  # type: ignore[arg-type]


def part(producer: TransactionalProducer, value: bytes, sequence: int, **differently: int) -> bytes:
    whose = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, **differently}
    return batch(value, sequence=sequence, is_transactional=True, **whose)


def said(producer: TransactionalProducer, value: bytes, sequence: int, partition: int = 0) -> ProduceRequest:
    return produce("orders", part(producer, value, sequence), partition, transactional_id=PAYMENTS)


async def told(talk: Conversation, request: ProduceRequest, version: int = ADDING) -> ErrorCode:
    return outcome(await talk.ask(request, ProduceResponse, version))[0]


# The coordinator's word


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (OLDEST, ErrorCode.INVALID_TXN_STATE),
        (VERIFIED, ErrorCode.INVALID_TXN_STATE),
        (ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ADDING, NONE),
    ],
)
async def test_partition_must_be_part_of_the_transaction_before_a_new_client_comes(
    talk: Conversation, version: int, code: ErrorCode
) -> None:
    producer = await producer_on(talk, 1)
    assert await told(talk, said(producer, b"a", 0), version) is code
    # Added now, what was refused may come.
    assert await producer.add("orders", 0) == [NONE]
    assert await told(talk, said(producer, b"a", 0), version) is NONE


async def test_second_batch_of_a_transaction_asks_nobody(node: TalkingNode, talk: Conversation) -> None:
    producer = await producer_on(talk)
    journal = node.broker.topic("__transaction_state")
    assert journal is not None
    for sequence in range(5):
        assert await told(talk, said(producer, b"%d" % sequence, sequence)) is NONE
        if sequence == 0:
            ends = [shell.log.log_end for shell in journal.shells]
    assert [shell.log.log_end for shell in journal.shells] == ends


@pytest.mark.parametrize("version", [VERIFIED, ADDING])
async def test_strangers_are_refused(talk: Conversation, version: int) -> None:
    producer = await producer_on(talk, 1)
    await producer.add("orders", 0)
    cases = {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: {"producer_id": producer.producer_id + 1},
        ErrorCode.INVALID_PRODUCER_EPOCH: {"producer_epoch": producer.producer_epoch + 1},
    }
    for code, differently in cases.items():
        request = produce("orders", part(producer, b"a", 0, **differently), transactional_id=PAYMENTS)
        assert await told(talk, request, version) is code
    nobody = produce("orders", part(producer, b"a", 0), transactional_id="nobody")
    assert await told(talk, nobody, version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await told(talk, said(producer, b"a", 0), version) is NONE


@pytest.mark.parametrize(
    ("version", "code"), [(VERIFIED, ErrorCode.NOT_ENOUGH_REPLICAS), (ADDING, ErrorCode.CONCURRENT_TRANSACTIONS)]
)
async def test_next_transaction_waits_for_the_markers_of_the_one_before(
    node: TalkingNode, talk: Conversation, version: int, code: ErrorCode
) -> None:
    producer = await producer_on(talk)
    await producer.send("orders", b"a", partition=0)
    await producer.send("orders", b"a", partition=1)
    node.shell("orders", 1).log.fail("the disk is gone")
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"a")
    assert await told(talk, said(producer, b"b", 0), version) is code
    log = node.shell("orders", 1).log
    come_back(node.shell("orders", 1), node.broker._store.recover_log(log))
    await until_state(talk, "CompleteCommit")
    assert await producer.send("orders", b"b") is NONE


async def test_coordinator_that_is_away_makes_the_producer_try_again(node: TalkingNode, talk: Conversation) -> None:
    producer = await producer_on(talk)
    journal = node.broker.topic("__transaction_state")
    assert journal is not None
    for shell in journal.shells:
        shell.log.fail("the disk is gone")
    assert await told(talk, said(producer, b"a", 0)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert node.shell("orders").log.log_end == 0


# Order


async def test_pipelined_batches_stay_in_order_behind_the_one_that_waits() -> None:
    disk = GatedDisk()
    async with running_node(files=lambda: disk) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        producer = await producer_on(talk)
        disk.close_gate()
        values = [b"%d" % number + b"x" * 30_000 for number in range(8)]
        # The first waits for the coordinator's disk, and the receive buffer is used again and again behind it.
        for sequence, value in enumerate(values):
            await talk.send(said(producer, value, sequence), ADDING)
        await disk.wait_until_syncing()
        assert not talk.has_heard
        assert node.shell("orders").log.log_end == 0
        disk.open_gate()
        assert [outcome(await talk.hear(ProduceResponse)) for _ in values] == [(NONE, offset) for offset in range(8)]
        await producer.commit()
        await until_committed(talk, "orders", *values)


async def test_only_the_coordinator_is_waited_for_and_not_the_disk() -> None:
    """What follows a transaction's first batch is written while that one is being synced."""
    disk = GatedDisk()
    async with running_node(files=lambda: disk) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        producer = await producer_on(talk, 1)
        await producer.add("orders", 0)
        disk.close_gate()
        for sequence in range(3):
            await talk.send(said(producer, b"%d" % sequence, sequence), VERIFIED)
        other = await node.connect()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while node.shell("orders").log.log_end < 3:
                await other.expect_open()
        assert not talk.has_heard
        disk.open_gate()
        assert [outcome(await talk.hear(ProduceResponse)) for _ in range(3)] == [(NONE, n) for n in range(3)]


async def test_request_that_waits_in_part_is_answered_as_a_whole(talk: Conversation) -> None:
    producer = await producer_on(talk)
    await producer.send("orders", b"0", partition=1)
    entries = [
        ("orders", 0, part(producer, b"begins", 0)),
        ("orders", 1, part(producer, b"goes on", 1)),
        ("orders", 9, part(producer, b"nowhere", 0)),
        ("orders", 2, batch(b"plain")),
    ]
    reply = await talk.ask(produce_many(entries, transaction=PAYMENTS), ProduceResponse, ADDING)
    assert outcomes(reply) == [(NONE, 0), (NONE, 1), (UNKNOWN, -1), (NONE, 0)]
    await producer.commit()
    await until_committed(talk, "orders", b"begins")
    await until_committed(talk, "orders", b"0", b"goes on", partition=1)


async def test_disk_that_fails_a_batch_that_waited_is_told_of() -> None:
    disk = GatedDisk()
    async with running_node(files=lambda: disk) as node:
        topic_id = await node.create_topic("orders", 2)
        talk = await node.connect()
        producer = await producer_on(talk)
        disk.fail(topic_id, 0)
        entries = [("orders", index, part(producer, b"a", 0)) for index in (0, 1)]
        reply = await talk.ask(produce_many(entries, transaction=PAYMENTS), ProduceResponse, ADDING)
        assert outcomes(reply) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1), (NONE, 0)]
        disk.heal()


async def test_repeated_first_batch_is_stored_once(talk: Conversation) -> None:
    producer = await producer_on(talk)
    for _ in range(2):
        assert outcome(await talk.ask(said(producer, b"a", 0), ProduceResponse, ADDING)) == (NONE, 0)
    # A batch of the transaction that was aborted is nothing that the next one has.
    await producer.abort()
    assert await producer.send("orders", b"b") is NONE
    await producer.commit()
    await until_committed(talk, "orders", b"b")


# What a request must be


@pytest.mark.parametrize("transactional_id", [None, PAYMENTS])
async def test_batch_outside_of_the_open_transaction_is_refused(
    talk: Conversation, transactional_id: str | None
) -> None:
    producer = await producer_on(talk)
    await producer.send("orders", b"a")
    plain = batch(b"b", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, sequence=1)
    request = produce("orders", plain, transactional_id=transactional_id)
    assert await told(talk, request) is ErrorCode.INVALID_TXN_STATE
    assert await told(talk, produce("orders", batch(b"of nobody"))) is NONE


async def test_transactional_batch_needs_a_transactional_id(talk: Conversation) -> None:
    producer = await producer_on(talk)
    await producer.send("orders", b"a")
    assert await told(talk, produce("orders", part(producer, b"b", 1))) is REFUSED
    assert len(records_in((await fetched(talk, "orders", committed=False)).records)) == 1


@pytest.mark.parametrize("acks", [1, 2])
async def test_transactional_batch_must_ask_for_all_acks(talk: Conversation, acks: int) -> None:
    producer = await producer_on(talk)
    request = msgspec.structs.replace(said(producer, b"a", 0), acks=acks)
    assert await told(talk, request) is ErrorCode.INVALID_REQUIRED_ACKS
    assert await told(talk, said(producer, b"a", 0)) is NONE


async def test_transactional_batch_that_wants_no_reply_ends_the_connection(talk: Conversation) -> None:
    producer = await producer_on(talk)
    await talk.send_unanswered(msgspec.structs.replace(said(producer, b"a", 0), acks=0), ADDING)
    await talk.expect_closed()


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
async def test_nobody_writes_into_the_memory_of_a_coordinator(
    node: TalkingNode, talk: Conversation, topic: str
) -> None:
    await producer_on(talk)
    if node.broker.topic(topic) is None:
        await node.create_topic(topic)
    for _ in range(3):
        assert await told(talk, produce(topic, batch(b"a"))) is ErrorCode.INVALID_TOPIC_EXCEPTION


class NotForPayments:
    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        is_payments = resource == Resource(ResourceType.TRANSACTIONAL_ID, PAYMENTS)
        return not (is_payments and operation is Operation.WRITE)


async def test_transactional_id_is_guarded() -> None:
    async with running_node(authorizer=NotForPayments()) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        stranger = TransactionalProducer(talk)
        stranger.producer_id, stranger.producer_epoch = 5, 0
        assert await told(talk, said(stranger, b"a", 0)) is REFUSED
        assert await told(talk, produce("orders", batch(b"a"), transactional_id=PAYMENTS)) is NONE


# The short way


@pytest.fixture
def taken(node: TalkingNode) -> list[bool]:
    """Whether each frame that had a route was taken by it."""
    found: list[bool] = []
    watch_routes(node, lambda _, is_taken: found.append(is_taken))
    return found


async def test_batches_of_a_transaction_take_the_short_way_and_its_first_one_does_not(
    talk: Conversation, taken: list[bool]
) -> None:
    producer = await producer_on(talk)
    for sequence in range(6):
        assert await told(talk, said(producer, b"%d" % sequence, sequence)) is NONE
    assert taken == [True] * 3, "the first asks, the second and third teach the way"
    await producer.commit()
    await until_state(talk, "CompleteCommit")
    assert await told(talk, said(producer, b"next", 0)) is NONE
    await producer.commit()
    await until_committed(talk, "orders", *(b"%d" % number for number in range(6)), b"next")


async def test_short_way_of_ordinary_batches_takes_no_transactional_one(
    node: TalkingNode, talk: Conversation, taken: list[bool]
) -> None:
    producer = await producer_on(await node.connect())
    await producer.send("orders", b"open")
    taken.clear()
    for _ in range(3):
        assert await told(talk, produce("orders", batch(b"plain"))) is NONE
    assert taken == [True]
    assert await told(talk, produce("orders", part(producer, b"smuggled", 1))) is REFUSED
    assert taken[1] is False
    await producer.commit()
    await until_committed(talk, "orders", b"open", b"plain", b"plain", b"plain")


async def test_short_way_ends_where_the_transaction_does(talk: Conversation, taken: list[bool]) -> None:
    producer = await producer_on(talk, 1)
    await producer.add("orders", 0)
    for sequence in range(5):
        assert await told(talk, said(producer, b"%d" % sequence, sequence), ABORTABLE) is NONE
    await producer.abort()
    await until_state(talk, "CompleteAbort")
    # With version 1 the epoch stays, and so does every byte of the head: but nobody has added the partition again.
    assert await told(talk, said(producer, b"late", 5), ABORTABLE) is ErrorCode.TRANSACTION_ABORTABLE
    assert await committed_values(talk, "orders") == []


# Sequences that come twice


async def test_sequence_of_an_aborted_batch_is_not_answered_as_stored(node: TalkingNode, talk: Conversation) -> None:
    """A client that takes a batch back with its transaction gives the sequence to the next one's message. Told that it
    is stored, it would commit without it."""
    producer = await producer_on(talk, 1)
    assert await producer.add("orders", 0) == [NONE]
    assert await told(talk, said(producer, b"aborted", 0), VERIFIED) is NONE
    assert await producer.end(is_commit=False) is NONE
    await until_state(talk, "CompleteAbort")
    assert await producer.add("orders", 0) == [NONE]
    # What makes clients abort and go on with a new epoch.
    assert await told(talk, said(producer, b"committed", 0), VERIFIED) is ErrorCode.UNKNOWN_PRODUCER_ID
    assert await told(talk, said(producer, b"committed", 1), VERIFIED) is NONE
    # The same bytes once more: that is a retry.
    assert await told(talk, said(producer, b"committed", 1), VERIFIED) is NONE
    assert await told(talk, said(producer, b"another", 1), VERIFIED) is ErrorCode.UNKNOWN_PRODUCER_ID
