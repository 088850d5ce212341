"""`penstock archive`: each message of a topic is in the Delta table exactly once, whatever fails on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.pipeline.archive.job import ArchiveRequest, start_archive
from penstock.pipeline.archive.snapshot import archive_options, open_archive, ranges_of
from penstock.pipeline.table import upkeep as table_upkeep
from penstock.pipeline.table import writer as table_writer
from support.node_process import NodeProcess
from support.spark import faulty_table

SECONDS_MAX = 180
MIDNIGHT_MS = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
PARTITIONS = 2
ROWS = 1_200


def fill(node: NodeProcess, topic: str, start: int, end: int, *, create: bool = True) -> None:
    """Numbered messages around a midnight: the first half of them is of the day before."""
    if create:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        # They are old, and no node should come in between.
        admin.create_topics([NewTopic(topic, PARTITIONS, config={"retention.ms": "-1"})])[topic].result(20)
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(start, end):
        producer.produce(
            topic,
            None if number % 100 == 99 else json.dumps({"id": number, "name": f"n{number}"}).encode(),
            None if number % 3 == 0 else f"k{number}".encode(),
            number % PARTITIONS,
            timestamp=MIDNIGHT_MS + (number - ROWS // 2) * 1000,
            headers=[("number", str(number).encode())],
        )
    assert producer.flush(30) == 0


def archive(spark: Any, node: NodeProcess, topic: str, path: Path, **options: Any) -> int:
    run = start_archive(spark, ArchiveRequest(node.kafka, (topic,), str(path), is_once=True, **options))
    try:
        assert run.query.awaitTermination(SECONDS_MAX)
        run.report()
        return run.row_count
    finally:
        run.stop()


def numbers_in(path: Path) -> list[int]:
    """By delta-rs: what other readers of Delta see."""
    import pyarrow as pa
    from deltalake import DeltaTable

    rows = pa.table(DeltaTable(str(path)).to_pyarrow_table(columns=["headers"]))["headers"].to_pylist()
    return sorted(int(headers[0]["value"]) for headers in rows)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


def test_an_archive_holds_what_the_topic_holds_by_day_and_goes_on_where_it_ended(
    spark: Any, spark_node: NodeProcess, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    fill(spark_node, "kept", 0, ROWS)
    schema = "id bigint, name string"
    assert archive(spark, spark_node, "kept", path, value_schema=schema) == ROWS
    assert archive(spark, spark_node, "kept", path, value_schema=schema) == 0
    fill(spark_node, "kept", ROWS, ROWS + 100, create=False)
    assert archive(spark, spark_node, "kept", path, value_schema=schema) == 100
    assert numbers_in(path) == list(range(ROWS + 100))
    for row in table_writer.read_table(spark, str(path)).where("offset in (0, 49, 300)").collect():
        number = int(row.headers[0].value)
        assert (row.topic, row.partition, row.offset) == ("kept", number % PARTITIONS, number // PARTITIONS)
        assert row.key == (None if number % 3 == 0 else f"k{number}".encode())
        value = None if number % 100 == 99 else {"id": number, "name": f"n{number}"}
        assert (None if row.value is None else json.loads(row.value)) == value
        assert (row.id, row.name) == ((None, None) if value is None else (number, f"n{number}"))
        assert row.date.isoformat() == ("2026-02-28" if number < ROWS // 2 else "2026-03-01")
    assert_told(spark_node, path)


def assert_told(node: NodeProcess, path: Path) -> None:
    """What a reader may pass files over by, what `show` shows, and how far the group is."""
    snapshot = open_archive(str(path))
    assert snapshot is not None
    for file in snapshot.files:
        assert file.row_count == file.offset_last - file.offset_first + 1
        first = MIDNIGHT_MS + (file.offset_first * PARTITIONS + file.partition - ROWS // 2) * 1000
        assert file.timestamp_ms_first == first
    found = [(each.partition, each.first_offset, each.end_offset, each.row_count) for each in ranges_of(snapshot)]
    assert found == [(0, 0, 650, 650), (1, 0, 650, 650)]
    admin = AdminClient({"bootstrap.servers": node.kafka})
    asked = ConsumerGroupTopicPartitions("penstock-archive", [TopicPartition("kept", 0), TopicPartition("kept", 1)])
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    assert [place.offset for place in answer.result(20).topic_partitions] == [650, 650]


@pytest.mark.parametrize("fault", ["raise-before", "raise-after"])
def test_a_failed_commit_is_made_up_for_by_the_next_run(
    spark: Any, spark_node: NodeProcess, tmp_path: Path, fault: str
) -> None:
    path = tmp_path / "archive"
    fill(spark_node, fault, 0, ROWS)
    Path(f"{path}.fault").write_text(f"{fault} 1")
    run = faulty_table.start(spark, spark_node.kafka, fault, str(path))
    with pytest.raises(Exception, match="a fault on order"):
        run.query.awaitTermination(SECONDS_MAX)
    run.stop()
    assert len(numbers_in(path)) == (500 if fault == "raise-before" else 1000)
    archive(spark, spark_node, fault, path)
    assert numbers_in(path) == list(range(ROWS))


def test_a_killed_driver_leaves_a_table_that_the_next_run_completes(
    spark: Any, spark_node: NodeProcess, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    fill(spark_node, "killed", 0, ROWS)
    Path(f"{path}.fault").write_text("hang-after 1")
    kill_when_struck(tmp_path, spark_node.kafka, "killed", str(path))
    # Where the kill fell: the table has the batch, and nobody else knows.
    assert len(numbers_in(path)) == 1000
    archive(spark, spark_node, "killed", path)
    assert numbers_in(path) == list(range(ROWS))


def kill_when_struck(tmp_path: Path, bootstrap: str, topic: str, path: str) -> None:
    driver = faulty_table.run_archive(tmp_path / "driver.log", bootstrap, topic, path)
    try:
        wait_until(lambda: Path(f"{path}.struck").exists() or driver.poll() is not None, "the fault")
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-4000:]
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(20)


@pytest.mark.slow
def test_drivers_killed_at_any_moment_leave_each_message_once(
    spark: Any, spark_node: NodeProcess, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    fill(spark_node, "chaos", 0, 10 * ROWS)
    moments = random.Random(7)
    for _ in range(int(os.environ.get("PENSTOCK_ARCHIVE_KILLS", "8"))):
        before = commits_in(path)
        driver = faulty_table.run_archive(tmp_path / "driver.log", spark_node.kafka, "chaos", str(path))
        try:
            wait_for_commit(path, before, driver)
            # At work, and somewhere in a batch.
            time.sleep(moments.uniform(0, 1.5))
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(20)
    archive(spark, spark_node, "chaos", path)
    assert numbers_in(path) == list(range(10 * ROWS))


def wait_for_commit(path: Path, before: int, driver: Any) -> None:
    wait_until(lambda: commits_in(path) > before or driver.poll() is not None, "a commit")


def commits_in(path: Path) -> int:
    """Without reading anything: the driver needs the machine."""
    return len(list((path / "_delta_log").glob("*.json")))


def test_small_files_are_put_together_and_old_days_go_without_coming_back(
    spark: Any, spark_node: NodeProcess, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    fill(spark_node, "compacted", 0, ROWS)
    archive(spark, spark_node, "compacted", path, rows_per_batch=ROWS // 8, compact_every=8)
    snapshot = open_archive(str(path))
    assert snapshot is not None
    assert len(snapshot.files) == 4
    assert numbers_in(path) == list(range(ROWS))
    table_upkeep.keep_days(str(path), keep_ms=0, now_ms=MIDNIGHT_MS)
    assert numbers_in(path) == list(range(ROWS // 2, ROWS))
    assert archive(spark, spark_node, "compacted", path) == 0
    assert table_upkeep.compact(archive_options(str(path))).files_before == 0
