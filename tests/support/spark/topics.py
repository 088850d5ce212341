"""Topics around a Spark query, by a client that is not ours: filled before it, read after it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

SECONDS_MAX: Final = 120
ADMIN_SECONDS_MAX: Final = 20


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def create(kafka: str, topic: str, partitions: int, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create_topics([NewTopic(topic, partitions, config=named)])[topic].result(ADMIN_SECONDS_MAX)


def delete(kafka: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(ADMIN_SECONDS_MAX)


def widen(kafka: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(ADMIN_SECONDS_MAX)


def fill_one(kafka: str, topic: str, count: int, *, partition: int = 0, timestamp: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(count):
        producer.produce(topic, f"value-{number}".encode(), partition=partition, timestamp=timestamp)
    assert producer.flush(30) == 0


def fill_numbered(kafka: str, topic: str, count: int, partitions: int, **settings: str) -> None:
    """Message n is `value-n` with the key `kn`, in partition n modulo their count."""
    producer = Producer({"bootstrap.servers": kafka, **settings})
    for number in range(count):
        headers: list[tuple[str, str | bytes | None]] = [("number", str(number).encode())]
        producer.produce(topic, f"value-{number}".encode(), f"k{number}".encode(), number % partitions, headers=headers)
    assert producer.flush(30) == 0


def partition_count(kafka: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": kafka})
    return len(admin.list_topics(topic, ADMIN_SECONDS_MAX).topics[topic].partitions)


def read_all(kafka: str, topic: str) -> list[Message]:
    """Everything committed, with the partitions in turn."""
    consumer = Consumer({
        "bootstrap.servers": kafka, "group.id": "unused", "isolation.level": "read_committed",
        "enable.partition.eof": True, "auto.offset.reset": "earliest",
    })  # fmt: skip
    count = len(consumer.list_topics(topic, ADMIN_SECONDS_MAX).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
    found: list[Message] = []
    ended: set[int] = set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(ended) < count:
        assert time.monotonic() < deadline
        for message in consumer.consume(1000, 1.0):
            if message.error() is None:
                found.append(message)
            else:
                ended.add(message.partition() or 0)
    consumer.close()
    return found


def read_settled(kafka: str, topic: str, count: int) -> list[Message]:
    """A commit is answered before its last marker is written, so there may be less for a moment."""
    wait_until(lambda: len(read_all(kafka, topic)) >= count, f"{count} rows in {topic}")
    return read_all(kafka, topic)


def written(kafka: str, topic: str) -> int:
    """Also what is not committed, and the markers of what is."""
    settings = {"bootstrap.servers": kafka, "group.id": "unused", "isolation.level": "read_uncommitted"}
    consumer = Consumer(settings)
    count = len(consumer.list_topics(topic, ADMIN_SECONDS_MAX).topics[topic].partitions)
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), ADMIN_SECONDS_MAX)[1]
        for partition in range(count)
    ]
    consumer.close()
    return sum(ends)


def group_offsets(kafka: str, group: str, topic: str, partitions: int) -> list[int]:
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    admin = AdminClient({"bootstrap.servers": kafka})
    (answer,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    return [place.offset for place in answer.result(ADMIN_SECONDS_MAX).topic_partitions]
