"""Transactions from outside: which there are, what one holds, and how to end one that nobody looks after.

The coordinator knows a transaction by its transactional id, a partition knows it by its producer id. One that only the
partition knows hangs (`find_hanging`): no timeout will end it, and readers of committed records wait behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.coordinators import CoordinatorKind, find_coordinator
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from penstock.codec.kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from penstock.codec.kafka.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.codec.kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.net.errors import BrokerError, ClientError

# A topic's name and a partition's number.
Place = tuple[str, int]


class TransactionMissingError(ClientError):
    def __init__(self, transactional_id: str) -> None:
        super().__init__(f"nobody has used the transactional id {transactional_id!r}, or not for a long time")


class ListedTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionInfo(msgspec.Struct, frozen=True):
    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    # None: none is under way.
    start_ms: int | None
    partitions: tuple[Place, ...]


class ActiveProducer(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    # The epoch of the coordinator that wrote its last marker; None: there is none yet.
    coordinator_epoch: int | None
    last_sequence: int | None
    last_timestamp_ms: int | None
    # Where its open transaction begins; None: none is open.
    start_offset: int | None


async def list_transactions(
    client: ClusterClient,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
    id_pattern: str | None = None,
) -> list[ListedTransaction]:
    request = ListTransactionsRequest(
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
        duration_filter=longer_than_ms,
        transactional_id_pattern=id_pattern,
    )
    found: dict[str, ListedTransaction] = {}
    for broker in client.brokers:
        connection = await client.connection_to(broker.node_id)
        reply = await connection.call(request, ListTransactionsResponse)
        _check(reply.error_code, "transactions were not listed")
        if reply.unknown_state_filters:
            raise ClientError(f"a transaction has no state {reply.unknown_state_filters[0]!r}")
        for listed in reply.transaction_states:
            found[listed.transactional_id] = ListedTransaction(
                listed.transactional_id, broker.node_id, listed.producer_id, listed.transaction_state
            )
    return [found[transactional_id] for transactional_id in sorted(found)]


async def describe_transaction(client: ClusterClient, transactional_id: str) -> TransactionInfo:
    """Raises `TransactionMissingError`."""
    connection, node_id = await find_coordinator(client, CoordinatorKind.TRANSACTION, transactional_id)
    request = DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    reply = await connection.call(request, DescribeTransactionsResponse)
    (found,) = reply.transaction_states
    if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise TransactionMissingError(transactional_id)
    _check(found.error_code, f"transactional id {transactional_id!r}")
    return TransactionInfo(
        transactional_id,
        node_id,
        found.producer_id,
        found.producer_epoch,
        found.transaction_state,
        found.transaction_timeout_ms,
        _known(found.transaction_start_time_ms),
        tuple(sorted((topic.topic, number) for topic in found.topics for number in topic.partitions)),
    )


async def describe_producers(
    client: ClusterClient, wanted: Mapping[str, Sequence[int]]
) -> dict[Place, list[ActiveProducer]]:
    """The producers that each of these partitions remembers."""
    by_leader: dict[int, dict[str, list[int]]] = {}
    for topic, numbers in wanted.items():
        for number in numbers:
            leader = await client.leader_id(topic, number)
            by_leader.setdefault(leader, {}).setdefault(topic, []).append(number)
    found: dict[Place, list[ActiveProducer]] = {}
    for leader, topics in by_leader.items():
        connection = await client.connection_to(leader)
        request = DescribeProducersRequest(topics=[TopicRequest(*asked) for asked in topics.items()])
        reply = await connection.call(request, DescribeProducersResponse)
        for answered in reply.topics:
            for partition in answered.partitions:
                what = f"producers of partition {partition.partition_index} of {answered.name!r}"
                _check(partition.error_code, what, partition.error_message)
                found[answered.name, partition.partition_index] = [
                    ActiveProducer(
                        answered.name,
                        partition.partition_index,
                        producer.producer_id,
                        producer.producer_epoch,
                        _known(producer.coordinator_epoch),
                        _known(producer.last_sequence),
                        _known(producer.last_timestamp),
                        _known(producer.current_txn_start_offset),
                    )
                    for producer in partition.active_producers
                ]
    return found


async def find_hanging(client: ClusterClient, wanted: Mapping[str, Sequence[int]]) -> list[ActiveProducer]:
    """Producers with a transaction open in a partition of which no coordinator knows."""
    described = await describe_producers(client, wanted)
    opened = [producer for place in sorted(described) for producer in described[place] if _is_open(producer)]
    if not opened:
        return []
    listed = await list_transactions(client, producer_ids=sorted({producer.producer_id for producer in opened}))
    known: set[tuple[int, Place]] = set()
    for transaction in listed:
        try:
            info = await describe_transaction(client, transaction.transactional_id)
        except TransactionMissingError:
            continue
        known |= {(transaction.producer_id, place) for place in info.partitions}
    suspects = [one for one in opened if (one.producer_id, (one.topic, one.partition)) not in known]
    # Asked again: what ended between the two questions did not hang.
    described = await describe_producers(client, _places(suspects))
    still = {(place, one.producer_id, one.start_offset) for place, found in described.items() for one in found}
    return [one for one in suspects if ((one.topic, one.partition), one.producer_id, one.start_offset) in still]


async def abort_transaction(
    client: ClusterClient, place: Place, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> None:
    """Writes an abort marker into this one partition, whatever a coordinator knows."""
    topic, partition = place
    connection = await client.connection_to(await client.leader_id(topic, partition))
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=(WritableTxnMarkerTopic(topic, (partition,)),),
        coordinator_epoch=coordinator_epoch,
    )
    reply = await connection.call(WriteTxnMarkersRequest(markers=(marker,)), WriteTxnMarkersResponse)
    for result in reply.markers:
        for answered in result.topics:
            for outcome in answered.partitions:
                _check(outcome.error_code, f"partition {partition} of {topic!r} did not take the marker")


def _is_open(producer: ActiveProducer) -> bool:
    return producer.start_offset is not None


def _places(producers: Sequence[ActiveProducer]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for producer in producers:
        numbers = places.setdefault(producer.topic, [])
        if producer.partition not in numbers:
            numbers.append(producer.partition)
    return places


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _check(code: int, what: str, detail: str | None = None) -> None:
    if code != 0:
        raise BrokerError(code, what, detail)
