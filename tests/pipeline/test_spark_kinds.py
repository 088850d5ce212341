"""Topics of every kind as tables: the rows are those that another client reads, one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from support.node_process import NodeProcess
from support.spark.topics import create, fill_numbered, read_all, wait_until, written

PARTITIONS = 2
ROWS = 1_000


def fill_compacted(kafka: str, topic: str) -> None:
    """Twenty keys, each written many times: nearly all offsets become holes."""
    settings = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0",
        "segment_bytes": "4096",
        "segment_ms": "500",
    }
    create(kafka, topic, PARTITIONS, **settings)
    producer = Producer({"bootstrap.servers": kafka, "batch.num.messages": 50, "compression.type": "lz4"})
    for number in range(2_000):
        producer.produce(topic, f"value-{number}".encode(), f"k{number % 20}".encode(), number % PARTITIONS)
    assert producer.flush(30) == 0

    def is_cleaned() -> bool:
        # One more message closes the segment that the cleaner must not touch.
        producer.produce(topic, b"closes", b"last", int(time.monotonic() * 50) % PARTITIONS)
        assert producer.flush(30) == 0
        return len(read_all(kafka, topic)) < 200

    wait_until(is_cleaned, "the cleaner")


def fill_transactional(kafka: str, topic: str) -> None:
    create(kafka, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(20)
    for step in range(12):
        producer.begin_transaction()
        for number in range(40):
            producer.produce(topic, f"{step}-{number}".encode(), f"k{number}".encode(), number % PARTITIONS)
        producer.flush(20)
        if step % 3 == 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)


def fill_deleted(kafka: str, topic: str) -> None:
    create(kafka, topic, PARTITIONS)
    fill_numbered(kafka, topic, ROWS, PARTITIONS)
    admin = AdminClient({"bootstrap.servers": kafka})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 77)]).values():
        deleted.result(20)


def fill_stamped(kafka: str, topic: str) -> None:
    create(kafka, topic, PARTITIONS, message_timestamp_type="LogAppendTime")
    fill_numbered(kafka, topic, ROWS, PARTITIONS)


def fill_delayed(kafka: str, topic: str) -> None:
    """Half of them come later, at offsets behind the holes that they left."""
    create(kafka, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(200):
        headers = [("penstock-delay-ms", b"300")] if number % 2 else []
        producer.produce(topic, f"value-{number}".encode(), b"k", number // 2 % PARTITIONS, headers=headers)
    assert producer.flush(30) == 0
    wait_until(lambda: len(read_all(kafka, topic)) == 200, "the delayed messages")


def fill_compressed(kafka: str, topic: str) -> None:
    create(kafka, topic, PARTITIONS)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        fill_numbered(kafka, topic, ROWS // 5, PARTITIONS, **{"compression.type": codec})


@pytest.mark.parametrize(
    "fill", [fill_compacted, fill_transactional, fill_deleted, fill_stamped, fill_delayed, fill_compressed]
)
def test_the_rows_are_those_of_another_client(
    spark: Any, spark_node: NodeProcess, fill: Callable[[str, str], None]
) -> None:
    kafka, topic = spark_node.kafka, fill.__name__.replace("_", "-")
    fill(kafka, topic)
    frame = (
        spark.read.format("penstock")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .option("minPartitions", "5")
        .option("kafka.isolation.level", "read_committed")
        .load()
        .selectExpr("partition", "offset", "key", "value", "unix_millis(timestamp) as t", "timestampType", "headers")
    )
    found = [
        (row.partition, row.offset, row.key, row.value, row.t, row.timestampType, pairs(row.headers))
        for row in frame.orderBy("partition", "offset").collect()
    ]
    wanted = sorted(
        (
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            message.timestamp()[1],
            message.timestamp()[0] - 1,
            message.headers() or [],
        )
        for message in read_all(kafka, topic)
    )
    assert 0 < len(found) < written(kafka, topic) or fill in (fill_stamped, fill_compressed)
    assert found == wanted


def pairs(headers: Any) -> list[tuple[str, bytes | None]]:
    return [(header["key"], None if header["value"] is None else bytes(header["value"])) for header in headers or []]
