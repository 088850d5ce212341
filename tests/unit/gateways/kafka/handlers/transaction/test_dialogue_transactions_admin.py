"""Transactions as operators see them, ended by hand, and closed to those who may not use them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.codec.kafka.messages.add_partitions_to_txn import AddPartitionsToTxnResponse
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from penstock.codec.kafka.messages.describe_transactions import DescribeTransactionsRequest
from penstock.codec.kafka.messages.end_txn import EndTxnRequest
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest
from penstock.codec.kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.codec.kafka.messages.write_txn_markers import WriteTxnMarkersResponse
from penstock.domain.security.access import CLUSTER, Operation, Principal, Resource, ResourceType
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import DAY_MS, batch, outcome, produce
from support.group.phrases import GROUP, node_with_groups
from support.transaction.phrases import (
    NONE,
    PAYMENTS,
    TransactionalProducer,
    add_partitions,
    codes_of,
    committed_values,
    described,
    fetched,
    marker,
    offsets_in_transaction,
    producers_of,
    until_committed,
    until_state,
)

NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ID, TOPIC, OF_GROUP = ResourceType.TRANSACTIONAL_ID, ResourceType.TOPIC, ResourceType.GROUP


class Forbidden:
    """Everything is allowed but what is named here: (operation, kind of thing, its name)."""

    def __init__(self) -> None:
        self.deeds: set[tuple[Operation, ResourceType, str]] = set()

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.type, resource.name) not in self.deeds


@pytest.fixture
def forbidden() -> Forbidden:
    return Forbidden()


@pytest.fixture
async def node(forbidden: Forbidden) -> AsyncIterator[TalkingNode]:
    async with node_with_groups(authorizer=forbidden) as running:
        await running.create_topic("orders", 2)
        await running.create_topic("audit", 1)
        yield running


async def producer_on(talk: Conversation, transactional_id: str = PAYMENTS) -> TransactionalProducer:
    return await TransactionalProducer(talk, transactional_id=transactional_id).ready()


# Features


@pytest.mark.parametrize("version", [3, 4])
async def test_clients_are_told_that_version_two_is_switched_on(talk: Conversation, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="dialogue", client_software_version="1.0")
    reply = await talk.ask(request, ApiVersionsResponse, version)
    finalized = {
        feature.name: (feature.min_version_level, feature.max_version_level) for feature in reply.finalized_features
    }
    assert finalized == {"group.version": (1, 1), "share.version": (1, 1), "transaction.version": (2, 2)}
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in reply.supported_features}
    # A level of 0 is more than clients of version 3 can read.
    told = {"group.version": (0, 1), "share.version": (0, 1), "transaction.version": (0, 2)}
    assert supported == (told if version >= 4 else {})
    assert reply.finalized_features_epoch >= 0


# As the coordinator sees them


async def test_transaction_is_described_from_beginning_to_end(talk: Conversation) -> None:
    assert (await described(talk)).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    producer = await producer_on(talk)
    found = await described(talk)
    assert (found.transaction_state, found.transaction_timeout_ms, list(found.topics)) == ("Empty", 60_000, [])
    await producer.send("orders", b"a", partition=1)
    await producer.send("orders", b"a", partition=0)
    await producer.send("audit", b"a")
    found = await described(talk)
    assert (found.transaction_state, found.producer_id, found.producer_epoch) == ("Ongoing", producer.producer_id, 0)
    assert {topic.topic: list(topic.partitions) for topic in found.topics} == {"audit": [0], "orders": [0, 1]}
    assert found.transaction_start_time_ms > DAY_MS
    await producer.commit()
    found = await until_state(talk, "CompleteCommit")
    assert (found.producer_epoch, list(found.topics)) == (1, [])


async def listed(talk: Conversation, version: int = 2, **filters: object) -> dict[str, str]:
    request = ListTransactionsRequest(**filters)  # type: ignore[arg-type]
    reply = await talk.ask(request, ListTransactionsResponse, version)
    assert reply.error_code == NONE, reply
    return {found.transactional_id: found.transaction_state for found in reply.transaction_states}


async def test_transactions_are_listed_by_what_is_asked_for(talk: Conversation) -> None:
    assert await listed(talk) == {}
    one, two = await producer_on(talk, "payments-1"), await producer_on(talk, "payments-2")
    await producer_on(talk, "refunds")
    for producer in (one, two):
        await producer.send("orders", b"a")
    await two.abort()
    await until_state(talk, "CompleteAbort", "payments-2")
    everything = {"payments-1": "Ongoing", "payments-2": "CompleteAbort", "refunds": "Empty"}
    for version in (0, 1, 2):
        assert await listed(talk, version) == everything
        assert await listed(talk, version, state_filters=("Ongoing",)) == {"payments-1": "Ongoing"}
        assert await listed(talk, version, producer_id_filters=(two.producer_id,)) == {"payments-2": "CompleteAbort"}
    # One that never began has no duration, and passes, as with Kafka.
    assert await listed(talk, duration_filter=600_000) == {"refunds": "Empty"}
    assert "payments-1" in await listed(talk, duration_filter=0, state_filters=("Ongoing", "Empty"))
    assert set(await listed(talk, transactional_id_pattern="payments-.*")) == {"payments-1", "payments-2"}
    assert await listed(talk, transactional_id_pattern="payments") == {}
    assert await listed(talk, transactional_id_pattern="") == everything


async def test_filters_that_make_no_sense_are_told(talk: Conversation) -> None:
    await producer_on(talk)
    reply = await talk.ask(ListTransactionsRequest(state_filters=("Ongoing", "Odd")), ListTransactionsResponse)
    assert (list(reply.unknown_state_filters), list(reply.transaction_states)) == (["Odd"], [])
    reply = await talk.ask(ListTransactionsRequest(state_filters=("Odd",)), ListTransactionsResponse)
    assert list(reply.transaction_states) == []
    reply = await talk.ask(ListTransactionsRequest(transactional_id_pattern="("), ListTransactionsResponse)
    assert reply.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


# As a partition sees them


async def test_partition_tells_its_producers(talk: Conversation) -> None:
    assert await producers_of(talk, "orders") == []
    sent = batch(b"x", b"y", producer_id=77_777, sequence=0)
    assert outcome(await talk.ask(produce("orders", sent), ProduceResponse, 9))[0] is NONE
    producer = await producer_on(talk)
    await producer.send("orders", b"a", b"b", b"c")
    found = {state.producer_id: state for state in await producers_of(talk, "orders")}
    assert set(found) == {77_777, producer.producer_id}
    idempotent, transactional = found[77_777], found[producer.producer_id]
    assert (idempotent.last_sequence, idempotent.current_txn_start_offset) == (1, -1)
    assert (transactional.producer_epoch, transactional.last_sequence) == (0, 2)
    assert (transactional.current_txn_start_offset, transactional.coordinator_epoch) == (2, -1)
    assert transactional.last_timestamp == DAY_MS + 2
    await producer.commit()
    await until_committed(talk, "orders", b"x", b"y", b"a", b"b", b"c")
    ended = next(state for state in await producers_of(talk, "orders") if state.producer_id == producer.producer_id)
    assert (ended.current_txn_start_offset, ended.producer_epoch) == (-1, 1)
    assert ended.coordinator_epoch >= 0


async def test_partition_that_is_not_there_has_no_producers(talk: Conversation) -> None:
    request = DescribeProducersRequest(topics=(TopicRequest("orders", (7,)), TopicRequest("missing", (0,))))
    reply = await talk.ask(request, DescribeProducersResponse)
    places = [place for topic in reply.topics for place in topic.partitions]
    assert [place.error_code for place in places] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert [place.error_message for place in places] == [
        "topic 'orders' has no partition 7",
        "there is no topic 'missing'",
    ]


# Ended by hand


@pytest.mark.parametrize("version", [1, 2])
async def test_open_transaction_is_ended_by_a_marker(talk: Conversation, version: int) -> None:
    producer = await producer_on(talk)
    await producer.send("orders", b"a")
    reply = await talk.ask(marker(producer, "orders", 0, 7, is_commit=False), WriteTxnMarkersResponse, version)
    (result,) = reply.markers
    (topic,) = result.topics
    assert (result.producer_id, topic.name) == (producer.producer_id, "orders")
    codes = [(place.partition_index, place.error_code) for place in topic.partitions]
    assert codes == [(0, NONE), (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert await committed_values(talk, "orders") == []
    assert (await fetched(talk, "orders")).last_stable_offset == 2


async def test_marker_of_an_older_epoch_or_coordinator_is_refused(talk: Conversation) -> None:
    producer = await producer_on(talk)
    await producer.send("orders", b"a")
    await producer.commit()
    await until_committed(talk, "orders", b"a")
    await producer.send("orders", b"b")
    before = TransactionalProducer(talk)
    before.producer_id, before.producer_epoch = producer.producer_id, producer.producer_epoch - 1
    for whose, coordinator_epoch, code in (
        (before, 99, ErrorCode.INVALID_PRODUCER_EPOCH),
        (producer, 0, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ):
        request = marker(whose, "orders", 0, is_commit=False, coordinator_epoch=coordinator_epoch)
        reply = await talk.ask(request, WriteTxnMarkersResponse)
        assert reply.markers[0].topics[0].partitions[0].error_code == code
    await producer.commit()
    await until_committed(talk, "orders", b"a", b"b")


# Who may not


def stranger(talk: Conversation) -> TransactionalProducer:
    producer = TransactionalProducer(talk)
    producer.producer_id, producer.producer_epoch = 1, 0
    return producer


def error_codes(answer: object) -> set[int]:
    """Every error code anywhere in a reply, but for "none"."""
    if isinstance(answer, wire.Message | wire.Response):
        own = {getattr(answer, name) for name in answer.__struct_fields__ if name.endswith("error_code")} - {0}
        return own.union(*(error_codes(getattr(answer, name)) for name in answer.__struct_fields__))
    if isinstance(answer, list | tuple):
        return set().union(*map(error_codes, answer))
    return set()


def requests_of(talk: Conversation) -> dict[str, tuple[wire.Request, int]]:
    producer = stranger(talk)
    sent = batch(b"a", producer_id=1, sequence=0, is_transactional=True)
    return {
        "FindCoordinator": (FindCoordinatorRequest(key_type=1, coordinator_keys=(PAYMENTS,)), 6),
        "InitProducerId": (InitProducerIdRequest(PAYMENTS, 60_000), 5),
        "AddPartitionsToTxn": (add_partitions(producer, {"orders": (0,)}), 3),
        "AddPartitionsToTxn of brokers": (add_partitions(producer, {"orders": (0,)}), 5),
        "AddOffsetsToTxn": (AddOffsetsToTxnRequest(PAYMENTS, 1, 0, GROUP), 4),
        "TxnOffsetCommit": (offsets_in_transaction(producer, GROUP, {0: 1}), 5),
        "EndTxn": (EndTxnRequest(PAYMENTS, 1, 0, True), 5),
        "DescribeTransactions": (DescribeTransactionsRequest((PAYMENTS,)), 0),
        "DescribeProducers": (DescribeProducersRequest((TopicRequest("orders", (0,)),)), 0),
        "Produce": (produce("orders", sent, transactional_id=PAYMENTS), 12),
    }


NEEDED = [
    ("FindCoordinator", DESCRIBE, ID, PAYMENTS, NO_ID),
    ("InitProducerId", WRITE, ID, PAYMENTS, NO_ID),
    ("AddPartitionsToTxn", WRITE, ID, PAYMENTS, NO_ID),
    ("AddPartitionsToTxn", WRITE, TOPIC, "orders", NO_TOPIC),
    ("AddPartitionsToTxn of brokers", Operation.CLUSTER_ACTION, CLUSTER.type, CLUSTER.name, NO_CLUSTER),
    ("AddOffsetsToTxn", WRITE, ID, PAYMENTS, NO_ID),
    ("AddOffsetsToTxn", READ, OF_GROUP, GROUP, NO_GROUP),
    ("TxnOffsetCommit", WRITE, ID, PAYMENTS, NO_ID),
    ("TxnOffsetCommit", READ, OF_GROUP, GROUP, NO_GROUP),
    ("TxnOffsetCommit", READ, TOPIC, "orders", NO_TOPIC),
    ("EndTxn", WRITE, ID, PAYMENTS, NO_ID),
    ("DescribeTransactions", DESCRIBE, ID, PAYMENTS, NO_ID),
    ("DescribeProducers", READ, TOPIC, "orders", NO_TOPIC),
    ("Produce", WRITE, ID, PAYMENTS, NO_ID),
]


@pytest.mark.parametrize(("api", "operation", "kind", "name", "code"), NEEDED)
async def test_transactions_are_closed_to_who_may_not_use_them(
    talk: Conversation,
    forbidden: Forbidden,
    api: str,
    operation: Operation,
    kind: ResourceType,
    name: str,
    code: ErrorCode,
) -> None:
    request, version = requests_of(talk)[api]
    response = wire.APIS[request.api_key].response
    forbidden.deeds.add((operation, kind, name))
    assert error_codes(await talk.ask(request, response, version)) == {code}
    forbidden.deeds.clear()
    assert code not in error_codes(await talk.ask(request, response, version))


async def test_one_forbidden_topic_keeps_the_others_out_too(talk: Conversation, forbidden: Forbidden) -> None:
    producer = await producer_on(talk)
    forbidden.deeds.add((WRITE, TOPIC, "audit"))
    asked = add_partitions(producer, {"orders": (0, 1), "audit": (0,)})
    reply = await talk.ask(asked, AddPartitionsToTxnResponse, 3)
    not_attempted = ErrorCode.OPERATION_NOT_ATTEMPTED
    assert codes_of(reply.results_by_topic_v3_and_below) == [not_attempted, not_attempted, NO_TOPIC]
    assert (await described(talk)).transaction_state == "Empty"


async def test_hidden_transactions_and_topics_are_not_told(talk: Conversation, forbidden: Forbidden) -> None:
    one = await producer_on(talk, "one")
    await producer_on(talk, "two")
    await one.send("orders", b"a")
    await one.send("audit", b"a")
    forbidden.deeds |= {(DESCRIBE, ID, "two"), (DESCRIBE, TOPIC, "audit")}
    assert await listed(talk) == {"one": "Ongoing"}
    assert [topic.topic for topic in (await described(talk, "one")).topics] == ["orders"]


async def test_markers_are_for_operators_and_nodes(talk: Conversation, forbidden: Forbidden) -> None:
    producer = await producer_on(talk)
    await producer.send("orders", b"a")
    may_alter = (Operation.ALTER, CLUSTER.type, CLUSTER.name)
    may_act = (Operation.CLUSTER_ACTION, CLUSTER.type, CLUSTER.name)
    request = marker(producer, "orders", 0, is_commit=True)
    forbidden.deeds |= {may_alter, may_act}
    assert error_codes(await talk.ask(request, WriteTxnMarkersResponse)) == {NO_CLUSTER}
    assert (await fetched(talk, "orders")).last_stable_offset == 0
    for right in (may_alter, may_act):
        forbidden.deeds = {right}
        assert error_codes(await talk.ask(request, WriteTxnMarkersResponse)) == set()
    assert await committed_values(talk, "orders") == [b"a"]
