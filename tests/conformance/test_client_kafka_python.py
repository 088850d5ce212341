"""kafka-python, as it comes: idempotent by default, and it asks with newer versions than librdkafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError

from support.codec import sample_messages
from support.codec.sample_messages import COMPRESSIONS, FIRST_TIMESTAMP_MS, Message
from support.door.raw_kafka import stored_batches
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 20


def samples(count: int = 300) -> list[Message]:
    """This client refuses to send a header without a value."""
    return [
        msgspec.structs.replace(message, headers=tuple(pair for pair in message.headers if pair[1] is not None))
        for message in sample_messages.samples(count)
    ]


@pytest.fixture
def admin(node: NodeProcess) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=node.kafka)
    yield admin
    admin.close()


@pytest.fixture
def consumer(node: NodeProcess) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(bootstrap_servers=node.kafka)
    yield consumer
    consumer.close()


def produce(node: NodeProcess, topic: str, messages: list[Message], **settings: Any) -> list[Any]:
    """Sends all and returns the metadata of each."""
    producer = KafkaProducer(bootstrap_servers=node.kafka, **settings)
    try:
        waiting = [
            producer.send(
                topic,
                key=message.key,
                value=message.value,
                timestamp_ms=message.timestamp_ms,
                headers=list(message.headers),
            )
            for message in messages
        ]
        producer.flush(WAIT_SECONDS_MAX)
        return [sent.get(WAIT_SECONDS_MAX) for sent in waiting]
    finally:
        producer.close(WAIT_SECONDS_MAX)


def read_from(consumer: KafkaConsumer, partition: TopicPartition, offset: int) -> list[Any]:
    consumer.assign([partition])
    end = consumer.end_offsets([partition])[partition]
    consumer.seek(partition, offset)
    messages: list[Any] = []
    while consumer.position(partition) < end:
        polled = consumer.poll(timeout_ms=WAIT_SECONDS_MAX * 1_000)
        assert polled, f"silence after {len(messages)} messages"
        messages += polled[partition]
    return messages


def as_sample(message: Any) -> Message:
    return Message(message.key, message.value, message.timestamp, tuple(message.headers))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_messages_come_back_as_they_were_sent(
    node: NodeProcess, topic: str, consumer: KafkaConsumer, compression: str
) -> None:
    sent = samples()
    produce(node, topic, sent, compression_type=None if compression == "none" else compression)
    received = read_from(consumer, TopicPartition(topic, 0), 0)
    assert [as_sample(message) for message in received] == sent
    assert [message.offset for message in received] == list(range(len(sent)))
    codecs = {header.codec for header in stored_batches(node, topic)}
    # A batch which compression would make larger is sent plain by this client.
    assert COMPRESSIONS.index(compression) in codecs
    assert codecs <= {0, COMPRESSIONS.index(compression)}


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement_stores_the_message(
    node: NodeProcess, topic: str, admin: KafkaAdminClient, acks: Any
) -> None:
    admin.create_topics({topic: {"num_partitions": 1}}, wait_for_metadata=True)
    produce(node, topic, samples(20), acks=acks, enable_idempotence=False)
    consumer = KafkaConsumer(bootstrap_servers=node.kafka, consumer_timeout_ms=WAIT_SECONDS_MAX * 1_000)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), 0)
    received = [as_sample(next(consumer)) for _ in range(20)]
    consumer.close()
    assert received == samples(20)


def test_the_answer_names_the_offset(node: NodeProcess, topic: str) -> None:
    answers = produce(node, topic, samples(20))
    assert [answer.offset for answer in answers] == list(range(20))


def test_producer_is_idempotent_by_default(node: NodeProcess, topic: str) -> None:
    produce(node, topic, samples(20))
    assert all(header.producer_id >= 0 for header in stored_batches(node, topic))


def test_offsets_are_found_by_time(node: NodeProcess, topic: str, consumer: KafkaConsumer) -> None:
    produce(node, topic, samples(100), batch_size=2_000)
    partition = TopicPartition(topic, 0)
    questions = {
        0: 0,
        FIRST_TIMESTAMP_MS: 0,
        FIRST_TIMESTAMP_MS + 41_500: 42,
        FIRST_TIMESTAMP_MS + 99_000: 99,
    }
    for timestamp_ms, offset in questions.items():
        answer = consumer.offsets_for_times({partition: timestamp_ms})[partition]
        assert answer.offset == offset, f"at {timestamp_ms}"
        assert answer.timestamp == FIRST_TIMESTAMP_MS + 1_000 * offset
    assert consumer.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 1_000_000})[partition] is None
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 100}


def test_large_message_passes_where_the_topic_allows_it(
    node: NodeProcess, topic: str, consumer: KafkaConsumer, admin: KafkaAdminClient
) -> None:
    admin.create_topics({topic: {"num_partitions": 1, "configs": {"max.message.bytes": "8000000"}}})
    large = Message(b"large", bytes(range(256)) * 20_000, FIRST_TIMESTAMP_MS)
    produce(node, topic, [large], max_request_size=8_000_000)
    (received,) = read_from(consumer, TopicPartition(topic, 0), 0)
    assert as_sample(received) == large


def test_message_larger_than_the_topic_allows_is_refused(
    node: NodeProcess, topic: str, admin: KafkaAdminClient
) -> None:
    admin.create_topics({topic: {"num_partitions": 1, "configs": {"max.message.bytes": "10000"}}})
    with pytest.raises(MessageSizeTooLargeError):
        produce(node, topic, [Message(None, b"x" * 50_000, FIRST_TIMESTAMP_MS)])


def test_topic_is_created_seen_and_deleted(topic: str, admin: KafkaAdminClient) -> None:
    admin.create_topics({topic: {"num_partitions": 5}}, wait_for_metadata=True)
    (description,) = admin.describe_topics([topic])
    assert len(description["partitions"]) == 5
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics({topic: {"num_partitions": 5}})
    admin.delete_topics([topic])
    assert topic not in admin.list_topics()


def test_configs_are_described_and_altered(topic: str, admin: KafkaAdminClient) -> None:
    admin.create_topics({topic: {"num_partitions": 1, "configs": {"retention.ms": "60000"}}})
    assert describe(admin, topic)["retention.ms"]["value"] == "60000"
    admin.alter_configs([ConfigResource("topic", topic, {"retention.ms": "120000"})])
    assert describe(admin, topic)["retention.ms"]["value"] == "120000"
    # The old AlterConfigs: what it does not name goes back to its default.
    admin.alter_configs([ConfigResource("topic", topic, {"segment.bytes": "1048576"})], incremental=False)
    assert describe(admin, topic)["segment.bytes"]["value"] == "1048576"


def describe(admin: KafkaAdminClient, topic: str) -> Any:
    return admin.describe_configs([ConfigResource("topic", topic)], config_filter="all")["topic"][topic]


def test_partitions_are_added(topic: str, admin: KafkaAdminClient) -> None:
    admin.create_topics({topic: {"num_partitions": 1}}, wait_for_metadata=True)
    admin.create_partitions({topic: 4})
    (description,) = admin.describe_topics([topic])
    assert len(description["partitions"]) == 4


def test_deleted_records_are_gone_and_the_rest_stays(
    node: NodeProcess, topic: str, consumer: KafkaConsumer, admin: KafkaAdminClient
) -> None:
    produce(node, topic, samples(100), batch_size=2_000)
    partition = TopicPartition(topic, 0)
    admin.delete_records({partition: 35})
    assert consumer.beginning_offsets([partition]) == {partition: 35}
    assert [message.offset for message in read_from(consumer, partition, 35)] == list(range(35, 100))


def test_cluster_and_log_directories_are_described(node: NodeProcess, topic: str, admin: KafkaAdminClient) -> None:
    produce(node, topic, samples(100))
    cluster = admin.describe_cluster()
    assert cluster["cluster_id"]
    assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [node.kafka]
    assert topic in str(admin.describe_log_dirs())
