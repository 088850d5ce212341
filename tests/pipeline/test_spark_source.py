"""`format("penstock")` in a real Spark: tables and streams out of topics of every kind. Needs the extra `spark`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess

SECONDS_MAX = 120


@pytest.fixture
def node(spark_node: NodeProcess) -> NodeProcess:
    return spark_node


def fill(node: NodeProcess, topic: str, partitions: int, count: int, **settings: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(20)
    producer = Producer({"bootstrap.servers": node.kafka, **settings})
    for number in range(count):
        headers = [("number", str(number).encode())]
        producer.produce(topic, f"value-{number}".encode(), f"k{number}".encode(), number % partitions, headers=headers)
    assert producer.flush(30) == 0


def read(spark: Any, node: NodeProcess, topic: str, **options: str) -> Any:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", node.kafka).option("subscribe", topic)
    return reader.options(**options).load()


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_a_topic_is_a_table(spark: Any, node: NodeProcess, codec: str) -> None:
    topic = f"table-{codec}"
    fill(node, topic, 3, 3_000, **{"compression.type": codec})
    frame = read(spark, node, topic, includeHeaders="true")
    rows = frame.selectExpr(
        "cast(key as string) k", "cast(value as string) v", "partition", "offset", "topic", "headers[0] h"
    ).collect()
    assert len(rows) == 3_000
    for row in rows:
        number = row.offset * 3 + row.partition
        assert (row.v, row.k, row.topic) == (f"value-{number}", f"k{number}", topic)
        assert (row.h["key"], bytes(row.h["value"])) == ("number", str(number).encode())


def test_one_partition_is_read_by_several_tasks_and_bounds_are_kept(spark: Any, node: NodeProcess) -> None:
    fill(node, "bounds", 1, 1_000)
    bounds = {"startingOffsets": '{"bounds": {"0": 100}}', "endingOffsets": '{"bounds": {"0": 900}}'}
    frame = read(spark, node, "bounds", minPartitions="8", **bounds)
    assert frame.rdd.getNumPartitions() == 8
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(100, 900))


def test_a_stream_reads_everything_once_in_limited_triggers(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    fill(node, "stream", 2, 1_000)

    def run() -> None:
        query = (
            spark.readStream.format("penstock")
            .option("kafka.bootstrap.servers", node.kafka)
            .option("subscribe", "stream")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "300")
            .option("queryName", "once")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SECONDS_MAX)

    run()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 1_000
    producer = Producer({"bootstrap.servers": node.kafka})
    producer.produce("stream", b"late", partition=1)
    producer.flush(20)
    run()
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert frame.count() == 1_001
    assert frame.select("partition", "offset").distinct().count() == 1_001


def test_aborted_transactions_are_left_out(spark: Any, node: NodeProcess) -> None:
    fill(node, "transactions", 1, 10)
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "spark-test"})
    producer.init_transactions(20)
    for word, end in (("kept", producer.commit_transaction), ("lost", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("transactions", word.encode())
        producer.flush(20)
        end(20)
    frame = read(spark, node, "transactions", **{"kafka.isolation.level": "read_committed"})
    values = [row.v for row in frame.selectExpr("cast(value as string) v").collect()]
    assert values == [*(f"value-{number}" for number in range(10)), "kept"]


def test_lost_data_is_told(spark: Any, node: NodeProcess) -> None:
    from confluent_kafka import TopicPartition

    fill(node, "lost", 1, 100)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for deleted in admin.delete_records([TopicPartition("lost", 0, 50)]).values():
        deleted.result(20)
    bounds = {"startingOffsets": '{"lost": {"0": 0}}'}
    assert read(spark, node, "lost", failOnDataLoss="false", **bounds).count() == 50
    with pytest.raises(Exception, match="begins at offset 50"):
        read(spark, node, "lost", **bounds).count()
