"""Transactions of confluent-kafka (librdkafka, version 1 of the protocol): whole or not at all, whoever dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.group.node import HEARTBEAT_MS, LONG_SESSION_MS, node_for_groups
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 30.0
PARTITIONS = 2
# The shortest that librdkafka takes.
TIMEOUT_MS_MIN = 1_000
COMMITTED, EVERYTHING = "read_committed", "read_uncommitted"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("transactions-confluent")) as running:
        yield running


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path / "own-node", session_ms=LONG_SESSION_MS) as running:
        yield running


@pytest.fixture
def orders(node: NodeProcess, topic: str) -> str:
    create(node, topic)
    return topic


def create(node: NodeProcess, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics]).values():
        created.result(WAIT_SECONDS_MAX)


def producer_of(node: NodeProcess, transactional_id: str, **others: object) -> Producer:
    producer = Producer({
        "bootstrap.servers": node.kafka,
        "transactional.id": transactional_id,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 20,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in others.items()},
    })  # fmt: skip
    producer.init_transactions(WAIT_SECONDS_MAX)
    return producer


def send(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    """Returns when they are stored: what is only in the client's queue is dropped by an abort and proves nothing."""
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT_SECONDS_MAX) == 0


def read(node: NodeProcess, topic: str, isolation: str = COMMITTED, partition: int = 0) -> list[bytes | None]:
    """From the beginning to where a reader of that kind gets."""
    consumer = Consumer({
        "bootstrap.servers": node.kafka,
        "group.id": "unused",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "log_level": 0,
    })  # fmt: skip
    with closing(consumer):
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes | None] = []
        while True:
            message = consumer.poll(WAIT_SECONDS_MAX)
            assert message is not None, f"no end after {values}"
            if message.error() is None:
                values.append(message.value())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return values
            else:
                raise AssertionError(message.error())


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline, "waited in vain"


