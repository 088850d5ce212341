"""Transactions of kafka-python: newer versions of their requests, and the only admin client here that looks at them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.admin._transactions import AbortTransactionSpec, TransactionState
from kafka.errors import KafkaError, ProducerFencedError, TransactionalIdNotFoundError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from support.group.node import LONG_SESSION_MS, node_for_groups
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 30.0
COMMITTED, EVERYTHING = "read_committed", "read_uncommitted"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("transactions-kafka-python")) as running:
        yield running


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path / "own-node", session_ms=LONG_SESSION_MS) as running:
        yield running


@pytest.fixture
def admin(node: NodeProcess) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=node.kafka)) as made:
        yield made


@pytest.fixture
def orders(admin: KafkaAdminClient, topic: str) -> str:
    admin.create_topics([NewTopic(topic, 1, 1)])
    return topic


@pytest.fixture
def producer_of(node: NodeProcess) -> Iterator[Callable[..., KafkaProducer]]:
    """Producers of the module's node, all closed at the end."""
    producers: list[KafkaProducer] = []

    def make(transactional_id: str, **settings: Any) -> KafkaProducer:
        producers.append(start_producer(node, transactional_id, **settings))
        return producers[-1]

    yield make
    for producer in producers:
        producer.close(timeout=1)


def start_producer(node: NodeProcess, transactional_id: str, **settings: Any) -> KafkaProducer:
    options = {"retry_backoff_ms": 20, "reconnect_backoff_max_ms": 200, **settings}
    producer = KafkaProducer(bootstrap_servers=node.kafka, transactional_id=transactional_id, **options)
    producer.init_transactions()
    return producer


def send(producer: KafkaProducer, topic: str, value: bytes) -> None:
    producer.send(topic, value, partition=0).get(WAIT_SECONDS_MAX)


def read(node: NodeProcess, topic: str, isolation: str = COMMITTED) -> list[bytes]:
    """From the beginning to where a reader of that kind gets."""
    place = TopicPartition(topic, 0)
    with closing(KafkaConsumer(bootstrap_servers=node.kafka, isolation_level=isolation)) as consumer:
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        values: list[bytes] = []
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while consumer.position(place) < end:
            polled = consumer.poll(timeout_ms=50)
            values += [message.value for messages in polled.values() for message in messages]
            assert time.monotonic() < deadline, f"no end after {values}"
        return values


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline, "waited in vain"


def test_committed_records_are_seen_and_aborted_ones_are_not(
    node: NodeProcess, orders: str, producer_of: Callable[..., KafkaProducer]
) -> None:
    producer = producer_of(orders)
    for number in range(6):
        producer.begin_transaction()
        send(producer, orders, b"%d" % number)
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    until(lambda: read(node, orders) == [b"0", b"2", b"4"])
    assert read(node, orders, EVERYTHING) == [b"%d" % number for number in range(6)]


def test_second_producer_with_the_same_id_shuts_out_the_first(
    node: NodeProcess, orders: str, producer_of: Callable[..., KafkaProducer]
) -> None:
    zombie = producer_of(orders)
    zombie.begin_transaction()
    send(zombie, orders, b"zombie")
    successor = producer_of(orders)
    successor.begin_transaction()
    send(successor, orders, b"successor")
    with pytest.raises(ProducerFencedError):
        zombie.commit_transaction()
    successor.commit_transaction()
    until(lambda: read(node, orders) == [b"successor"])


def test_positions_are_committed_with_the_transaction(
    node: NodeProcess, orders: str, producer_of: Callable[..., KafkaProducer]
) -> None:
    place = TopicPartition(orders, 0)
    producer = producer_of(orders)
    for offset, is_kept in ((5, True), (9, False), (7, True)):
        producer.begin_transaction()
        group = ConsumerGroupMetadata(orders, -1, "", None)
        producer.send_offsets_to_transaction({place: OffsetAndMetadata(offset, "", -1)}, group)
        if is_kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    consumer = KafkaConsumer(bootstrap_servers=node.kafka, group_id=orders, enable_auto_commit=False)
    with closing(consumer):
        until(lambda: consumer.committed(place) == 7)


def test_transaction_that_takes_too_long_is_aborted(
    node: NodeProcess, orders: str, producer_of: Callable[..., KafkaProducer]
) -> None:
    producer = producer_of(orders, transaction_timeout_ms=300)
    producer.begin_transaction()
    send(producer, orders, b"slow")
    place = TopicPartition(orders, 0)
    with closing(KafkaConsumer(bootstrap_servers=node.kafka, isolation_level=COMMITTED)) as consumer:
        # The record and the marker of the abort.
        until(lambda: consumer.end_offsets([place])[place] == 2)
    assert read(node, orders) == []
    with pytest.raises(KafkaError):
        producer.commit_transaction()


def test_transaction_goes_on_when_the_node_is_back(own_node: NodeProcess, topic: str) -> None:
    with closing(KafkaAdminClient(bootstrap_servers=own_node.kafka)) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    producer = start_producer(own_node, topic)
    producer.begin_transaction()
    send(producer, topic, b"before")
    own_node.kill()
    own_node.start()
    send(producer, topic, b"after")
    producer.commit_transaction()
    until(lambda: read(own_node, topic) == [b"before", b"after"])
    producer.close(timeout=1)


# As an operator sees it


def test_operator_sees_a_transaction_and_ends_it(
    node: NodeProcess, orders: str, admin: KafkaAdminClient, producer_of: Callable[..., KafkaProducer]
) -> None:
    with pytest.raises(TransactionalIdNotFoundError):
        admin.describe_transactions([orders])
    producer = producer_of(orders)
    producer.begin_transaction()
    send(producer, orders, b"open")
    place = TopicPartition(orders, 0)

    found = admin.describe_transactions([orders])[orders]
    assert found.state is TransactionState.ONGOING
    assert found.topic_partitions == {place}
    assert found.transaction_timeout_ms == 60_000
    everything = [listing for listings in admin.list_transactions().values() for listing in listings]
    assert (orders, found.producer_id, TransactionState.ONGOING) in everything
    (named,) = admin.list_transactions(transactional_id_pattern=f"{orders[:20]}.*").values()
    assert orders in [listing.transactional_id for listing in named]
    assert admin.list_transactions(duration_filter_ms=600_000, state_filters=["Ongoing"]) == {1: []}

    (active,) = admin.describe_producers([place])[place].active_producers
    assert (active.producer_id, active.current_transaction_start_offset) == (found.producer_id, 0)
    admin.abort_transaction(AbortTransactionSpec(place, active.producer_id, active.producer_epoch, 0))
    until(lambda: read(node, orders) == [])
    (active,) = admin.describe_producers([place])[place].active_producers
    assert active.current_transaction_start_offset == -1


def test_operator_sees_that_version_two_is_switched_on(admin: KafkaAdminClient) -> None:
    assert admin.describe_features()["transaction.version"]["finalized"] == (2, 2)
