"""Spark's own Kafka connector reads and writes a node unchanged: tables, streams, and real-time mode.

Its jars come from Maven Central; where that is out of reach, nothing is tried, and a sentence says why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from support.node_process import NodeProcess
from support.spark import kafka_script as spark_kafka_script
from support.spark.kafka_jars import find_connector
from support.spark.topics import create


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_connector_of_spark_reads_and_writes(spark_node: NodeProcess, tmp_path: Path) -> None:
    jars = find_connector(version("pyspark"))
    if isinstance(jars, str):
        pytest.skip(jars)
    for topic in ("connector-batch", "connector-stream", "connector-real-time"):
        create(spark_node.kafka, topic, 2)
    arguments = (spark_node.kafka, str(tmp_path), ",".join(map(str, jars)))
    done = subprocess.run(
        [sys.executable, spark_kafka_script.__file__, *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-6000:]
    told = json.loads(done.stdout.splitlines()[-1])
    wanted = sorted(f"value-{number}" for number in range(spark_kafka_script.ROWS))
    assert {name: len(rows) for name, rows in told.items()} == dict.fromkeys(told, len(wanted))
    assert all(rows == wanted for rows in told.values())