def stable_end(node: NodeProcess, topic: str) -> int:
    """Where readers of committed records are stopped: behind an open transaction, or at the end."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "unused", "isolation.level": COMMITTED})
    with closing(consumer):
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_SECONDS_MAX)[1]


def test_committed_records_are_seen_and_aborted_ones_are_not(node: NodeProcess, orders: str) -> None:
    producer = producer_of(node, orders)
    for number in range(6):
        producer.begin_transaction()
        send(producer, orders, b"%d" % number)
        send(producer, orders, b"%d" % number, partition=1)
        if number % 2:
            producer.abort_transaction(WAIT_SECONDS_MAX)
        else:
            producer.commit_transaction(WAIT_SECONDS_MAX)
    for partition in range(PARTITIONS):
        until(lambda number=partition: read(node, orders, partition=number) == [b"0", b"2", b"4"])
        assert read(node, orders, EVERYTHING, partition) == [b"%d" % number for number in range(6)]


def test_open_transaction_is_seen_by_readers_of_everything_alone(node: NodeProcess, orders: str) -> None:
    plain = Producer({"bootstrap.servers": node.kafka})
    send(plain, orders, b"before")
    producer = producer_of(node, orders)
    producer.begin_transaction()
    send(producer, orders, b"open")
    send(plain, orders, b"after")
    assert read(node, orders) == [b"before"]
    assert read(node, orders, EVERYTHING) == [b"before", b"open", b"after"]
    producer.commit_transaction(WAIT_SECONDS_MAX)
    until(lambda: read(node, orders) == [b"before", b"open", b"after"])


def test_large_transaction_is_whole(node: NodeProcess, orders: str) -> None:
    producer = producer_of(node, orders, compression_type="lz4", linger_ms=5)
    values = [b"%06d" % number for number in range(5_000)]
    producer.begin_transaction()
    send(producer, orders, *values)
    assert read(node, orders) == []
    producer.commit_transaction(WAIT_SECONDS_MAX)
    until(lambda: read(node, orders) == values)


def test_second_producer_with_the_same_id_shuts_out_the_first(node: NodeProcess, orders: str) -> None:
    zombie = producer_of(node, orders)
    zombie.begin_transaction()
    send(zombie, orders, b"zombie")
    successor = producer_of(node, orders)
    successor.begin_transaction()
    send(successor, orders, b"successor")
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(WAIT_SECONDS_MAX)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert refused.value.args[0].fatal()
    successor.commit_transaction(WAIT_SECONDS_MAX)
    until(lambda: read(node, orders) == [b"successor"])


def test_transaction_that_takes_too_long_is_aborted(node: NodeProcess, orders: str) -> None:
    producer = producer_of(node, orders, transaction_timeout_ms=TIMEOUT_MS_MIN)
    producer.begin_transaction()
    send(producer, orders, b"slow")
    assert stable_end(node, orders) == 0
    # The record and the marker of the abort.
    until(lambda: stable_end(node, orders) == 2)
    assert read(node, orders) == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_SECONDS_MAX)
    successor = producer_of(node, orders)
    successor.begin_transaction()
    send(successor, orders, b"quick")
    successor.commit_transaction(WAIT_SECONDS_MAX)
    until(lambda: read(node, orders) == [b"quick"])


# Positions of a group


def member_of(node: NodeProcess, topic: str, **others: object) -> Consumer:
    """A member that has its partitions."""
    consumer = Consumer({
        "bootstrap.servers": node.kafka,
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": COMMITTED,
        "reconnect.backoff.max.ms": 200,
        **{name.replace("_", "."): value for name, value in others.items()},
    })  # fmt: skip
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == PARTITIONS)
    return consumer


def positions(consumer: Consumer, topic: str) -> list[int]:
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    return [place.offset for place in consumer.committed(places, WAIT_SECONDS_MAX)]


CLASSIC = {"session_timeout_ms": LONG_SESSION_MS, "heartbeat_interval_ms": HEARTBEAT_MS}
PROTOCOLS = pytest.mark.parametrize("protocol", [CLASSIC, {"group_protocol": "consumer"}], ids=["classic", "consumer"])
NOTHING = -1001


@PROTOCOLS
def test_positions_are_committed_with_the_transaction(
    node: NodeProcess, orders: str, protocol: dict[str, object]
) -> None:
    with closing(member_of(node, orders, **protocol)) as consumer:
        producer = producer_of(node, orders)
        for offset, is_kept, expected in ((5, True, 5), (9, False, 5), (7, True, 7)):
            producer.begin_transaction()
            places = [TopicPartition(orders, 0, offset)]
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), WAIT_SECONDS_MAX)
            if is_kept:
                producer.commit_transaction(WAIT_SECONDS_MAX)
            else:
                producer.abort_transaction(WAIT_SECONDS_MAX)
            # Such a reader waits until the end is written, so there is nothing to wait for here.
            assert positions(consumer, orders) == [expected, NOTHING]


@PROTOCOLS
def test_member_that_was_sent_away_commits_no_positions(
    node: NodeProcess, orders: str, protocol: dict[str, object]
) -> None:
    consumer = member_of(node, orders, **protocol)
    old = consumer.consumer_group_metadata()
    consumer.close()
    with closing(member_of(node, orders, **protocol)) as other:
        producer = producer_of(node, orders)
        producer.begin_transaction()
        with pytest.raises(KafkaException) as refused:
            producer.send_offsets_to_transaction([TopicPartition(orders, 0, 5)], old, WAIT_SECONDS_MAX)
        assert refused.value.args[0].txn_requires_abort()
        producer.abort_transaction(WAIT_SECONDS_MAX)
        assert positions(other, orders) == [NOTHING, NOTHING]


# A node that dies


def test_transaction_goes_on_when_the_node_is_back(own_node: NodeProcess, topic: str) -> None:
    create(own_node, topic)
    # With a single node librdkafka would forget its brokers at every restart, and take seconds to learn them again.
    producer = producer_of(own_node, topic, metadata_recovery_strategy="none")
    for number in range(3):
        producer.begin_transaction()
        send(producer, topic, b"%d-before" % number)
        own_node.kill()
        own_node.start()
        send(producer, topic, b"%d-after" % number)
        if number == 1:
            producer.abort_transaction(WAIT_SECONDS_MAX)
        else:
            producer.commit_transaction(WAIT_SECONDS_MAX)
    expected = [b"0-before", b"0-after", b"2-before", b"2-after"]
    until(lambda: read(own_node, topic) == expected)
    # What is known of aborted transactions outlives the node too.
    own_node.kill()
    own_node.start()
    assert read(own_node, topic) == expected
    assert len(read(own_node, topic, EVERYTHING)) == 6


def test_transaction_left_behind_is_aborted_when_its_time_is_over_after_a_restart(
    own_node: NodeProcess, topic: str
) -> None:
    create(own_node, topic)
    producer = producer_of(own_node, topic, transaction_timeout_ms=TIMEOUT_MS_MIN)
    producer.begin_transaction()
    send(producer, topic, b"left behind")
    own_node.kill()
    own_node.start()
    until(lambda: stable_end(own_node, topic) == 2)
    assert read(own_node, topic) == []
