"""SIGKILL between the first staged row and the commit: of the driver, of a worker, of the node. Every row once.

One run of each here; `make chaos` makes it twenty (PENSTOCK_SPARK_KILLS).
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from support.node_process import NodeProcess
from support.spark import driver as spark_driver
from support.spark.scene import Scene
from support.spark.topics import SECONDS_MAX

RUNS: Final = int(os.environ.get("PENSTOCK_SPARK_KILLS", "1"))
runs = pytest.mark.parametrize("run", range(RUNS))


@runs
def test_a_killed_driver_goes_on_where_its_last_commit_was(
    spark: Any, spark_node: NodeProcess, tmp_path: Path, run: int
) -> None:
    scene = Scene(spark_node, tmp_path, "driver", run)
    arguments = (spark_node.kafka, scene.source, scene.target, str(tmp_path), scene.fault)
    driver = spark_driver.run_query(tmp_path / "driver.log", *arguments)
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
