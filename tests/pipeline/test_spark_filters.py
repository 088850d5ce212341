"""Conditions on offset, time, partition and topic spare reading; a result is the same with and without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer

from support.node_process import NodeProcess
from support.spark.topics import create

ROWS = 4_000
PARTITIONS = 2
# 1 KB each: what a query itself asks and is told does not count beside it.
PAD = b"x" * 1_000
TIME_MS = 1_700_000_000_000
SWITCH = "spark.penstock.filterPushdown.enabled"
SWITCH_OF_SPARK = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def topic(spark_node: NodeProcess) -> str:
    """A thousand rows to a second, and one that is older than its neighbours."""
    name = "filtered"
    create(spark_node.kafka, name, PARTITIONS, retention_ms="-1")
    producer = Producer({"bootstrap.servers": spark_node.kafka, "batch.num.messages": 100})
    for number in range(ROWS):
        producer.produce(name, PAD, b"k", number % PARTITIONS, timestamp=TIME_MS + (5 if number == 3_998 else number))
        if number % 200 == 199:
            # Batches of at most a hundred, whatever the sender's timing.
            assert producer.flush(30) == 0
    return name


def read(spark: Any, node: NodeProcess, **options: str) -> Any:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", node.kafka)
    return reader.options(**options).load()


def sent_bytes(node: NodeProcess) -> int:
    with urlopen(f"http://{node.metrics}/metrics", timeout=20) as page:
        (line,) = [
            line for line in page.read().decode().splitlines() if line.startswith("penstock_kafka_sent_bytes_total ")
        ]
    return int(float(line.split()[1]))


# The condition, and how much of the topic may be fetched for it.
CONDITIONS = [
    ("offset >= 1900", 0.15),
    ("offset < 100", 0.15),
    ("offset between 500 and 599 and partition = 1", 0.15),
    ("offset in (3, 7, 12)", 0.12),
    ("partition = 0", 0.55),
    ("topic = 'another'", 0.01),
    (f"timestamp >= timestamp_millis({TIME_MS + 3_800})", 0.15),
    (f"timestamp > timestamp_millis({TIME_MS + 100_000})", 0.01),
    # A younger message may stand before an older one: rows are left out, but all is read.
    (f"timestamp < timestamp_millis({TIME_MS + 10})", 1.1),
    (f"timestamp = timestamp_millis({TIME_MS + 5}) and offset > 10", 1.1),
    ("offset % 7 = 3 and partition <> 1", 1.1),
    ("offset < 10 or partition = 1", 1.1),
    ("offset > 1500 and length(value) = 1000 and timestampType = 0", 0.3),
]


@pytest.mark.parametrize(("condition", "share_max"), CONDITIONS)
def test_a_condition_spares_reading_and_loses_no_row(
    spark: Any, spark_node: NodeProcess, topic: str, condition: str, share_max: float
) -> None:
    def rows(reaches_source: bool) -> tuple[list[Any], int]:
        spark.conf.set(SWITCH, str(reaches_source).lower())
        try:
            before = sent_bytes(spark_node)
            frame = read(spark, spark_node, subscribe=topic).where(condition)
            found = frame.select("partition", "offset", "timestamp").collect()
            return sorted(found), sent_bytes(spark_node) - before
        finally:
            spark.conf.unset(SWITCH)

    wanted, all_bytes = rows(False)
    found, fetched_bytes = rows(True)
    assert found == wanted
    assert all_bytes > ROWS * len(PAD)
    assert fetched_bytes < share_max * all_bytes


def test_a_condition_lies_within_the_options(spark: Any, spark_node: NodeProcess, topic: str) -> None:
    bounds = {
        "startingOffsets": f'{{"{topic}": {{"0": 100, "1": 1900}}}}',
        "endingTimestamp": str(TIME_MS + 3_900),
        "minPartitions": "6",
    }
    frame = read(spark, spark_node, subscribe=topic, **bounds).where("offset < 110 or offset >= 1940")
    # Offset 1940 of partition 1 is message 3881: the end lies at message 3900.
    found = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
    assert found == [(0, offset) for offset in (*range(100, 110), *range(1940, 1950))] + [
        (1, offset) for offset in range(1940, 1950)
    ]


def test_a_topic_without_messages_is_an_empty_table(spark: Any, spark_node: NodeProcess) -> None:
    create(spark_node.kafka, "never-written", 2)
    assert read(spark, spark_node, subscribe="never-written").count() == 0


# Several scans of one table, with different conditions and with none.
STATEMENTS = [
    ("select count(*) from filtered where partition = 1", 2_000),
    ("select count(*) from filtered", 4_000),
    ("select (select count(*) from filtered where offset < 3) + (select count(*) from filtered where offset < 5)", 16),
    ("select count(*) from (select * from filtered where offset < 3 union all select * from filtered)", 4_006),
    ("select count(*) from filtered a join filtered b using (partition, offset) where a.offset < 7", 14),
    ("with few as (select * from filtered where offset >= 1990) select count(*) from few where partition = 0", 10),
    ("select count(*) from filtered where offset in (select offset from filtered where offset < 4)", 8),
]


@pytest.mark.parametrize(
    "settings", [{}, {SWITCH_OF_SPARK: "true"}, {SWITCH_OF_SPARK: "true", SWITCH: "false"}], ids=str
)
def test_no_query_on_a_table_is_disturbed_by_the_conditions_of_another(
    spark: Any, spark_node: NodeProcess, topic: str, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        read(spark, spark_node, subscribe=topic).createOrReplaceTempView("filtered")
        for statement, count in [*STATEMENTS, *reversed(STATEMENTS)]:
            assert spark.sql(statement).first()[0] == count, statement
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_all_queries_on_a_table_see_the_same_messages_while_its_topic_grows(
    spark: Any, spark_node: NodeProcess
) -> None:
    create(spark_node.kafka, "growing", 1)
    producer = Producer({"bootstrap.servers": spark_node.kafka})
    for _ in range(10):
        producer.produce("growing", b"early")
    assert producer.flush(30) == 0
    table = read(spark, spark_node, subscribe="growing")
    assert table.where("offset >= 5").count() == 5
    producer.produce("growing", b"late")
    assert producer.flush(30) == 0
    assert table.where("offset >= 5").count() == 5
    assert table.count() == 10
    assert read(spark, spark_node, subscribe="growing").count() == 11


def test_a_cached_table_is_read_once(spark: Any, spark_node: NodeProcess, topic: str) -> None:
    table = read(spark, spark_node, subscribe=topic).select("partition", "offset").cache()
    try:
        assert table.count() == ROWS
        before = sent_bytes(spark_node)
        assert table.where("offset < 10").count() == 20
        assert sent_bytes(spark_node) - before < len(PAD)
    finally:
        table.unpersist()


def test_a_topic_that_is_missing_is_told_as_ever(spark: Any, spark_node: NodeProcess) -> None:
    with pytest.raises(Exception, match="'never-made'"):
        read(spark, spark_node, subscribe="never-made").where("offset > 3").count()


def test_moments_of_either_class_of_java_spare_reading(spark: Any, spark_node: NodeProcess, topic: str) -> None:
    late = f"timestamp >= timestamp_micros({TIME_MS + 3_900}001)"
    for is_java_8 in ("true", "false"):
        spark.conf.set("spark.sql.datetime.java8API.enabled", is_java_8)
        try:
            before = sent_bytes(spark_node)
            assert read(spark, spark_node, subscribe=topic).where(late).count() == 98
            assert sent_bytes(spark_node) - before < 0.15 * ROWS * len(PAD)
        finally:
            spark.conf.unset("spark.sql.datetime.java8API.enabled")


def test_threads_share_a_table(spark: Any, spark_node: NodeProcess, topic: str) -> None:
    table = read(spark, spark_node, subscribe=topic)

    def count(number: int) -> int:
        frame = table if number % 3 == 0 else table.where(f"offset < {number * 10}")
        return int(frame.count())

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(count, range(12), timeout=120))
    assert found == [ROWS if number % 3 == 0 else number * 20 for number in range(12)]
