"""`penstock cluster verify` over three processes: all the same, and one replica that says something else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.programs.cluster_up import ClusterUp
from support.storage.forgery import forge_directory

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(120)]

TOPIC = "orders"
MESSAGES = 500


def verify(cluster: ClusterUp, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "penstock.main", "cluster", "verify", *arguments, "--json"]
    done = subprocess.run(
        [*command, "--http", cluster.nodes[0]["http"]], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def produce(cluster: ClusterUp) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 2, 3)], request_timeout=20)[TOPIC].result(timeout=20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(MESSAGES):
        producer.produce(TOPIC, b"message %06d" % number, partition=number % 2)
    assert producer.flush(30) == 0


def test_a_replica_that_differs_is_found_with_its_place(tmp_path: Path) -> None:
    with ClusterUp(tmp_path) as cluster:
        produce(cluster)
        code, clean = verify(cluster)
        assert (code, clean["differences"], clean["not_compared"]) == (0, [], []), clean
        assert clean["offsets"] >= MESSAGES
        assert cluster.stop() == 0
    # What it says is right by its own checksum: it is found by the others alone.
    assert forge_directory(tmp_path / "cluster" / "3", b"message 000123", b"massage 000123") == 1
    with ClusterUp(tmp_path) as cluster:
        cluster.wait_until(lambda: verify(cluster, TOPIC)[1]["not_compared"] == [], "all there")
        code, found = verify(cluster, TOPIC)
        assert code == 1
        (difference,) = found["differences"]
        assert (difference["topic"], difference["partition"], difference["log"]) == (TOPIC, 1, "data")
        assert difference["from_offset"] <= 61 < difference["to_offset"]
        assert difference["nodes"] == [[1, 2], [3]]
