"""Transactions at the Kafka door: whole or not at all, for producers of both versions of the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from penstock.codec.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.codec.kafka.messages.list_offsets import ListOffsetsResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import batch, list_offsets, outcome, produce, records_in
from support.transaction.phrases import (
    NONE,
    PAYMENTS,
    TransactionalProducer,
    add_partitions,
    codes_of,
    committed_values,
    described,
    fetched,
    until_committed,
    until_state,
)

FENCED = ErrorCode.PRODUCER_FENCED
OLD_EPOCH = ErrorCode.INVALID_PRODUCER_EPOCH
NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
FORBIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED
LATEST = -1

Protocol = Literal[1, 2]
BOTH = pytest.mark.parametrize("protocol", [1, 2])


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with running_node() as running:
        await running.create_topic("orders", 2)
        await running.create_topic("audit", 1)
        yield running


async def producer_on(talk: Conversation, protocol: Protocol = 1, **how: object) -> TransactionalProducer:
    return await TransactionalProducer(talk, protocol, **how).ready()  # type: ignore[arg-type]


# The coordinator


@pytest.mark.parametrize("version", range(7))
async def test_this_node_looks_after_transactions(node: TalkingNode, talk: Conversation, version: int) -> None:
    if version == 0:
        pytest.skip("version 0 knows groups alone")
    request = FindCoordinatorRequest(key=PAYMENTS, key_type=1, coordinator_keys=(PAYMENTS,))
    reply = await talk.ask(request, FindCoordinatorResponse, version)
    answer = reply.coordinators[0] if version >= 4 else reply
    host, _, port = node.addresses["kafka"].rpartition(":")
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (NONE, 1, host, int(port))


# Whole or not at all


@BOTH
async def test_committed_records_are_seen_by_everybody(talk: Conversation, protocol: Protocol) -> None:
    producer = await producer_on(talk, protocol)
    assert await producer.send("orders", b"a", b"b") is NONE
    assert await producer.send("audit", b"c") is NONE
    assert await committed_values(talk, "orders") == []
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"a", b"b")
    await until_committed(talk, "audit", b"c")


@BOTH
async def test_aborted_records_are_left_out_by_readers_of_committed_ones(
    talk: Conversation, protocol: Protocol
) -> None:
    producer = await producer_on(talk, protocol)
    await producer.send("orders", b"lost")
    assert await producer.abort() is NONE
    await producer.send("orders", b"kept")
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"kept")
    everything = await fetched(talk, "orders", committed=False)
    values = [record.value for record in records_in(everything.records)]
    # Each marker is a record of its own, with a value that is nobody's business.
    assert values[0] == b"lost"
    assert values[2] == b"kept"
    assert everything.aborted_transactions is None


@BOTH
async def test_reader_of_committed_records_stops_where_a_transaction_is_open(
    talk: Conversation, protocol: Protocol
) -> None:
    producer = await producer_on(talk, protocol)
    assert outcome(await talk.ask(produce("orders", batch(b"before")), ProduceResponse, 9)) == (NONE, 0)
    await producer.send("orders", b"open")
    assert outcome(await talk.ask(produce("orders", batch(b"after")), ProduceResponse, 9)) == (NONE, 2)
    data = await fetched(talk, "orders")
    assert (data.last_stable_offset, data.high_watermark) == (1, 3)
    assert await committed_values(talk, "orders") == [b"before"]
    assert len(records_in((await fetched(talk, "orders", committed=False)).records)) == 3
    await producer.commit()
    await until_committed(talk, "orders", b"before", b"open", b"after")


async def test_latest_offset_of_committed_records_is_the_stable_one(talk: Conversation) -> None:
    producer = await producer_on(talk)
    await producer.send("orders", b"open")
    request = list_offsets("orders", LATEST)
    ends = []
    for isolation_level in (0, 1):
        asked = type(request)(replica_id=-1, isolation_level=isolation_level, topics=request.topics)
        reply = await talk.ask(asked, ListOffsetsResponse)
        ends.append(reply.topics[0].partitions[0].offset)
    assert ends == [1, 0]


@BOTH
async def test_transaction_without_records_commits(talk: Conversation, protocol: Protocol) -> None:
    producer = await producer_on(talk, protocol)
    if protocol == 1:
        assert await producer.add("orders", 0, 1) == [NONE, NONE]
        assert await producer.commit() is NONE
        assert (await until_state(talk, "CompleteCommit")).producer_epoch == 0
    else:
        # Of such a one nobody has heard: it can only be given up.
        assert await producer.commit() is ErrorCode.INVALID_TXN_STATE
        assert await producer.abort() is NONE


@BOTH
async def test_many_transactions_follow_one_another(talk: Conversation, protocol: Protocol) -> None:
    producer = await producer_on(talk, protocol)
    kept = []
    for number in range(20):
        value = b"%d" % number
        assert await producer.send("orders", value, partition=number % 2) is NONE
        if number % 3:
            kept.append(value)
        assert await producer.end(is_commit=bool(number % 3)) is NONE
    await until_committed(talk, "orders", *[value for value in kept if int(value) % 2 == 0])
    await until_committed(talk, "orders", *[value for value in kept if int(value) % 2], partition=1)


async def test_epoch_is_raised_by_every_end_in_version_two_and_by_none_in_version_one(talk: Conversation) -> None:
    old, new = await producer_on(talk, 1, transactional_id="old"), await producer_on(talk, 2, transactional_id="new")
    for number in range(3):
        for producer in (old, new):
            await producer.send("orders", b"x")
            assert await producer.commit() is NONE
        assert (old.producer_epoch, new.producer_epoch) == (0, number + 1)


@BOTH
async def test_repeated_end_is_answered_as_the_first(talk: Conversation, protocol: Protocol) -> None:
    producer = await producer_on(talk, protocol)
    await producer.send("orders", b"a")
    first = await producer.end_once(is_commit=True)
    assert first.error_code == NONE
    await until_state(talk, "CompleteCommit")
    again = await producer.end_once(is_commit=True)
    assert again == first
    assert (await producer.end_once(is_commit=False)).error_code == ErrorCode.INVALID_TXN_STATE
    await until_committed(talk, "orders", b"a")


# Zombies


@BOTH
async def test_second_producer_with_the_id_shuts_out_the_first(
    node: TalkingNode, talk: Conversation, protocol: Protocol
) -> None:
    zombie = await producer_on(talk, protocol)
    await zombie.send("orders", b"zombie")
    successor = await producer_on(await node.connect(), protocol)
    assert successor.producer_id == zombie.producer_id
    assert successor.producer_epoch > zombie.producer_epoch
    await successor.send("orders", b"new")
    assert await zombie.send_once("orders", b"late") is OLD_EPOCH
    assert await zombie.commit() is FENCED
    assert await zombie.init(keeps_id=True) is FENCED
    assert await successor.commit() is NONE
    await until_committed(talk, "orders", b"new")


@pytest.mark.parametrize(("version", "code"), [(0, OLD_EPOCH), (1, OLD_EPOCH), (2, FENCED), (4, FENCED), (5, FENCED)])
async def test_old_clients_know_a_fenced_producer_by_the_older_error(
    talk: Conversation, version: int, code: ErrorCode
) -> None:
    zombie, _ = await producer_on(talk), await producer_on(talk)
    request = EndTxnRequest(PAYMENTS, zombie.producer_id, zombie.producer_epoch, True)
    assert (await talk.ask(request, EndTxnResponse, version)).error_code == code
    if version <= 3:
        asked = add_partitions(zombie, {"orders": (0,)})
        reply = await talk.ask(asked, AddPartitionsToTxnResponse, version)
        assert codes_of(reply.results_by_topic_v3_and_below) == [code]


@pytest.mark.parametrize(("version", "code"), [(3, OLD_EPOCH), (4, FENCED), (5, FENCED)])
async def test_fenced_producer_cannot_go_on_with_what_it_had(talk: Conversation, version: int, code: ErrorCode) -> None:
    zombie, _ = await producer_on(talk), await producer_on(talk)
    request = InitProducerIdRequest(PAYMENTS, 60_000, zombie.producer_id, zombie.producer_epoch)
    assert (await talk.ask(request, InitProducerIdResponse, version)).error_code == code


@BOTH
async def test_producer_goes_on_after_an_error_with_the_next_epoch(talk: Conversation, protocol: Protocol) -> None:
    producer = await producer_on(talk, protocol)
    await producer.send("orders", b"broken")
    before = producer.producer_epoch
    assert await producer.init(keeps_id=True) is NONE
    assert producer.producer_epoch > before
    await producer.send("orders", b"whole")
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"whole")


async def test_next_transaction_waits_for_the_end_of_the_one_before(talk: Conversation) -> None:
    producer = await producer_on(talk)
    for _ in range(3):
        # In one breath: the end is confirmed when it is decided, its markers come after.
        await producer.send("orders", b"a")
        await talk.send(EndTxnRequest(PAYMENTS, producer.producer_id, producer.producer_epoch, True), 4)
        await talk.send(add_partitions(producer, {"orders": (0,)}), 3)
        assert (await talk.hear(EndTxnResponse)).error_code == NONE
        assert codes_of((await talk.hear(AddPartitionsToTxnResponse)).results_by_topic_v3_and_below) == [NONE]
    # A successor waits for the abort of what it found in the same way.
    reply = await talk.ask(InitProducerIdRequest(PAYMENTS, 60_000), InitProducerIdResponse, 4)
    assert reply.error_code == NONE
    await until_committed(talk, "orders", b"a", b"a", b"a")


# What makes no sense


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_timeout_beyond_the_limit_is_refused(talk: Conversation, timeout_ms: int) -> None:
    producer = TransactionalProducer(talk, timeout_ms=timeout_ms)
    assert await producer.init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("version", range(6))
async def test_empty_id_is_refused(talk: Conversation, version: int) -> None:
    reply = await talk.ask(InitProducerIdRequest("", 60_000), InitProducerIdResponse, version)
    assert (reply.error_code, reply.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


@pytest.mark.parametrize("transactional_id", [None, PAYMENTS])
async def test_id_without_epoch_is_refused(talk: Conversation, transactional_id: str | None) -> None:
    for producer_id, epoch in ((7, -1), (-1, 7)):
        request = InitProducerIdRequest(transactional_id, 60_000, producer_id, epoch)
        reply = await talk.ask(request, InitProducerIdResponse)
        assert reply.error_code == ErrorCode.INVALID_REQUEST


@BOTH
async def test_nobody_ends_a_transaction_that_he_has_not(talk: Conversation, protocol: Protocol) -> None:
    stranger = TransactionalProducer(talk, protocol, transactional_id="stranger")
    stranger.producer_id, stranger.producer_epoch = 4711, 0
    assert await stranger.commit() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await stranger.add("orders", 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    producer = await producer_on(talk, protocol)
    assert await producer.commit() is ErrorCode.INVALID_TXN_STATE


async def test_partitions_are_added_whole_or_not_at_all(talk: Conversation) -> None:
    producer = await producer_on(talk)
    asked = add_partitions(producer, {"orders": (0, 7), "missing": (0,), "__consumer_offsets": (0,)})
    reply = await talk.ask(asked, AddPartitionsToTxnResponse, 3)
    assert codes_of(reply.results_by_topic_v3_and_below) == [NOT_ATTEMPTED, UNKNOWN, UNKNOWN, FORBIDDEN]
    assert (await described(talk)).transaction_state == "Empty"


async def test_batch_outside_of_a_transaction_is_refused_once_it_is_asked_about(talk: Conversation) -> None:
    producer = await producer_on(talk)
    # Not added, and Produce 11 does not add it.
    assert await producer.send_once("orders", b"a") is ErrorCode.TRANSACTION_ABORTABLE
    sent = batch(b"a", producer_id=producer.producer_id, sequence=0, is_transactional=True)
    for version, code in ((9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)):
        request = produce("orders", sent, transactional_id=PAYMENTS)
        assert outcome(await talk.ask(request, ProduceResponse, version)) == (code, -1)
    assert (await fetched(talk, "orders", committed=False)).high_watermark == 0


# Several at once: brokers ask


async def test_broker_asks_about_partitions_without_adding_them(talk: Conversation) -> None:
    producer = await producer_on(talk)
    await producer.add("orders", 0)
    asked = add_partitions(producer, {"orders": (0, 1)}, verify_only=True)
    for version in (4, 5):
        reply = await talk.ask(asked, AddPartitionsToTxnResponse, version)
        (result,) = reply.results_by_transaction
        assert (reply.error_code, result.transactional_id) == (NONE, PAYMENTS)
        assert codes_of(result.topic_results) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    (topic,) = (await described(talk)).topics
    assert list(topic.partitions) == [0]


@pytest.mark.parametrize("version", [4, 5])
async def test_broker_adds_partitions_of_several_transactions(talk: Conversation, version: int) -> None:
    one, two = await producer_on(talk, 2, transactional_id="one"), await producer_on(talk, 2, transactional_id="two")
    both = (add_partitions(one, {"orders": (0,)}), add_partitions(two, {"missing": (0,), "orders": (1,)}))
    asked = type(both[0])(transactions=tuple(request.transactions[0] for request in both))
    reply = await talk.ask(asked, AddPartitionsToTxnResponse, version)
    found = {result.transactional_id: codes_of(result.topic_results) for result in reply.results_by_transaction}
    assert found == {"one": [NONE], "two": [UNKNOWN, NOT_ATTEMPTED]}
    states = [(await described(talk, name)).transaction_state for name in ("one", "two")]
    assert states == ["Ongoing", "Empty"]


# Time, and the end of a node


@BOTH
async def test_transaction_that_takes_too_long_is_aborted(talk: Conversation, protocol: Protocol) -> None:
    producer = await producer_on(talk, protocol, timeout_ms=30)
    await producer.send("orders", b"slow")
    await until_state(talk, "CompleteAbort")
    await until_committed(talk, "orders")
    assert (await fetched(talk, "orders")).last_stable_offset == 2
    assert await producer.commit() is (FENCED if protocol == 1 else ErrorCode.INVALID_TXN_STATE)
    # It begins anew, as clients do that were told so.
    assert await producer.init() is NONE
    await producer.send("orders", b"quick")
    assert await producer.commit() is NONE
    await until_committed(talk, "orders", b"quick")


@BOTH
async def test_transaction_goes_on_where_a_node_was_started_again(tmp_path: Path, protocol: Protocol) -> None:
    async with running_node(data_dir=str(tmp_path)) as node:
        await node.create_topic("orders", 2)
        talk = await node.connect()
        producer = await producer_on(talk, protocol)
        await producer.send("orders", b"a")
    async with running_node(data_dir=str(tmp_path)) as node:
        producer.talk = talk = await node.connect()
        assert await committed_values(talk, "orders") == []
        assert (await described(talk)).transaction_state == "Ongoing"
        assert await producer.send("orders", b"b") is NONE
        assert await producer.commit() is NONE
        await until_committed(talk, "orders", b"a", b"b")
        assert await producer.send("orders", b"c") is NONE
        assert await producer.abort() is NONE
        await until_state(talk, "CompleteAbort")
    async with running_node(data_dir=str(tmp_path)) as node:
        talk = await node.connect()
        await until_committed(talk, "orders", b"a", b"b")
        assert (await described(talk)).transaction_state == "CompleteAbort"
