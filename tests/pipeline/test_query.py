"""Archive and log as one table: each message exactly once, wherever it lies, by source, stream and SQL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.work.query import QueryWish, fetch, plain, topic_frame
from penstock.pipeline.archive.job import ArchiveRequest, start_archive
from penstock.pipeline.archive.query import SETTINGS, QueryError, query_topics
from support.node_process import NodeProcess

SECONDS_MAX = 180
TOPIC = "one-table"
BASE_MS = 1_760_000_000_000
ARCHIVED = 600
WRITTEN = 1_000


def write(node: NodeProcess, start: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(start, end):
        value = json.dumps({"id": number, "customer": {"id": f"c{number % 3}"}}).encode()
        producer.produce(TOPIC, value, f"k{number % 7}".encode(), number % 2, timestamp=BASE_MS + number * 1000)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def archive(spark: Any, spark_node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> str:
    """600 of 1,000 are archived, and the broker has removed the first 400 of them."""
    path = str(tmp_path_factory.mktemp("query") / "archive")
    admin = AdminClient({"bootstrap.servers": spark_node.kafka})
    admin.create_topics([NewTopic(TOPIC, 2, config={"retention.ms": "-1"})])[TOPIC].result(20)
    write(spark_node, 0, ARCHIVED)
    run = start_archive(spark, ArchiveRequest(spark_node.kafka, (TOPIC,), path, is_once=True, value_schema="id bigint"))
    assert run.query.awaitTermination(SECONDS_MAX)
    run.stop()
    write(spark_node, ARCHIVED, WRITTEN)
    for future in admin.delete_records([TopicPartition(TOPIC, 0, 200), TopicPartition(TOPIC, 1, 200)]).values():
        future.result(20)
    return path


@pytest.fixture
def settings(spark: Any) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def read(spark: Any, node: NodeProcess, archive: str, **options: str) -> list[tuple[int, int]]:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", node.kafka).option("subscribe", TOPIC)
    frame = reader.option("archive", archive).options(**options).load()
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def places(start: int, end: int) -> list[tuple[int, int]]:
    """Of the numbers from `start` to `end`."""
    return sorted((number % 2, number // 2) for number in range(start, end))


def test_the_source_reads_the_archive_below_its_end_and_the_log_above(
    spark: Any, spark_node: NodeProcess, archive: str
) -> None:
    assert read(spark, spark_node, archive) == places(0, WRITTEN)
    # As it was a moment ago, while the archive goes on.
    grown = shutil.copytree(archive, f"{archive}-grown")
    run = start_archive(
        spark, ArchiveRequest(spark_node.kafka, (TOPIC,), grown, is_once=True, value_schema="id bigint")
    )
    assert run.query.awaitTermination(SECONDS_MAX)
    run.stop()
    assert read(spark, spark_node, grown, archiveVersion="0") == places(0, WRITTEN)
    assert read(spark, spark_node, grown) == places(0, WRITTEN)
    offsets = {"startingOffsets": json.dumps({TOPIC: {"0": 100, "1": 350}})}
    assert read(spark, spark_node, archive, **offsets) == [(0, n) for n in range(100, 500)] + [
        (1, n) for n in range(350, 500)
    ]
    times = {"startingTimestamp": str(BASE_MS + 500_000), "endingTimestamp": str(BASE_MS + 700_000)}
    assert read(spark, spark_node, archive, **times) == places(500, 700)
    narrow = json.dumps({"partitions": [1], "offset_min": 10, "time_ms_end": BASE_MS + 620_000})
    wanted = [(1, number) for number in range(10, 310)]
    found = read(spark, spark_node, archive, narrow=narrow)
    # It may be more: whoever narrows filters as well. It is never less.
    assert set(wanted) <= set(found)
    assert all(partition == 1 and offset >= 10 for partition, offset in found)


def test_a_stream_begins_in_the_archive_and_goes_on_live(
    spark: Any, spark_node: NodeProcess, archive: str, tmp_path: Path
) -> None:
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", spark_node.kafka)
    frame = reader.options(
        subscribe=TOPIC, archive=archive, startingOffsets="earliest", maxOffsetsPerTrigger="450", includeHeaders="true"
    ).load()
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS_MAX)
    rows = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset").collect()
    assert sorted((row.partition, row.offset) for row in rows) == places(0, WRITTEN)


@pytest.mark.usefixtures("settings")
def test_sql_sees_each_message_once_with_its_fields(spark: Any, spark_node: NodeProcess, archive: str) -> None:
    def ask(sql: str, since: int | None = None, until: int | None = None) -> list[tuple[Any, ...]]:
        wish = QueryWish(sql=sql, bootstrap=spark_node.kafka, archives=(archive,))
        bounds = (None if since is None else BASE_MS + since * 1000, None if until is None else BASE_MS + until * 1000)
        frame = query_topics(spark, sql, lambda topic: topic_frame(spark, wish, topic, bounds))
        return [tuple(map(plain, row)) for row in fetch(frame, 0)[1]]

    table = f"`{TOPIC}`"
    try:
        customers = ask(f"SELECT json:customer.id::string, count(*), sum(id) FROM {table} GROUP BY 1 ORDER BY 1")
        assert customers == [
            (f"c{each}", len(range(each, WRITTEN, 3)), sum(range(each, WRITTEN, 3))) for each in range(3)
        ]
        # The same table twice with two filters: neither is the other's.
        halves = f"SELECT (SELECT count(*) FROM {table} WHERE partition = 0), (SELECT count(*) FROM {table})"
        assert ask(halves) == [(500, 1000)]
        assert ask(f"SELECT key, value FROM {table} WHERE offset = 0 AND partition = 1") == [
            ("k1", '{"id": 1, "customer": {"id": "c1"}}')
        ]
    finally:
        spark.catalog.dropTempView(TOPIC)
    try:
        assert ask(f"SELECT min(id), max(id), count(*) FROM {table}", since=550, until=650) == [(550, 649, 100)]
    finally:
        spark.catalog.dropTempView(TOPIC)
    with pytest.raises(QueryError, match=r"it is a command \(CREATE …\)"):
        ask(f"CREATE TABLE copied AS SELECT * FROM {table}")
    with pytest.raises(QueryError, match="written in backquotes: `one-table`"):
        ask("SELECT 1 FROM one-table")
    with pytest.raises(Exception, match="topic 'missing' does not exist"):
        ask("SELECT 1 FROM missing")


@pytest.mark.usefixtures("settings")
def test_topics_that_differ_in_capitals_only_are_two_tables(spark: Any, spark_node: NodeProcess) -> None:
    admin = AdminClient({"bootstrap.servers": spark_node.kafka})
    producer = Producer({"bootstrap.servers": spark_node.kafka})
    for topic in ("Capitals", "capitals", "Alone"):
        admin.create_topics([NewTopic(topic, 1)])[topic].result(20)
        producer.produce(topic, topic.encode())
    assert producer.flush(30) == 0

    def ask(sql: str) -> list[tuple[Any, ...]]:
        wish = QueryWish(sql=sql, bootstrap=spark_node.kafka)
        try:
            frame = query_topics(spark, sql, lambda topic: topic_frame(spark, wish, topic, (None, None)))
            return [tuple(map(plain, row)) for row in fetch(frame, 0)[1]]
        finally:
            for name in ("Capitals", "capitals", "Alone"):
                spark.catalog.dropTempView(name)

    # The one that is found first has a name before the others are known.
    tables = "FROM Alone, Capitals AS upper, capitals AS lower"
    assert ask(f"SELECT Alone.value, upper.value, lower.value {tables}") == [("Alone", "Capitals", "capitals")]
    assert ask("SELECT value FROM capitals UNION ALL SELECT value FROM Capitals") == [("capitals",), ("Capitals",)]
    # One of them alone, or none: as SQL is written everywhere.
    assert ask("SELECT VALUE, Capitals.Topic FROM Capitals") == [("Capitals", "Capitals")]
    assert ask("SELECT ALONE.value FROM Alone") == [("Alone",)]
    assert spark.conf.get("spark.sql.caseSensitive") == "false"
