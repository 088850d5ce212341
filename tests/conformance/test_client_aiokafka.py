"""aiokafka, as it comes: the client that still asks in the oldest versions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError

from support.codec.sample_messages import COMPRESSIONS, FIRST_TIMESTAMP_MS, Message, samples
from support.door.raw_kafka import stored_batches
from support.node_process import NodeProcess

WAIT_MS_MAX = 20_000
TOPIC_ALREADY_EXISTS = 36


@pytest.fixture
async def admin(node: NodeProcess) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=node.kafka)
    await admin.start()
    yield admin
    await admin.close()


@pytest.fixture
async def consumer(node: NodeProcess) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=node.kafka)
    await consumer.start()
    yield consumer
    await consumer.stop()


async def produce(node: NodeProcess, topic: str, messages: list[Message], **settings: Any) -> list[Any]:
    """Sends all and returns the metadata of each."""
    async with AIOKafkaProducer(bootstrap_servers=node.kafka, **settings) as producer:
        waiting = [
            await producer.send(
                topic,
                key=message.key,
                value=message.value,
                timestamp_ms=message.timestamp_ms,
                headers=list(message.headers),
            )
            for message in messages
        ]
        return [await sent for sent in waiting]


async def read_from(consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> list[Any]:
    consumer.assign([partition])
    end = (await consumer.end_offsets([partition]))[partition]
    consumer.seek(partition, offset)
    messages: list[Any] = []
    while await consumer.position(partition) < end:
        polled = await consumer.getmany(partition, timeout_ms=WAIT_MS_MAX)
        assert polled, f"silence after {len(messages)} messages"
        messages += polled[partition]
    return messages


def as_sample(message: Any) -> Message:
    return Message(message.key, message.value, message.timestamp, tuple(message.headers))


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_messages_come_back_as_they_were_sent(
    node: NodeProcess, topic: str, consumer: AIOKafkaConsumer, compression: str
) -> None:
    sent = samples()
    await produce(node, topic, sent, compression_type=None if compression == "none" else compression)
    received = await read_from(consumer, TopicPartition(topic, 0), 0)
    assert [as_sample(message) for message in received] == sent
    assert [message.offset for message in received] == list(range(len(sent)))
    codecs = {header.codec for header in stored_batches(node, topic)}
    # A batch which compression would make larger is sent plain by this client.
    assert COMPRESSIONS.index(compression) in codecs
    assert codecs <= {0, COMPRESSIONS.index(compression)}


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_kind_of_acknowledgement_stores_the_message(
    node: NodeProcess, topic: str, consumer: AIOKafkaConsumer, acks: Any
) -> None:
    await produce(node, topic, samples(20), acks=acks)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    received: list[Message] = []
    while len(received) < 20:
        polled = await consumer.getmany(partition, timeout_ms=WAIT_MS_MAX)
        assert polled, f"silence after {len(received)} messages"
        received += [as_sample(message) for message in polled[partition]]
    assert received == samples(20)


async def test_idempotent_producer_stores_each_message_once_and_in_order(
    node: NodeProcess, topic: str, consumer: AIOKafkaConsumer
) -> None:
    answers = await produce(node, topic, samples(500), enable_idempotence=True, max_batch_size=1_000)
    assert [answer.offset for answer in answers] == list(range(500))
    received = await read_from(consumer, TopicPartition(topic, 0), 0)
    assert [as_sample(message) for message in received] == samples(500)
    assert all(header.producer_id >= 0 for header in stored_batches(node, topic))


async def test_offsets_are_found_by_time(node: NodeProcess, topic: str, consumer: AIOKafkaConsumer) -> None:
    await produce(node, topic, samples(100), max_batch_size=2_000)
    partition = TopicPartition(topic, 0)
    questions = {
        0: 0,
        FIRST_TIMESTAMP_MS: 0,
        FIRST_TIMESTAMP_MS + 41_500: 42,
        FIRST_TIMESTAMP_MS + 99_000: 99,
    }
    for timestamp_ms, offset in questions.items():
        answer = (await consumer.offsets_for_times({partition: timestamp_ms}))[partition]
        assert answer.offset == offset, f"at {timestamp_ms}"
    late = await consumer.offsets_for_times({partition: FIRST_TIMESTAMP_MS + 1_000_000})
    assert late[partition] is None
    assert await consumer.beginning_offsets([partition]) == {partition: 0}
    assert await consumer.end_offsets([partition]) == {partition: 100}


async def test_large_message_passes_where_the_topic_allows_it(
    node: NodeProcess, topic: str, consumer: AIOKafkaConsumer, admin: AIOKafkaAdminClient
) -> None:
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "8000000"})])
    large = Message(b"large", bytes(range(256)) * 20_000, FIRST_TIMESTAMP_MS)
    await produce(node, topic, [large], max_request_size=8_000_000)
    (received,) = await read_from(consumer, TopicPartition(topic, 0), 0)
    assert as_sample(received) == large


async def test_message_larger_than_the_topic_allows_is_refused(
    node: NodeProcess, topic: str, admin: AIOKafkaAdminClient
) -> None:
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"max.message.bytes": "10000"})])
    with pytest.raises(MessageSizeTooLargeError):
        await produce(node, topic, [Message(None, b"x" * 50_000, FIRST_TIMESTAMP_MS)])


async def test_topic_is_created_seen_and_deleted(topic: str, admin: AIOKafkaAdminClient) -> None:
    await admin.create_topics([NewTopic(topic, 5, 1)])
    (description,) = await admin.describe_topics([topic])
    assert len(description["partitions"]) == 5
    again = await admin.create_topics([NewTopic(topic, 5, 1)])
    assert again.topic_errors[0][1] == TOPIC_ALREADY_EXISTS
    await admin.delete_topics([topic])
    assert topic not in await admin.list_topics()


async def test_configs_are_described_and_altered(topic: str, admin: AIOKafkaAdminClient) -> None:
    await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"retention.ms": "60000"})])
    assert (await describe(admin, topic))["retention.ms"] == "60000"
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "120000"})])
    assert (await describe(admin, topic))["retention.ms"] == "120000"


async def describe(admin: AIOKafkaAdminClient, topic: str) -> dict[str, str]:
    (reply,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((error, message, _, _, entries),) = reply.resources
    assert error == 0, message
    return {entry[0]: entry[1] for entry in entries}


async def test_partitions_are_added(topic: str, admin: AIOKafkaAdminClient) -> None:
    await admin.create_topics([NewTopic(topic, 1, 1)])
    await admin.create_partitions({topic: NewPartitions(4)})
    (description,) = await admin.describe_topics([topic])
    assert len(description["partitions"]) == 4


async def test_deleted_records_are_gone_and_the_rest_stays(
    node: NodeProcess, topic: str, consumer: AIOKafkaConsumer, admin: AIOKafkaAdminClient
) -> None:
    await produce(node, topic, samples(100), max_batch_size=2_000)
    partition = TopicPartition(topic, 0)
    assert await admin.delete_records({partition: RecordsToDelete(35)}) == {partition: 35}
    assert await consumer.beginning_offsets([partition]) == {partition: 35}
    received = await read_from(consumer, partition, 35)
    assert [message.offset for message in received] == list(range(35, 100))


async def test_cluster_is_described(node: NodeProcess, admin: AIOKafkaAdminClient) -> None:
    cluster = await admin.describe_cluster()
    assert [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]] == [node.kafka]
