"""SIGKILL between the first staged row and the commit: of the driver, of a worker, of the node. Every row once.

A few runs of each here; `make chaos` makes it twenty (PENSTOCK_SPARK_KILLS).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from penstock.domain.partitioner import partition_for_key
from support import spark_driver
from support.node_process import NodeProcess
from support.spark_topics import (
    SECONDS_MAX,
    create,
    fill_numbered,
    read_all,
    read_settled,
    wait_until,
    written,
)

RUNS: Final = int(os.environ.get("PENSTOCK_SPARK_KILLS", "2"))
ROWS: Final = 3_000
BATCH: Final = 1_000
PARTITIONS: Final = 3
STAGE: Final = "__spark_stage"
# Where the victim is when it dies: after the first staged row, and before the commit.
POINTS: Final = ("copying", "staging", "copied", "staged")
runs = pytest.mark.parametrize("run", range(RUNS))


class Scene:
    """One run: topics of its own, a batch in which the victim dies, a point at which it does."""

    def __init__(self, node: NodeProcess, directory: Path, name: str, run: int) -> None:
        self.node = node
        self.directory = directory
        self.point = POINTS[run % len(POINTS)]
        # Every pair of a point and a batch, in the end.
        self.batch = (run + run // len(POINTS)) % (ROWS // BATCH)
        self.fault = f"hang:{self.point}:{self.batch}"
        self.source, self.target = f"{name}-{run}-in", f"{name}-{run}-out"
        create(node.kafka, self.source, 2)
        create(node.kafka, self.target, PARTITIONS)
        fill_numbered(node.kafka, self.source, ROWS, 2)
        self.staged_before = self._staged()

    def start(self, spark: Any) -> Any:
        topics = (self.source, self.target)
        return spark_driver.start_query(spark, self.node.kafka, *topics, str(self.directory), self.fault)

    def await_the_point(self, is_alive: Any) -> int:
        """The process that is there."""
        struck = self.directory / "struck"
        wait_until(lambda: struck.exists() or not is_alive(), f"the point {self.point}")
        assert is_alive(), "it ended by itself"
        self.assert_between_stage_and_commit()
        return int(struck.read_text())

    def assert_between_stage_and_commit(self) -> None:
        earlier = self.batch * BATCH
        assert self._staged() - self.staged_before > earlier, "nothing of this batch is staged yet"
        committed = read_settled(self.node.kafka, self.target, earlier)
        assert len(committed) == earlier, "the batch is committed already"
        # Each batch before left a marker in each partition.
        copied = written(self.node.kafka, self.target) - earlier - self.batch * PARTITIONS
        wanted = {"staging": copied == 0, "staged": copied == 0, "copying": copied > 0, "copied": copied == BATCH}
        assert wanted[self.point], f"{copied} rows are copied at the point {self.point}"

    def let_go(self) -> None:
        (self.directory / "go").touch()

    def assert_each_row_once(self) -> None:
        wanted = sorted(
            (message.key(), message.value(), message.headers()) for message in read_all(self.node.kafka, self.source)
        )
        found = read_settled(self.node.kafka, self.target, ROWS)
        assert sorted((message.key(), message.value(), message.headers()) for message in found) == wanted
        assert len(wanted) == ROWS
        for message in found:
            assert message.partition() == partition_for_key(message.key(), PARTITIONS)

    def _staged(self) -> int:
        try:
            return written(self.node.kafka, STAGE)
        except KeyError:
            return 0


@runs
def test_a_killed_driver_goes_on_where_its_last_commit_was(
    spark: Any, spark_node: NodeProcess, tmp_path: Path, run: int
) -> None:
    scene = Scene(spark_node, tmp_path, "driver", run)
    script = Path(spark_driver.__file__)
    command = [sys.executable, str(script), spark_node.kafka, scene.source, scene.target, str(tmp_path), scene.fault]
    with (tmp_path / "driver.log").open("wb") as log:
        # A group of its own: the JVM, which is the driver, dies with it.
        driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        scene.await_the_point(lambda: driver.poll() is None)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(20)
    assert scene.start(spark).awaitTermination(SECONDS_MAX)
    scene.assert_each_row_once()


@runs
def test_a_killed_worker_is_replaced(spark: Any, spark_node: NodeProcess, tmp_path: Path, run: int) -> None:
    scene = Scene(spark_node, tmp_path, "worker", run)
    query = scene.start(spark)
    victim = scene.await_the_point(lambda: query.isActive)
    os.kill(victim, signal.SIGKILL)
    if scene.point == "staging":
        # A task of Spark: the next attempt does it.
        assert query.awaitTermination(SECONDS_MAX)
    else:
        # The process that commits is the driver's: its query fails, and begins again from its checkpoint.
        with pytest.raises(Exception, match="STREAM_FAILED"):
            query.awaitTermination(SECONDS_MAX)
        assert scene.start(spark).awaitTermination(SECONDS_MAX)
    scene.assert_each_row_once()


@runs
def test_a_killed_node_is_waited_for(spark: Any, tmp_path: Path, run: int) -> None:
    with NodeProcess(tmp_path / "node") as node:
        scene = Scene(node, tmp_path, "node", run)
        query = scene.start(spark)
        scene.await_the_point(lambda: query.isActive)
        node.kill()
        scene.let_go()
        node.start()
        assert query.awaitTermination(SECONDS_MAX)
        scene.assert_each_row_once()
