"""compression.type of a topic, with confluent-kafka: what a consumer gets is in the topic's codec, and all of it is
there, whatever the producer's codec and kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.codec.sample_messages import COMPRESSIONS
from support.door.raw_kafka import stored_batches
from support.node_process import NodeProcess

WAIT_SECONDS_MAX = 20.0
KINDS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
# Some batches are large enough for a thread, some are not.
MESSAGES = [b"%d " % number * (3_000 if number % 50 == 0 else 5) for number in range(400)]


def create(node: NodeProcess, topic: str, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin.create_topics([NewTopic(topic, 1, config=config)])[topic].result(WAIT_SECONDS_MAX)


def producer_of(node: NodeProcess, codec: str, **settings: object) -> Producer:
    wanted = {"bootstrap.servers": node.kafka, "compression.type": codec, "batch.num.messages": 60, "linger.ms": 20}
    return Producer({**wanted, **{name.replace("_", "."): value for name, value in settings.items()}})


def produce(producer: Producer, topic: str) -> None:
    reports: list[KafkaError | None] = []
    for number, value in enumerate(MESSAGES):
        headers = [("number", b"%d" % number)]
        producer.produce(topic, value, key=b"k", headers=headers, on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    assert reports == [None] * len(MESSAGES)


def read_all(node: NodeProcess, topic: str) -> Iterator[tuple[bytes | None, list[tuple[str, bytes]]]]:
    settings = {"bootstrap.servers": node.kafka, "group.id": "unused", "isolation.level": "read_committed"}
    with closing(Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(WAIT_SECONDS_MAX)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return
            yield message.value(), message.headers() or []


def check(node: NodeProcess, topic: str, kind: str) -> None:
    expected = [(value, [("number", b"%d" % number)]) for number, value in enumerate(MESSAGES)]
    assert list(read_all(node, topic)) == expected
    codecs = {header.codec for header in stored_batches(node, topic) if not header.is_control}
    assert codecs == {KINDS[kind]}


@pytest.mark.parametrize("codec", COMPRESSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_idempotent_producers_batches_are_in_the_codec_of_the_topic(
    node: NodeProcess, topic: str, kind: str, codec: str
) -> None:
    create(node, topic, compression_type=kind)
    produce(producer_of(node, codec, enable_idempotence=True), topic)
    check(node, topic, kind)


@pytest.mark.parametrize("kind", ["uncompressed", "gzip", "zstd"])
def test_transactional_producers_batches_are_in_the_codec_of_the_topic(
    node: NodeProcess, topic: str, kind: str
) -> None:
    create(node, topic, compression_type=kind)
    producer = producer_of(node, "lz4", transactional_id=topic)
    producer.init_transactions(WAIT_SECONDS_MAX)
    producer.begin_transaction()
    producer.produce(topic, b"never seen")
    producer.abort_transaction(WAIT_SECONDS_MAX)
    producer.begin_transaction()
    produce(producer, topic)
    producer.commit_transaction(WAIT_SECONDS_MAX)
    check(node, topic, kind)


def test_level_that_takes_long_works(node: NodeProcess, topic: str) -> None:
    create(node, topic, compression_type="zstd", compression_zstd_level="12")
    produce(producer_of(node, "none", enable_idempotence=True), topic)
    check(node, topic, "zstd")
