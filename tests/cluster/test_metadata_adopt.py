"""Metadata that are empty, or were put back from an older copy: nodes refuse them, and go on when they are adopted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeFailedError, NodeProcess
from support.programs.etcd import EtcdCluster, require_etcd

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]

PATIENCE_SECONDS = 30.0


def adopt(directory: Path, metadata: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock.main", "metadata", "adopt", "--data-dir", str(directory)]
    environment = {**os.environ, "PENSTOCK_METADATA__ALLOW_OLD_ETCD": "true"}
    return subprocess.run(
        [*command, "--metadata", metadata, *options], capture_output=True, text=True, check=False, env=environment
    )


def write(node: NodeProcess, topic: str, *values: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    if topic not in admin.list_topics(timeout=10).topics:
        admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(timeout=20)
    producer = Producer({"bootstrap.servers": node.kafka, "acks": "all", "message.timeout.ms": 15_000})
    failed: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, callback=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(20) == 0
    assert failed == []


def read(node: NodeProcess, topic: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[str] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while len(values) < count and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    consumer.close()
    return values


def test_store_that_is_behind_is_refused_and_adopted(tmp_path: Path) -> None:
    metadata = f"sqlite:{tmp_path / 'metadata.sqlite'}"
    node = NodeProcess(tmp_path / "node", arguments=("--metadata", metadata))
    with node:
        write(node, "orders", "a")
        assert node.terminate() == 0
        kept = {path: path.read_bytes() for path in tmp_path.glob("metadata.sqlite*")}
        needless = adopt(node.data_directory, metadata, "--yes")
        assert needless.returncode == 0, needless.stderr
        assert "there is nothing to adopt" in needless.stdout
        node.start()
        write(node, "orders", "b")
        write(node, "late", "c")
        running = adopt(node.data_directory, metadata, "--yes", "--accept")
        assert running.returncode != 0, "the node has its directory"
        assert node.terminate() == 0
        for path in tmp_path.glob("metadata.sqlite*"):
            path.unlink()
        for path, data in kept.items():
            path.write_bytes(data)
        with pytest.raises(NodeFailedError, match="penstock metadata adopt"):
            node.start()

        shown = adopt(node.data_directory, metadata, "--dry-run", "--json")
        assert shown.returncode == 0, shown.stderr
        told = json.loads(shown.stdout)
        assert (told["is_done"], told["plan"]["generation"], told["plan"]["added"]) == (False, 2, ["late"])
        refused = adopt(node.data_directory, metadata, "--yes")
        assert refused.returncode != 0
        assert "--accept" in refused.stderr
        done = adopt(node.data_directory, metadata, "--yes", "--accept")
        assert done.returncode == 0, done.stderr
        assert "the metadata are in generation 2" in done.stdout + done.stderr
        node.start()
        write(node, "orders", "d")
        assert read(node, "orders", 3) == ["a", "b", "d"]
        assert read(node, "late", 1) == ["c"]
        # Nothing is left to be adopted, also after another start.
        assert node.terminate() == 0
        again = adopt(node.data_directory, metadata, "--yes")
        assert "there is nothing to adopt" in again.stdout, again.stderr
        node.start()


def test_empty_etcd_is_refused_and_adopted_from_the_directory(tmp_path: Path) -> None:
    with EtcdCluster(require_etcd(), tmp_path / "etcd") as etcd:
        arguments = ("--metadata", f"etcd:{etcd.endpoints}/one", "--allow-old-etcd")
        with NodeProcess(tmp_path / "node", arguments=arguments) as node:
            write(node, "orders", "a", "b")
        empty = f"etcd:{etcd.endpoints}/two"
        moved = NodeProcess(tmp_path / "node", arguments=("--metadata", empty, "--allow-old-etcd"))
        with pytest.raises(NodeFailedError, match="penstock metadata adopt --data-dir"):
            moved.start()
        done = adopt(moved.data_directory, empty, "--yes", "--accept")
        assert done.returncode == 0, done.stderr
        with moved:
            assert read(moved, "orders", 2) == ["a", "b"]
            write(moved, "orders", "c")
