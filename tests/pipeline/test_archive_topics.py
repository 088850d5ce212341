"""A topic that was deleted and made anew is another one: an archive of the former never takes, or gives, its messages.

In each case the later one has grown past what is archived, so that offsets alone say nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.pipeline.archive.frame import TopicRange, raw_rows
from penstock.pipeline.archive.job import ArchiveRequest, ArchiveRun, start_archive
from penstock.pipeline.archive.snapshot import archive_options
from penstock.pipeline.connector.spans import SpanPartition, read_span
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.ranges import OffsetSpan
from penstock.pipeline.source.topic_identity import OtherTopicError
from penstock.pipeline.table.commit import open_table
from penstock.pipeline.table.task_files import told_files
from support.node_process import NodeProcess
from support.spark.topics import wait_until

SECONDS_MAX = 120
ARCHIVED = 40
LATER = 100


def write(node: NodeProcess, topic: str, value: bytes, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
    producer = Producer({"bootstrap.servers": node.kafka})
    for _ in range(count):
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def make_anew(node: NodeProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.delete_topics([topic])[topic].result(20)
    write(node, topic, b"later", LATER)


def archive(spark: Any, node: NodeProcess, topic: str, path: Path, **options: Any) -> ArchiveRun:
    return start_archive(spark, ArchiveRequest(node.kafka, (topic,), str(path), **options))


def archive_once(spark: Any, node: NodeProcess, topic: str, path: Path) -> None:
    run = archive(spark, node, topic, path, is_once=True)
    try:
        assert run.query.awaitTermination(SECONDS_MAX)
        run.report()
    finally:
        run.stop()


def values_in(path: Path) -> list[bytes]:
    table = open_table(str(path))
    assert table is not None
    found: list[bytes] = table.to_pyarrow_table(columns=["value"])["value"].to_pylist()
    return found


def told_offset(node: NodeProcess, topic: str) -> int:
    """What retention would take for archived."""
    asked = ConsumerGroupTopicPartitions("penstock-archive", [TopicPartition(topic, 0)])
    admin = AdminClient({"bootstrap.servers": node.kafka})
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    return int(answer.result(20).topic_partitions[0].offset)


def test_an_archive_neither_goes_on_nor_is_read_with_a_later_topic(
    spark: Any, spark_node: NodeProcess, tmp_path: Path
) -> None:
    topic, path = "made-anew", tmp_path / "archive"
    write(spark_node, topic, b"former", ARCHIVED)
    archive_once(spark, spark_node, topic, path)
    assert told_offset(spark_node, topic) == ARCHIVED
    make_anew(spark_node, topic)
    with pytest.raises(OtherTopicError, match="another topic 'made-anew', which was deleted and made anew"):
        archive(spark, spark_node, topic, path)
    assert values_in(path) == [b"former"] * ARCHIVED
    assert told_offset(spark_node, topic) < 0
    with pytest.raises(OtherTopicError, match="another topic 'made-anew'"):
        raw_rows(spark, TopicRange(topic, spark_node.kafka, archive=str(path)))
    options = {"kafka.bootstrap.servers": spark_node.kafka, "subscribe": topic, "archive": str(path)}
    with pytest.raises(Exception, match="another topic 'made-anew'"):
        spark.read.format("penstock").options(**options).load().count()


def stream_of(spark: Any, node: NodeProcess, topic: str, path: Path, state: Path) -> Any:
    stream = spark.readStream.format("penstock").option("kafka.bootstrap.servers", node.kafka)
    stream = stream.options(subscribe=topic, startingOffsets="earliest", archive=str(path)).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(state))
    return writer.trigger(availableNow=True).start()


def test_a_stream_that_goes_on_from_its_checkpoint_sees_that_the_archive_is_of_the_former_topic(
    spark: Any, spark_node: NodeProcess, tmp_path: Path
) -> None:
    topic, path = "made-anew-streamed", tmp_path / "archive"
    write(spark_node, topic, b"former", ARCHIVED)
    archive_once(spark, spark_node, topic, path)
    assert stream_of(spark, spark_node, topic, path, tmp_path / "state").awaitTermination(SECONDS_MAX)
    make_anew(spark_node, topic)
    with pytest.raises(Exception, match="another topic 'made-anew-streamed'"):
        stream_of(spark, spark_node, topic, path, tmp_path / "state").awaitTermination(SECONDS_MAX)


def test_an_archive_that_runs_stops_when_its_topic_is_made_anew(
    spark: Any, spark_node: NodeProcess, tmp_path: Path
) -> None:
    topic, path = "made-anew-meanwhile", tmp_path / "archive"
    write(spark_node, topic, b"former", ARCHIVED)
    run = archive(spark, spark_node, topic, path, trigger_ms=3_000)
    try:
        wait_until(has_rows(path), "the first commit")
        make_anew(spark_node, topic)
        with pytest.raises(Exception, match=r"made anew while it was being archived|was deleted"):
            run.query.awaitTermination(SECONDS_MAX)
        # Spark has told of a batch that nobody was told of yet: of the later topic nothing is archived.
        with pytest.raises(OtherTopicError):
            run.report()
    finally:
        run.stop()
    assert values_in(path) == [b"former"] * ARCHIVED
    assert told_offset(spark_node, topic) < 0


def test_a_task_that_read_while_the_topic_was_made_anew_hands_on_nothing(
    spark_node: NodeProcess, tmp_path: Path
) -> None:
    topic, path = "made-anew-in-a-task", tmp_path / "archive"
    write(spark_node, topic, b"former", ARCHIVED)
    target = msgspec.json.encode(archive_options(str(path))).decode()
    given = {"kafka.bootstrap.servers": spark_node.kafka, "subscribe": topic, "includeHeaders": "true"}
    options = parse_options(given | {"archiveTo": target, "topicIds": json.dumps({topic: 7})}, is_streaming=False)
    task = SpanPartition((OffsetSpan(topic, 0, 0, ARCHIVED),))
    with pytest.raises(OtherTopicError):
        next(read_span(options, task))
    options = msgspec.structs.replace(options, topic_ids={topic: 0})
    (told,) = read_span(options, task)
    assert [file.row_count for file in told_files([told])] == [ARCHIVED]


def has_rows(path: Path) -> Callable[[], bool]:
    return lambda: (path / "_delta_log").exists() and open_table(str(path)) is not None
