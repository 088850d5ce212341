"""Rows written by Spark stand in their topic, each once, with all that belongs to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from confluent_kafka import Producer

from penstock.domain.partitioner import partition_for_key
from support.node_process import NodeProcess
from support.spark import driver as spark_driver
from support.spark.topics import (
    SECONDS_MAX,
    create,
    fill_numbered,
    group_offsets,
    read_all,
    read_settled,
    wait_until,
    written,
)

ROWS = 3_000
BATCH = 1_000
PARTITIONS = 3


@pytest.fixture
def node(spark_node: NodeProcess) -> NodeProcess:
    return spark_node


def fill(node: NodeProcess, name: str) -> tuple[str, str]:
    """A topic with numbered rows, and an empty one for the result."""
    source, target = f"{name}-in", f"{name}-out"
    create(node.kafka, source, 2)
    create(node.kafka, target, PARTITIONS)
    fill_numbered(node.kafka, source, ROWS, 2)
    return source, target


def assert_each_row_once(node: NodeProcess, target: str) -> None:
    found = read_settled(node.kafka, target, ROWS)
    numbers = sorted(int(message.value().decode().removeprefix("value-")) for message in found)
    assert numbers == list(range(ROWS))
    for message in found:
        number = message.value().decode().removeprefix("value-")
        assert message.key() == f"k{number}".encode()
        assert message.partition() == partition_for_key(message.key(), PARTITIONS)


def start(spark: Any, node: NodeProcess, topics: tuple[str, str], directory: Path, fault: str) -> Any:
    return spark_driver.start_query(spark, node.kafka, *topics, str(directory), fault)


def write_to(node: NodeProcess, frame: Any, **options: str) -> Any:
    return frame.write.format("penstock").option("kafka.bootstrap.servers", node.kafka).options(**options)


@pytest.mark.parametrize("fault", ["raise-before", "raise-after"])
def test_a_failed_commit_is_repeated_without_a_row_twice(
    spark: Any, node: NodeProcess, tmp_path: Path, fault: str
) -> None:
    topics = fill(node, fault)
    query = start(spark, node, topics, tmp_path, fault)
    with pytest.raises(Exception, match="a fault on order"):
        query.awaitTermination(SECONDS_MAX)
    count = 0 if fault == "raise-before" else BATCH
    assert len(read_settled(node.kafka, topics[1], count)) == count
    query = start(spark, node, topics, tmp_path, fault)
    assert query.awaitTermination(SECONDS_MAX)
    assert_each_row_once(node, topics[1])
    assert group_offsets(node.kafka, f"penstock-sink-{query.id}", "__spark_stage", 1) == [2]


@pytest.mark.parametrize("fault", ["task", "worker"])
def test_rows_of_a_failed_attempt_stay_in_the_stage(spark: Any, node: NodeProcess, tmp_path: Path, fault: str) -> None:
    topics = fill(node, fault)
    staged_before = written(node.kafka, "__spark_stage")
    assert start(spark, node, topics, tmp_path, fault).awaitTermination(SECONDS_MAX)
    assert (tmp_path / "struck").exists()
    assert written(node.kafka, "__spark_stage") - staged_before > ROWS, "rows were staged twice"
    assert_each_row_once(node, topics[1])


def test_readers_do_not_wait_for_staged_rows(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    topics = fill(node, "unheld")
    query = start(spark, node, topics, tmp_path, "hang:staged:0")
    wait_until((tmp_path / "struck").exists, "the commit")
    producer = Producer({"bootstrap.servers": node.kafka})
    producer.produce(topics[1], b"a bystander")
    assert producer.flush(20) == 0
    assert [message.value() for message in read_all(node.kafka, topics[1])] == [b"a bystander"]
    (tmp_path / "go").touch()
    assert query.awaitTermination(SECONDS_MAX)
    assert len(read_settled(node.kafka, topics[1], ROWS + 1)) == ROWS + 1


def test_a_complete_result_is_appended_as_a_whole(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    source, target = fill(node, "complete")
    rows = spark.readStream.format("penstock").option("kafka.bootstrap.servers", node.kafka)
    counts = (
        rows.option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .groupBy("partition")
        .count()
        .selectExpr("string(partition) as key", "string(count) as value")
    )
    query = counts.writeStream.format("penstock").option("kafka.bootstrap.servers", node.kafka).option("topic", target)
    checkpoint = str(tmp_path / "checkpoint")
    query = query.option("checkpointLocation", checkpoint).outputMode("complete").trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS_MAX)
    found = sorted((message.key(), message.value()) for message in read_settled(node.kafka, target, 2))
    assert found == [(b"0", b"1500"), (b"1", b"1500")]


def test_a_table_is_appended_with_keys_headers_topics_and_partitions(spark: Any, node: NodeProcess) -> None:
    create(node.kafka, "table-a", PARTITIONS)
    create(node.kafka, "table-b", PARTITIONS)
    frame = spark.range(1_000).selectExpr(
        "if(id % 3 = 0, null, concat('key-', id)) as key",
        "if(id % 100 = 0, null, concat('value-', id)) as value",
        "array(named_struct('key', 'n', 'value', cast(string(id) as binary))) as headers",
        "if(id % 2 = 0, 'table-a', 'table-b') as topic",
        "if(id % 5 = 0, int(2), null) as partition",
        "id as passed_over",
    )
    write_to(node, frame, **{"kafka.compression.type": "zstd"}).mode("append").save()
    seen: list[int] = []
    for topic in ("table-a", "table-b"):
        for message in read_settled(node.kafka, topic, 500):
            ((name, number_text),) = message.headers()
            number = int(number_text)
            seen.append(number)
            assert (name, topic) == ("n", "table-a" if number % 2 == 0 else "table-b")
            assert message.value() == (None if number % 100 == 0 else f"value-{number}".encode())
            assert message.key() == (None if number % 3 == 0 else f"key-{number}".encode())
            if number % 5 == 0:
                assert message.partition() == 2
            elif message.key() is not None:
                assert message.partition() == partition_for_key(message.key(), PARTITIONS)
    assert sorted(seen) == list(range(1_000))


def test_a_batch_with_a_number_is_written_once(spark: Any, node: NodeProcess) -> None:
    create(node.kafka, "numbered", PARTITIONS)
    frame = spark.range(100).selectExpr("string(id) as value")

    def write(at_least: int, **options: str) -> int:
        writer = (
            frame.write.format("penstock").option("kafka.bootstrap.servers", node.kafka).option("topic", "numbered")
        )
        writer.options(**options).mode("append").save()
        return len(read_settled(node.kafka, "numbered", at_least))

    assert write(100, queryId="mine", batchId="7") == 100
    assert write(100, queryId="mine", batchId="7") == 100
    assert write(200, queryId="mine", batchId="8") == 200
    assert write(300) == 300


def test_what_cannot_be_written_is_told(spark: Any, node: NodeProcess) -> None:
    create(node.kafka, "told", PARTITIONS)
    rows = spark.range(10)

    def write(frame: Any, mode: str = "append", **options: str) -> None:
        frame.write.format("penstock").option("kafka.bootstrap.servers", node.kafka).options(**options).mode(
            mode
        ).save()

    with pytest.raises(Exception, match="a column `value` is needed"):
        write(rows, topic="told")
    with pytest.raises(Exception, match="where to"):
        write(rows.selectExpr("string(id) value"))
    with pytest.raises(Exception, match="never overwritten"):
        write(rows.selectExpr("string(id) value"), "overwrite", topic="told")
    with pytest.raises(Exception, match="has no partition 3"):
        write(rows.selectExpr("string(id) value", "int(3) as partition"), topic="told")
    assert read_all(node.kafka, "told") == []
