"""confluent-kafka (librdkafka, the newest), as it comes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from support.codec import sample_messages
from support.codec.sample_messages import COMPRESSIONS, FIRST_TIMESTAMP_MS, samples
from support.door.raw_kafka import stored_batches
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 20.0


@pytest.fixture
def admin(node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.kafka})


@pytest.fixture
def consumer(node: NodeProcess) -> Iterator[Consumer]:
    # A group id is demanded by the client, and never told to the broker when partitions are assigned by hand.
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    yield consumer
    consumer.close()


def produce(
    node: NodeProcess, topic: str, messages: list[sample_messages.Message], **settings: object
) -> list[Message]:
    """Sends all, waits for all, returns the delivery reports."""
    producer = Producer({"bootstrap.servers": node.kafka, **settings})
    # Messages for a topic that the client does not know yet wait elsewhere, and may come to be two batches.
    producer.list_topics(topic, WAIT_SECONDS_MAX)
    reports: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reports.append(message)

    for message in messages:
        producer.produce(
            topic,
            key=message.key,
            value=message.value,
            timestamp=message.timestamp_ms,
            headers=list(message.headers),
            on_delivery=on_delivery,
        )
    assert producer.flush(WAIT_SECONDS_MAX) == 0, "messages are left after the flush"
    assert len(reports) == len(messages)
    return reports


def read_from(consumer: Consumer, *starts: TopicPartition) -> list[Message]:
    """Every message from `starts` to the present end."""
    consumer.assign(list(starts))
    messages: list[Message] = []
    ends_left = len(starts)
    while ends_left:
        message = consumer.poll(WAIT_SECONDS_MAX)
        assert message is not None, f"silence after {len(messages)} messages"
        if message.error() is None:
            messages.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ends_left -= 1
    return messages


def as_sample(message: Message) -> sample_messages.Message:
    kind, timestamp_ms = message.timestamp()
    assert kind == TIMESTAMP_CREATE_TIME
    return sample_messages.Message(message.key(), message.value(), timestamp_ms, tuple(message.headers() or ()))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_messages_come_back_as_they_were_sent(
    node: NodeProcess, topic: str, consumer: Consumer, compression: str
) -> None:
    sent = samples()
    # All in one batch, sent by the flush: a client sends a small one as it is when compression makes it no smaller.
    produce(node, topic, sent, **{"compression.type": compression, "linger.ms": 60_000})
    received = read_from(consumer, TopicPartition(topic, 0, OFFSET_BEGINNING))
    assert [as_sample(message) for message in received] == sent
    assert [message.offset() for message in received] == list(range(len(sent)))
    assert {header.codec for header in stored_batches(node, topic)} == {COMPRESSIONS.index(compression)}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_stores_the_message(
    node: NodeProcess, topic: str, consumer: Consumer, admin: AdminClient, acks: str
) -> None:
    admin.create_topics([NewTopic(topic, 1)])[topic].result(WAIT_SECONDS_MAX)
    produce(node, topic, samples(20), acks=acks)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    received: list[Message] = []
    # acks=0 promises nothing about when: read on past the present end until all are there.
    while len(received) < 20:
        message = consumer.poll(WAIT_SECONDS_MAX)
        assert message is not None, f"silence after {len(received)} messages"
        if message.error() is None:
            received.append(message)
    assert [as_sample(message) for message in received] == samples(20)


def test_delivery_reports_name_the_offsets(node: NodeProcess, topic: str) -> None:
    reports = produce(node, topic, samples(50))
    assert sorted(report.offset() for report in reports) == list(range(50))


def test_idempotent_producer_stores_each_message_once_and_in_order(
    node: NodeProcess, topic: str, consumer: Consumer, admin: AdminClient
) -> None:
    admin.create_topics([NewTopic(topic, 3)])[topic].result(WAIT_SECONDS_MAX)
    sent = samples(3_000)
    produce(node, topic, sent, **{"enable.idempotence": True, "batch.num.messages": 10})
    received = read_from(consumer, *(TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(3)))
    assert sorted(message.timestamp()[1] for message in received) == [message.timestamp_ms for message in sent]
    for number in range(3):
        times = [message.timestamp()[1] for message in received if message.partition() == number]
        assert times == sorted(times)
    assert all(header.producer_id >= 0 for header in stored_batches(node, topic))


def test_offsets_are_found_by_time(node: NodeProcess, topic: str, consumer: Consumer) -> None:
    produce(node, topic, samples(100), **{"batch.num.messages": 7})
    questions = {
        0: 0,
        FIRST_TIMESTAMP_MS: 0,
        FIRST_TIMESTAMP_MS + 41_500: 42,
        FIRST_TIMESTAMP_MS + 99_000: 99,
    }
    for timestamp_ms, offset in questions.items():
        (answer,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], WAIT_SECONDS_MAX)
        assert answer.offset == offset, f"at {timestamp_ms}"
    (after_the_end,) = consumer.offsets_for_times(
        [TopicPartition(topic, 0, FIRST_TIMESTAMP_MS + 1_000_000)], WAIT_SECONDS_MAX
    )
    assert after_the_end.offset == -1
    received = read_from(consumer, TopicPartition(topic, 0, 42))
    assert received[0].timestamp()[1] == FIRST_TIMESTAMP_MS + 42_000


def test_watermarks_and_maximum_timestamp_are_told(
    node: NodeProcess, topic: str, consumer: Consumer, admin: AdminClient
) -> None:
    produce(node, topic, samples(10))
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_SECONDS_MAX) == (0, 10)
    (asked,) = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.max_timestamp()}).values()
    assert asked.result(WAIT_SECONDS_MAX).offset == 9


def test_large_message_passes_where_the_topic_allows_it(
    node: NodeProcess, topic: str, consumer: Consumer, admin: AdminClient
) -> None:
    new_topic = NewTopic(topic, 1, config={"max.message.bytes": "8000000"})
    admin.create_topics([new_topic])[topic].result(WAIT_SECONDS_MAX)
    large = sample_messages.Message(b"large", bytes(range(256)) * 20_000, FIRST_TIMESTAMP_MS)
    produce(node, topic, [large], **{"message.max.bytes": 8_000_000})
    (received,) = read_from(consumer, TopicPartition(topic, 0, OFFSET_BEGINNING))
    assert as_sample(received) == large


def test_message_larger_than_the_topic_allows_is_refused(node: NodeProcess, topic: str, admin: AdminClient) -> None:
    new_topic = NewTopic(topic, 1, config={"max.message.bytes": "10000"})
    admin.create_topics([new_topic])[topic].result(WAIT_SECONDS_MAX)
    producer = Producer({"bootstrap.servers": node.kafka})
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"x" * 50_000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(WAIT_SECONDS_MAX)
    assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_waiting_consumer_gets_a_new_message_at_once(node: NodeProcess, topic: str, consumer: Consumer) -> None:
    produce(node, topic, samples(1))
    assert len(read_from(consumer, TopicPartition(topic, 0, OFFSET_BEGINNING))) == 1
    produce(node, topic, samples(2)[1:])
    while (message := consumer.poll(WAIT_SECONDS_MAX)) is not None and message.error() is not None:
        pass
    assert message is not None
    assert message.offset() == 1


def test_consumer_past_the_end_is_reset_to_the_start(node: NodeProcess, topic: str) -> None:
    produce(node, topic, samples(5))
    settings = {"group.id": "unused", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": node.kafka, **settings})
    consumer.assign([TopicPartition(topic, 0, 1_000)])
    message = consumer.poll(WAIT_SECONDS_MAX)
    consumer.close()
    assert message is not None
    assert message.error() is None, message.error()
    assert message.offset() == 0


def test_topic_is_created_seen_and_deleted(topic: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 5)])[topic].result(WAIT_SECONDS_MAX)
    assert len(admin.list_topics(topic, WAIT_SECONDS_MAX).topics[topic].partitions) == 5
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(topic, 5)])[topic].result(WAIT_SECONDS_MAX)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)
    assert topic not in admin.list_topics(timeout=WAIT_SECONDS_MAX).topics


def test_validate_only_creates_nothing(topic: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 1)], validate_only=True)[topic].result(WAIT_SECONDS_MAX)
    assert topic not in admin.list_topics(timeout=WAIT_SECONDS_MAX).topics


def test_configs_are_described_and_altered(topic: str, admin: AdminClient) -> None:
    admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "60000"})])[topic].result(WAIT_SECONDS_MAX)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    assert describe(admin, topic)["retention.ms"] == "60000"
    resource.add_incremental_config(ConfigEntry("retention.ms", "120000", incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS_MAX)
    assert describe(admin, topic)["retention.ms"] == "120000"
    default = ConfigResource(ResourceType.TOPIC, topic)
    default.add_incremental_config(ConfigEntry("retention.ms", "", incremental_operation=AlterConfigOpType.DELETE))
    admin.incremental_alter_configs([default])[default].result(WAIT_SECONDS_MAX)
    assert describe(admin, topic)["retention.ms"] == "604800000"


def describe(admin: AdminClient, topic: str) -> dict[str, str]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(WAIT_SECONDS_MAX)
    return {name: entry.value for name, entry in entries.items()}


def test_unknown_config_is_refused(topic: str, admin: AdminClient) -> None:
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(topic, 1, config={"no.such": "x"})])[topic].result(WAIT_SECONDS_MAX)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_partitions_are_added_while_messages_flow(
    node: NodeProcess, topic: str, consumer: Consumer, admin: AdminClient
) -> None:
    produce(node, topic, samples(10))
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(WAIT_SECONDS_MAX)
    assert len(admin.list_topics(topic, WAIT_SECONDS_MAX).topics[topic].partitions) == 4
    producer = Producer({"bootstrap.servers": node.kafka})
    producer.produce(topic, b"to the new one", partition=3)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    (message,) = read_from(consumer, TopicPartition(topic, 3, OFFSET_BEGINNING))
    assert message.value() == b"to the new one"
    assert len(read_from(consumer, TopicPartition(topic, 0, OFFSET_BEGINNING))) == 10


def test_deleted_records_are_gone_and_the_rest_stays(
    node: NodeProcess, topic: str, consumer: Consumer, admin: AdminClient
) -> None:
    produce(node, topic, samples(100), **{"batch.num.messages": 10})
    (asked,) = admin.delete_records([TopicPartition(topic, 0, 35)]).values()
    assert asked.result(WAIT_SECONDS_MAX).low_watermark == 35
    received = read_from(consumer, TopicPartition(topic, 0, OFFSET_BEGINNING))
    assert [message.offset() for message in received] == list(range(35, 100))


def test_cluster_is_described(node: NodeProcess, admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(WAIT_SECONDS_MAX)
    assert cluster.cluster_id
    assert [f"{broker.host}:{broker.port}" for broker in cluster.nodes] == [node.kafka]
