"""The group that shows how far a query is has the query's name, which only Spark's tasks know."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import list_groups
from penstock.net.address import parse_addresses
from penstock.pipeline.archive.source import ArchivedSpan
from penstock.pipeline.connector.spans import SpanPartition
from penstock.pipeline.connector.stream import StreamReader
from penstock.pipeline.sink.options import QUERY_ID_PROPERTY
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.options import parse_options
from support.node_process import NodeProcess
from support.spark.topics import SECONDS_MAX, create, fill_one, group_offsets

ALL: Final = ReadAllAvailable()
ODD_NAME: Final = "Größe a/b <br/>id = 7<br/>\nrunId = 漢 'x'"


@pytest.fixture
def node(spark_node: NodeProcess) -> NodeProcess:
    return spark_node


def groups(node: NodeProcess) -> list[str]:
    async def ask() -> list[str]:
        async with ClusterClient(parse_addresses(node.kafka)) as client:
            return [listed.group for listed in await list_groups(client)]

    return source_positions.run(ask())


def mailboxes(node: NodeProcess) -> list[str]:
    return [group for group in groups(node) if "-name-wanted-" in group]


def rows_of(spark: Any, node: NodeProcess, topic: str, **options: str) -> Any:
    given = {"kafka.bootstrap.servers": node.kafka, "subscribe": topic, "startingOffsets": "earliest", **options}
    return spark.readStream.format("penstock").options(**given).load()


def start(frame: Any, checkpoint: Path, name: str | None = None) -> Any:
    writer = frame.writeStream.format("noop") if hasattr(frame, "writeStream") else frame
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return (writer if name is None else writer.queryName(name)).start()


def run(frame: Any, checkpoint: Path, name: str | None = None) -> Any:
    query = start(frame, checkpoint, name)
    assert query.awaitTermination(SECONDS_MAX)
    return query


def test_a_named_query_is_found_by_its_name_and_again_after_a_restart(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    create(node.kafka, "named", 2)
    fill_one(node.kafka, "named", 30)
    fill_one(node.kafka, "named", 20, partition=1)
    run(rows_of(spark, node, "named"), tmp_path, "totals")
    assert group_offsets(node.kafka, "penstock-spark-totals", "named", 2) == [30, 20]
    fill_one(node.kafka, "named", 5, partition=1)
    run(rows_of(spark, node, "named"), tmp_path, "totals")
    assert group_offsets(node.kafka, "penstock-spark-totals", "named", 2) == [30, 25]
    assert "penstock-spark" not in groups(node)
    assert mailboxes(node) == []


def test_a_query_without_a_name_is_found_by_its_id(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    create(node.kafka, "unnamed", 1)
    for count in (10, 20):
        fill_one(node.kafka, "unnamed", 10)
        query = run(rows_of(spark, node, "unnamed"), tmp_path)
        assert group_offsets(node.kafka, f"penstock-spark-{query.id}", "unnamed", 1) == [count]


def test_a_job_that_is_described_otherwise_is_found_by_the_id_of_its_query(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    create(node.kafka, "described", 1)
    fill_one(node.kafka, "described", 10)

    def handle(frame: Any, _: int) -> None:
        frame.sparkSession.sparkContext.setJobDescription("what my jobs do")
        assert frame.count() == 10

    query = run(rows_of(spark, node, "described").writeStream.foreachBatch(handle), tmp_path, "described")
    assert group_offsets(node.kafka, f"penstock-spark-{query.id}", "described", 1) == [10]


def test_two_queries_at_once_have_two_groups_and_a_name_may_be_odd(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    create(node.kafka, "shared", 1)
    fill_one(node.kafka, "shared", 40)
    plain = start(rows_of(spark, node, "shared", maxOffsetsPerTrigger="25"), tmp_path / "plain", "plain")
    odd = start(rows_of(spark, node, "shared", groupIdPrefix="team"), tmp_path / "odd", ODD_NAME)
    assert plain.awaitTermination(SECONDS_MAX)
    assert odd.awaitTermination(SECONDS_MAX)
    assert group_offsets(node.kafka, "penstock-spark-plain", "shared", 1) == [40]
    assert group_offsets(node.kafka, f"team-{ODD_NAME}", "shared", 1) == [40]
    assert mailboxes(node) == []


def test_both_sides_of_a_join_are_in_one_group(spark: Any, node: NodeProcess, tmp_path: Path) -> None:
    for topic, count in (("left", 7), ("right", 9)):
        create(node.kafka, topic, 1)
        fill_one(node.kafka, topic, count)
    left, right = (rows_of(spark, node, topic).select("value") for topic in ("left", "right"))
    run(left.join(right, "value"), tmp_path, "joined")
    assert group_offsets(node.kafka, "penstock-spark-joined", "left", 1) == [7]
    assert group_offsets(node.kafka, "penstock-spark-joined", "right", 1) == [9]
    assert mailboxes(node) == []


# -- without a Spark: the driver's side, and a task's


@pytest.fixture
def open_reader(node: NodeProcess) -> Iterator[Callable[..., StreamReader]]:
    opened: list[StreamReader] = []
    # Spark's own word for what a task is told of its query.
    context = TaskContext()
    context._localProperties = {QUERY_ID_PROPERTY: "direct"}

    def open_one(topic: str, monotonic: Callable[[], float] = time.monotonic, **options: str) -> StreamReader:
        given = {"kafka.bootstrap.servers": node.kafka, "subscribe": topic, "startingOffsets": "earliest", **options}
        opened.append(StreamReader(parse_options(given, is_streaming=True), monotonic))
        return opened[-1]

    yield open_one
    TaskContext._setTaskContext(None)
    for reader in opened:
        reader.stop()


def tasks_of(reader: StreamReader, begin: dict[str, Any], end: dict[str, Any]) -> list[SpanPartition]:
    tasks = [task for task in reader.partitions(begin, end) if isinstance(task, SpanPartition)]
    assert tasks
    return tasks


def test_one_task_is_asked_until_the_name_is_known(node: NodeProcess, open_reader: Callable[..., StreamReader]) -> None:
    create(node.kafka, "asked", 1)
    fill_one(node.kafka, "asked", 20)
    reader = open_reader("asked", minPartitions="4", groupIdPrefix="asking")
    begin, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL)
    tasks = tasks_of(reader, begin, end)
    assert [task.mailbox is not None for task in tasks] == [True, False, False, False]
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 20
    assert mailboxes(node) == [tasks[0].mailbox]
    assert reader.latestOffset(end, ALL) == end
    assert group_offsets(node.kafka, "asking-direct", "asked", 1) == [20]
    assert mailboxes(node) == []
    assert {task.mailbox for task in tasks_of(reader, begin, end)} == {None}


def test_a_query_whose_user_says_the_group_asks_no_task(
    node: NodeProcess, open_reader: Callable[..., StreamReader]
) -> None:
    create(node.kafka, "said", 1)
    fill_one(node.kafka, "said", 1)
    for options in ({"group": "mine"}, {"kafka.group.id": "mine"}, {"queryName": "mine"}):
        reader = open_reader("said", **options)
        begin = reader.initialOffset()
        assert [task.mailbox for task in tasks_of(reader, begin, reader.latestOffset(begin, ALL))] == [None]


def test_a_name_that_no_task_could_say_is_asked_for_again_and_no_row_is_lost(
    node: NodeProcess, open_reader: Callable[..., StreamReader]
) -> None:
    now = 1_000.0
    create(node.kafka, "again", 1)
    fill_one(node.kafka, "again", 3)
    reader = open_reader("again", lambda: now, groupIdPrefix="again")
    begin, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL)
    (task,) = tasks_of(reader, begin, end)
    # A group that no broker takes: the note is refused.
    task.mailbox = ""
    assert sum(batch.num_rows for batch in reader.read(task)) == 3
    reader.commit(end)
    assert [group for group in groups(node) if group.startswith("again")] == []
    assert [task.mailbox for task in tasks_of(reader, begin, end)] == [None]
    now += 1.1
    (task,) = tasks_of(reader, begin, end)
    assert sum(batch.num_rows for batch in reader.read(task)) == 3
    reader.commit(end)
    assert group_offsets(node.kafka, "again-direct", "again", 1) == [3]


def test_a_task_that_reads_files_alone_says_the_name_too(
    node: NodeProcess, open_reader: Callable[..., StreamReader], tmp_path: Path
) -> None:
    create(node.kafka, "files", 1)
    fill_one(node.kafka, "files", 3)
    reader = open_reader("files", groupIdPrefix="files")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    (task,) = tasks_of(reader, reader.initialOffset(), end)
    task.spans = ArchivedSpan(str(tmp_path), "files", 0, 0, 3, ())
    assert list(reader.read(task)) == []
    reader.commit(end)
    assert group_offsets(node.kafka, "files-direct", "files", 1) == [3]
