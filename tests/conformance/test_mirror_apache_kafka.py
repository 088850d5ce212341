"""`penstock mirror` from Apache Kafka and back to it, where Maven Central is in reach."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from conformance.differential.reference_broker import ReferenceBroker, find_jars
from support.node_process import NodeProcess

pytestmark = pytest.mark.slow

SECONDS_MAX = 90
COUNT = 500


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    jars = find_jars()
    if isinstance(jars, str):
        pytest.skip(jars)
    with ReferenceBroker(jars, tmp_path_factory.mktemp("kafka")) as running:
        yield f"127.0.0.1:{running.address[1]}"


@pytest.fixture
def penstock(tmp_path: Path) -> Iterator[str]:
    with NodeProcess(tmp_path / "node") as running:
        yield running.kafka


def fill(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "86400000"})])[topic].result(SECONDS_MAX)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "compression.type": "lz4"})
    producer.init_transactions(SECONDS_MAX)
    for start in range(0, COUNT, 100):
        producer.begin_transaction()
        for number in range(start, start + 100):
            producer.produce(topic, str(number), key=str(number % 7), partition=number % 2)
        if start == 200:
            producer.flush(SECONDS_MAX)
            producer.abort_transaction(SECONDS_MAX)
        else:
            producer.commit_transaction(SECONDS_MAX)
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-group"})
    group.commit(offsets=[TopicPartition(topic, 0, 30)], asynchronous=False)
    group.close()


def mirror(source: str, target: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "penstock.main", "mirror", "run", "--from", source, "--to", target]
    done = subprocess.run(
        [*command, "--once", "--json", "--name", "both-ways"], capture_output=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return list(json.loads(done.stdout)["topics"])


def values(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    found: list[int] = []
    ends = 0
    for _ in range(10 * COUNT):
        message = consumer.poll(5)
        if message is None:
            break
        if message.error() is None:
            found.append(int(message.value()))
            continue
        assert message.error().code() == KafkaError._PARTITION_EOF
        ends += 1
        if ends == 2:
            break
    consumer.close()
    return sorted(found)


@pytest.mark.parametrize("direction", ["from Kafka", "to Kafka"])
def test_committed_records_and_positions_cross(kafka: str, penstock: str, topic: str, direction: str) -> None:
    source, target = (kafka, penstock) if direction == "from Kafka" else (penstock, kafka)
    fill(source, topic)
    mirrored = {each["topic"]: each["records"] for each in mirror(source, target)}
    assert mirrored[topic] == COUNT - 100
    assert values(target, topic) == [number for number in range(COUNT) if not 200 <= number < 300]
    # Once more: nothing is new.
    assert {each["topic"]: each["records"] for each in mirror(source, target)}[topic] == 0
    consumer = Consumer({"bootstrap.servers": target, "group.id": f"{topic}-group"})
    (place,) = consumer.committed([TopicPartition(topic, 0)], SECONDS_MAX)
    consumer.close()
    assert place.offset == 30
