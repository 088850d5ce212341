"""Rows written by Spark stand in their topic exactly once, whatever fails on the way. Needs the extra `spark`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.domain.partitioner import partition_for_key
from support import spark_driver
from support.node_process import NodeProcess

SECONDS_MAX = 120
ROWS = 3_000
BATCH = 1_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    running = NodeProcess(tmp_path_factory.mktemp("node")).start()
    yield running
    running.terminate()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    session = spark_driver.make_spark()
    yield session
    session.stop()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def create(node: NodeProcess, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(20)


def fill(node: NodeProcess, name: str) -> tuple[str, str]:
    """A topic with numbered rows, and an empty one for the result."""
    source, target = f"{name}-in", f"{name}-out"
    create(node, source, 2)
    create(node, target)
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(ROWS):
        producer.produce(source, f"value-{number}".encode(), f"k{number}".encode(), number % 2)
    assert producer.flush(30) == 0
    return source, target


def read_all(node: NodeProcess, topic: str) -> list[Message]:
    """Everything committed, with the partitions in turn."""
    consumer = Consumer({
        "bootstrap.servers": node.kafka, "group.id": "unused", "isolation.level": "read_committed",
        "enable.partition.eof": True, "auto.offset.reset": "earliest",
    })  # fmt: skip
    count = len(consumer.list_topics(topic, 20).topics[topic].partitions)
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
                ended.add(message.partition())
    consumer.close()
    return found


def read_settled(node: NodeProcess, topic: str, count: int) -> list[Message]:
    """A commit is answered before its last marker is written, so there may be less for a moment."""
    wait_until(lambda: len(read_all(node, topic)) >= count, f"{count} rows in {topic}")
    return read_all(node, topic)


def written(node: NodeProcess, topic: str) -> int:
    """Also what is not committed, and the markers of what is."""
    settings = {"bootstrap.servers": node.kafka, "group.id": "unused", "isolation.level": "read_uncommitted"}
    consumer = Consumer(settings)
    count = len(consumer.list_topics(topic, 20).topics[topic].partitions)
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, partition), 20)[1] for partition in range(count)]
    consumer.close()
    return sum(ends)


def assert_each_row_once(node: NodeProcess, target: str) -> None:
    found = read_settled(node, target, ROWS)
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


def fence_of(node: NodeProcess, query_id: str) -> int:
    place = TopicPartition("__spark_stage", 0)
    asked = ConsumerGroupTopicPartitions(f"penstock-sink-{query_id}", [place])
    admin = AdminClient({"bootstrap.servers": node.kafka})
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    return int(answer.result(20).topic_partitions[0].offset)


@pytest.mark.parametrize("fault", ["raise-before", "raise-after"])
def test_a_failed_commit_is_repeated_without_a_row_twice(
    spark: Any, node: NodeProcess, tmp_path: Path, fault: str
) -> None:
    topics = fill(node, fault)
    query = start(spark, node, topics, tmp_path, fault)
    with pytest.raises(Exception, match="a fault on order"):
        query.awaitTermination(SECONDS_MAX)
    count = 0 if fault == "raise-before" else BATCH
    assert len(read_settled(node, topics[1], count)) == count
    query = start(spark, node, topics, tmp_path, fault)
    assert query.awaitTermination(SECONDS_MAX)
    assert_each_row_once(node, topics[1])
    assert fence_of(node, query.id) == 2


@pytest.mark.parametrize("fault", ["task", "worker"])
def test_rows_of_a_failed_attempt_stay_in_the_stage(spark: Any, node: NodeProcess, tmp_path: Path, fault: str) -> None:
    topics = fill(node, fault)
    staged_before = written(node, "__spark_stage")
    assert start(spark, node, topics, tmp_path, fault).awaitTermination(SECONDS_MAX)
    assert (tmp_path / "struck").exists()
    assert written(node, "__spark_stage") - staged_before > ROWS, "rows were staged twice"
    assert_each_row_once(node, topics[1])


def test_a_node_that_dies_between_stage_and_commit_is_waited_for(spark: Any, tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node") as own_node:
        topics = fill(own_node, "killed")
        query = start(spark, own_node, topics, tmp_path, "gate")
        wait_until((tmp_path / "struck").exists, "the commit")
        own_node.kill()
        (tmp_path / "go").touch()
        own_node.start()
        assert query.awaitTermination(SECONDS_MAX)
        assert_each_row_once(own_node, topics[1])


def test_readers_do_not_wait_for_staged_rows(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    topics = fill(node, "unheld")
    query = start(spark, node, topics, tmp_path, "gate")
    wait_until((tmp_path / "struck").exists, "the commit")
    producer = Producer({"bootstrap.servers": node.kafka})
    producer.produce(topics[1], b"a bystander")
    assert producer.flush(20) == 0
    assert [message.value() for message in read_all(node, topics[1])] == [b"a bystander"]
    (tmp_path / "go").touch()
    assert query.awaitTermination(SECONDS_MAX)
    assert len(read_settled(node, topics[1], ROWS + 1)) == ROWS + 1


@pytest.mark.parametrize("fault", ["hang-staged", "hang-copied", "hang-committed"])
def test_a_killed_driver_goes_on_where_its_last_commit_was(
    spark: Any, node: NodeProcess, tmp_path: Path, fault: str
) -> None:
    topics = fill(node, fault)
    script = Path(spark_driver.__file__)
    command = [sys.executable, str(script), node.kafka, *topics, str(tmp_path), fault]
    with (tmp_path / "driver.log").open("wb") as log:
        # A group of its own: the JVM, which is the driver, dies with it.
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: (tmp_path / "struck").exists() or driver.poll() is not None, "the commit")
        wait_until(lambda: fault != "hang-committed" or len(read_all(node, topics[1])) == BATCH, "the first rows")
        # Where the kill falls: all rows are staged, and then none is copied, all are, or all are committed.
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-4000:]
        assert written(node, "__spark_stage") >= BATCH
        assert len(read_all(node, topics[1])) == (BATCH if fault == "hang-committed" else 0)
        assert (written(node, topics[1]) >= BATCH) == (fault != "hang-staged")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(20)
    assert start(spark, node, topics, tmp_path, fault).awaitTermination(SECONDS_MAX)
    assert_each_row_once(node, topics[1])


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
    found = sorted((message.key(), message.value()) for message in read_settled(node, target, 2))
    assert found == [(b"0", b"1500"), (b"1", b"1500")]


def test_a_table_is_appended_with_keys_headers_topics_and_partitions(spark: Any, node: NodeProcess) -> None:
    create(node, "table-a")
    create(node, "table-b")
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
        for message in read_settled(node, topic, 500):
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
    create(node, "numbered")
    frame = spark.range(100).selectExpr("string(id) as value")

    def write(at_least: int, **options: str) -> int:
        writer = (
            frame.write.format("penstock").option("kafka.bootstrap.servers", node.kafka).option("topic", "numbered")
        )
        writer.options(**options).mode("append").save()
        return len(read_settled(node, "numbered", at_least))

    assert write(100, queryId="mine", batchId="7") == 100
    assert write(100, queryId="mine", batchId="7") == 100
    assert write(200, queryId="mine", batchId="8") == 200
    assert write(300) == 300


def test_what_cannot_be_written_is_told(spark: Any, node: NodeProcess) -> None:
    create(node, "told")
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
    assert read_all(node, "told") == []
