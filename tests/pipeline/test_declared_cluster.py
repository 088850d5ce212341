"""The same file, unchanged, by the command line: on a Spark cluster, until a signal, with one sentence if it fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from support.node_process import NodeProcess
from support.spark.cluster import SparkCluster
from support.spark.declared_scene import send
from support.spark.topics import SECONDS_MAX, create, read_all, read_settled, wait_until

SETTINGS = ("--conf", "spark.driver.memory=700m", "--conf", "spark.executor.memory=512m")
SETTINGS += ("--conf", "spark.sql.shuffle.partitions=2")


def penstock(node: NodeProcess, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.main", "pipeline", *arguments],
        env=environment(node, directory),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )


def environment(node: NodeProcess, directory: Path) -> dict[str, str]:
    return {**os.environ, "PENSTOCK_BOOTSTRAP": node.kafka, "PENSTOCK_PIPELINES": str(directory / "state")}


@contextmanager
def running(node: NodeProcess, directory: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "penstock.main", "pipeline", "run", *arguments]
    with (directory / "run.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment(node, directory), start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


def write(directory: Path, topic: str) -> Path:
    file = directory / "orders.yaml"
    file.write_text(f"""
pipelines:
  {topic}:
    sources:
      orders: {{topic: {topic}, schema: 'id INT, amount DOUBLE'}}
    sql: SELECT id, amount * 2 AS amount FROM orders
    sink: {{topic: {topic}-out, key: id, partitions: 1}}
    on_bad_row: fail
""")
    return file


def test_a_pipeline_on_a_cluster_runs_until_a_signal_and_then_ends_after_its_batch(
    spark_node: NodeProcess, tmp_path: Path, topic: str
) -> None:
    kafka = spark_node.kafka
    create(kafka, topic, 2)
    send(kafka, topic, [{"id": number, "amount": 1.5} for number in range(50)])
    file = write(tmp_path, topic)
    with SparkCluster(tmp_path, workers=2) as cluster:
        arguments = (str(file), "--master", cluster.master, *SETTINGS)
        with running(spark_node, tmp_path, *arguments) as process:
            try:
                wait_until(lambda: process.poll() is not None or _count(kafka, topic) == 50, "the first rows")
                send(kafka, topic, [{"id": number, "amount": 1.5} for number in range(50, 60)])
                wait_until(lambda: process.poll() is not None or _count(kafka, topic) == 60, "the later rows")
                assert _status(spark_node, tmp_path, topic)["state"] == "running"
            except AssertionError as error:
                raise AssertionError((tmp_path / "run.log").read_text()[-4000:]) from error
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS_MAX) == 0, (tmp_path / "run.log").read_text()[-4000:]
    rows = [json.loads(message.value() or b"") for message in read_settled(kafka, f"{topic}-out", 60)]
    assert sorted(row["id"] for row in rows) == list(range(60))
    assert {row["amount"] for row in rows} == {3.0}
    told = _status(spark_node, tmp_path, topic)
    assert (told["state"], told["rows_in"], told["rows_out"], told["lag"]) == ("stopped", 60, 60, 0)
    assert told["master"].startswith("spark://")
    log = (tmp_path / "run.log").read_text()
    assert "pipeline started" in log
    assert "pipeline stopped" in log
    assert "Exception" not in log


def _count(kafka: str, topic: str) -> int:
    from confluent_kafka.admin import AdminClient

    known = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=20).topics
    return len(read_all(kafka, f"{topic}-out")) if f"{topic}-out" in known else 0


def _status(node: NodeProcess, directory: Path, name: str) -> dict[str, Any]:
    answer = penstock(node, directory, "status", name, "--json")
    assert answer.returncode == 0, answer.stderr
    (found,) = json.loads(answer.stdout)["pipelines"]
    return dict(found)


def test_a_pipeline_that_fails_says_one_sentence_and_where_the_rest_is(
    spark_node: NodeProcess, tmp_path: Path, topic: str
) -> None:
    create(spark_node.kafka, topic, 1)
    send(spark_node.kafka, topic, [{"id": 1}, b"{oh"])
    answer = penstock(
        spark_node, tmp_path, "run", str(write(tmp_path, topic)), "--once", "--master", "local[2]", *SETTINGS
    )
    assert answer.returncode == 1
    last = answer.stderr.strip().splitlines()[-1]
    log_file = tmp_path / "state" / topic / "failure.log"
    assert last == (
        f"penstock: pipeline {topic!r} failed: bad row in source 'orders', at offset 1 of partition 0 of topic "
        f"{topic!r}: no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1): {{oh "
        f"(all of it: {log_file})"
    )
    assert "Traceback" not in answer.stderr
    assert "\tat " not in answer.stderr
    assert log_file.exists()
    listed = json.loads(penstock(spark_node, tmp_path, "list", "--json").stdout)["pipelines"]
    assert [found["state"] for found in listed if found["name"] == topic] == ["failed"]
    answer = penstock(spark_node, tmp_path, "validate", str(tmp_path / "orders.yaml"), "--syntax", "--name", "nobody")
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "there is no pipeline 'nobody' in the file" in answer.stderr
