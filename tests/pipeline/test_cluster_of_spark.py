"""The same query on a real cluster: a master, two workers, and one of them killed while it stages."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from support.node_process import NodeProcess
from support.spark import driver as spark_driver
from support.spark.cluster import SparkCluster
from support.spark.scene import Scene
from support.spark.topics import SECONDS_MAX

# The second run of a scene stands at the point `staging`, in the second batch.
STAGING = 1


@pytest.mark.slow
def test_a_killed_worker_of_a_cluster_loses_and_doubles_no_row(spark_node: NodeProcess, tmp_path: Path) -> None:
    scene = Scene(spark_node, tmp_path, "cluster", STAGING)
    assert scene.point == "staging"
    with SparkCluster(tmp_path, workers=2) as cluster:
        arguments = (spark_node.kafka, scene.source, scene.target, str(tmp_path), scene.fault, cluster.master)
        driver = spark_driver.run_query(tmp_path / "driver.log", *arguments)
        try:
            victim = scene.await_the_point(lambda: driver.poll() is None)
            cluster.kill_worker_of(victim)
            assert cluster.worker_count == 1
            assert driver.wait(SECONDS_MAX) == 0, (tmp_path / "driver.log").read_text()[-4000:]
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait(20)
        scene.assert_each_row_once()
