"""Three real nodes by one command: clients find every leader, and the command looks after its nodes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeFailedError
from support.programs.cluster_up import ClusterUp

pytestmark = pytest.mark.heavy

TOPIC = "orders"
PARTITIONS = 6
EACH = 50
WAIT_SECONDS_MAX = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterUp]:
    with ClusterUp(tmp_path) as running:
        yield running


def spread_topic(cluster: ClusterUp) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    admin.create_topics([topic], request_timeout=20)[TOPIC].result(timeout=20)


def produce_everywhere(bootstrap: str) -> set[str]:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 20_000})
    values = {f"{partition}-{number}" for partition in range(PARTITIONS) for number in range(EACH)}
    lost: list[object] = []
    for value in sorted(values):
        partition = int(value.split("-")[0])
        producer.produce(TOPIC, value, partition=partition, callback=lambda e, _: lost.append(e) if e else None)
    assert producer.flush(30) == 0
    assert lost == []
    return values


def consume_all(bootstrap: str, count: int) -> set[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe([TOPIC])
    values: list[str] = []
    until = time.monotonic() + WAIT_SECONDS_MAX
    while len(values) < count and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    consumer.close()
    assert len(values) == len(set(values))
    return set(values)


def penstock(*arguments: str) -> dict[str, object]:
    command = [sys.executable, "-m", "penstock.main", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_client_of_one_node_finds_all_three_and_every_leader(cluster: ClusterUp) -> None:
    spread_topic(cluster)
    third = cluster.nodes[2]["kafka"]
    admin = AdminClient({"bootstrap.servers": third})
    # Another node made it: this one hears of it a moment later.
    cluster.wait_until(lambda: TOPIC in admin.list_topics(timeout=20).topics, "told of the topic")
    seen = admin.list_topics(timeout=20)
    assert {broker.id: f"{broker.host}:{broker.port}" for broker in seen.brokers.values()} == {
        number: node["kafka"] for number, node in enumerate(cluster.nodes, start=1)
    }
    leaders = [partition.leader for partition in seen.topics[TOPIC].partitions.values()]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    values = produce_everywhere(third)
    assert consume_all(cluster.nodes[0]["kafka"], len(values)) == values
    # Each partition is where it is led, and nowhere else.
    described = penstock("topic", "describe", TOPIC, "--bootstrap", cluster.bootstrap)
    assert [(row["leader"], row["end"]) for row in described["partitions"]] == [(each, EACH) for each in leaders]  # type: ignore[attr-defined]


def test_status_names_nodes_and_what_they_lead(cluster: ClusterUp) -> None:
    spread_topic(cluster)
    # The first address is that of nobody: the next is asked.
    status = penstock("cluster", "status", "--bootstrap", f"127.0.0.1:1,{cluster.bootstrap}")
    # Internal topics are among what they lead.
    leads = {node["node_id"]: node["leads"] for node in status["nodes"]}  # type: ignore[attr-defined]
    assert sorted(leads) == [1, 2, 3]
    assert min(leads.values()) >= PARTITIONS // 3
    assert status["controller"] in (1, 2, 3)
    assert status["partitions"] == sum(leads.values())
    assert (status["out_of_sync"], status["without_leader"]) == (0, 0)


def test_node_that_dies_is_started_again_and_all_stop_together(cluster: ClusterUp) -> None:
    cluster.kill_node()
    cluster.wait_until(lambda: "is ready again" in cluster.said, "started again")
    assert "was killed by signal 9; it is started again in 1 s" in cluster.said
    assert len(cluster.process_ids()) == 3
    assert cluster.stop() == 0
    assert cluster.said.count("node stopped") == 3


def test_node_that_cannot_start_ends_the_command(tmp_path: Path) -> None:
    with pytest.raises(NodeFailedError, match="node 1 ended with exit code 1 before it was ready"):
        ClusterUp(tmp_path, arguments=("--metadata", "nowhere")).__enter__()
