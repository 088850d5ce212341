"""How far a stream's next trigger goes, and what its group is told: the driver's side, mostly without a Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.pipeline.connector.spans import SpanPartition
from penstock.pipeline.connector.stream import StreamReader
from penstock.pipeline.source.options import OptionError, parse_options
from penstock.pipeline.source.row_batches import DataLossError
from support.node_process import NodeProcess
from support.spark.topics import SECONDS_MAX, create, delete, fill_one, group_offsets, widen

ALL = ReadAllAvailable()


@pytest.fixture
def node(spark_node: NodeProcess) -> NodeProcess:
    return spark_node


@pytest.fixture
def readers() -> Iterator[list[StreamReader]]:
    opened: list[StreamReader] = []
    yield opened
    for reader in opened:
        reader.stop()


def open_reader(
    node: NodeProcess, readers: list[StreamReader], monotonic: Callable[[], float] = time.monotonic, **options: str
) -> StreamReader:
    given = {"kafka.bootstrap.servers": node.kafka, "startingOffsets": "earliest", **options}
    readers.append(StreamReader(parse_options(given, is_streaming=True), monotonic))
    return readers[-1]


def test_a_trigger_takes_its_share_of_every_partition(node: NodeProcess, readers: list[StreamReader]) -> None:
    create(node.kafka, "shares", 2)
    fill_one(node.kafka, "shares", 300)
    fill_one(node.kafka, "shares", 100, partition=1)
    reader = open_reader(node, readers, subscribe="shares", maxOffsetsPerTrigger="40")
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(40))
    assert end == {"shares": {"0": 30, "1": 10}}
    assert reader.latestOffset(end, ALL) == {"shares": {"0": 300, "1": 100}}
    assert reader.reportLatestOffset() == {"shares": {"0": 300, "1": 100}}


def test_too_few_rows_wait_for_more_or_for_the_delay(node: NodeProcess, readers: list[StreamReader]) -> None:
    create(node.kafka, "few", 1)
    now = 1_000.0
    options = {"subscribe": "few", "minOffsetsPerTrigger": "50", "maxTriggerDelay": "30s"}
    reader = open_reader(node, readers, lambda: now, **options)
    start = reader.initialOffset()
    fill_one(node.kafka, "few", 49)
    assert reader.latestOffset(start, ALL) == start
    now += 29.0
    assert reader.latestOffset(start, ALL) == start
    fill_one(node.kafka, "few", 1)
    assert reader.latestOffset(start, ALL) == {"few": {"0": 50}}
    fill_one(node.kafka, "few", 1)
    assert reader.latestOffset({"few": {"0": 50}}, ALL) == {"few": {"0": 50}}
    now += 31.0
    assert reader.latestOffset({"few": {"0": 50}}, ALL) == {"few": {"0": 51}}


def test_what_is_available_now_ends_there(node: NodeProcess, readers: list[StreamReader]) -> None:
    create(node.kafka, "now", 1)
    fill_one(node.kafka, "now", 10)
    reader = open_reader(node, readers, subscribe="now", minOffsetsPerTrigger="1000")
    reader.prepareForTriggerAvailableNow()
    fill_one(node.kafka, "now", 10)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert end == {"now": {"0": 10}}
    assert reader.latestOffset(end, ALL) == end


def test_a_partition_that_is_added_is_read_from_its_beginning(node: NodeProcess, readers: list[StreamReader]) -> None:
    create(node.kafka, "wider", 1)
    fill_one(node.kafka, "wider", 5)
    reader = open_reader(node, readers, subscribePattern="wide.*")
    start = reader.initialOffset()
    widen(node.kafka, "wider", 2)
    fill_one(node.kafka, "wider", 3, partition=1)
    end = reader.latestOffset(start, ALL)
    assert end == {"wider": {"0": 5, "1": 3}}
    (task,) = reader.partitions(start, end)
    assert isinstance(task, SpanPartition)
    assert [(span.partition, span.start, span.end) for span in task.spans] == [(0, 0, 5), (1, 0, 3)]


def test_a_topic_that_was_made_anew_is_told_or_read_on(node: NodeProcess, readers: list[StreamReader]) -> None:
    create(node.kafka, "anew", 1)
    fill_one(node.kafka, "anew", 10)
    reader = open_reader(node, readers, subscribe="anew")
    known = reader.latestOffset(reader.initialOffset(), ALL)
    delete(node.kafka, "anew")
    create(node.kafka, "anew", 1)
    fill_one(node.kafka, "anew", 4)
    with pytest.raises(DataLossError, match=r"ends at offset 4, and it was read up to 10.*failOnDataLoss=false"):
        reader.latestOffset(known, ALL)
    lenient = open_reader(node, readers, subscribe="anew", failOnDataLoss="false")
    end = lenient.latestOffset(known, ALL)
    assert end == {"anew": {"0": 4}}
    assert lenient.partitions(known, end) == []
    fill_one(node.kafka, "anew", 2)
    assert lenient.latestOffset(end, ALL) == {"anew": {"0": 6}}


def test_a_topic_that_is_gone_is_told(node: NodeProcess, readers: list[StreamReader]) -> None:
    create(node.kafka, "goner-a", 1)
    create(node.kafka, "goner-b", 1)
    reader = open_reader(node, readers, subscribePattern="goner-.*")
    known = reader.latestOffset(reader.initialOffset(), ALL)
    delete(node.kafka, "goner-b")
    with pytest.raises(DataLossError, match="topic 'goner-b' was deleted"):
        reader.latestOffset(known, ALL)
    lenient = open_reader(node, readers, subscribePattern="goner-.*", failOnDataLoss="false")
    assert lenient.latestOffset(known, ALL) == known


def test_the_beginning_may_be_a_moment(node: NodeProcess, readers: list[StreamReader]) -> None:
    create(node.kafka, "moments", 2, retention_ms="-1")
    for timestamp in (1_000, 2_000, 3_000):
        fill_one(node.kafka, "moments", 1, timestamp=timestamp)
    fill_one(node.kafka, "moments", 1, partition=1, timestamp=1_500)
    with pytest.raises(OptionError, match="partition 1 of 'moments' has no message at or after 1600"):
        open_reader(node, readers, subscribe="moments", startingTimestamp="1600").initialOffset()
    lenient = {"startingOffsetsByTimestampStrategy": "latest"}
    reader = open_reader(node, readers, subscribe="moments", startingTimestamp="1600", **lenient)
    assert reader.initialOffset() == {"moments": {"0": 1, "1": 1}}
    places = json.dumps({"moments": {"0": 2_500, "1": 0}})
    reader = open_reader(node, readers, subscribe="moments", startingOffsetsByTimestamp=places)
    assert reader.initialOffset() == {"moments": {"0": 2, "1": 0}}
    places = json.dumps({"moments": {"0": -1, "1": -2}})
    reader = open_reader(node, readers, assign='{"moments": [0, 1]}', startingOffsets=places)
    assert reader.initialOffset() == {"moments": {"0": 3, "1": 0}}


def test_a_node_that_restarts_between_two_triggers_is_not_noticed(tmp_path: Path, readers: list[StreamReader]) -> None:
    with NodeProcess(tmp_path) as own_node:
        create(own_node.kafka, "survives", 1)
        fill_one(own_node.kafka, "survives", 5)
        reader = open_reader(own_node, readers, subscribe="survives", queryName="survivor")
        start = reader.initialOffset()
        own_node.kill()
        own_node.start()
        end = reader.latestOffset(start, ALL)
        assert end == {"survives": {"0": 5}}
        own_node.kill()
        own_node.start()
        # Nothing more is there: now the group is told, however short ago it was told something else.
        assert reader.latestOffset(end, ALL) == end
        assert group_offsets(own_node.kafka, "penstock-spark-survivor", "survives", 1) == [5]


def test_the_lag_of_the_last_trigger_is_shown(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    create(node.kafka, "lag", 2)
    fill_one(node.kafka, "lag", 70)
    fill_one(node.kafka, "lag", 30, partition=1)
    query = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", node.kafka)
        .option("subscribe", "lag")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "40")
        .option("queryName", "last")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS_MAX)
    assert len(query.recentProgress) >= 3
    assert group_offsets(node.kafka, "penstock-spark-last", "lag", 2) == [70, 30]
