"""`penstock mirror` between two real nodes, with real clients at both ends, and kill -9 of everything in between."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from penstock.base.clock import SystemClock
from penstock.net.errors import ClientError
from penstock.pipeline.mirror.clusters import Mirror, MirrorPlan
from penstock.pipeline.mirror.target import ExactlyOnce
from support.node_process import NodeProcess

PARTITIONS = 3
SECONDS_MAX = 60


@pytest.fixture
def west(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "west") as running:
        yield running


@pytest.fixture
def east(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "east") as running:
        yield running


def mirror_command(west: NodeProcess, east: NodeProcess, *arguments: str, verb: str = "run") -> list[str]:
    return [
        sys.executable, "-m", "penstock.main", "mirror", verb, "--from", west.kafka, "--to", east.kafka, *arguments
    ]  # fmt: skip


def mirror_once(west: NodeProcess, east: NodeProcess, *arguments: str) -> dict[str, Any]:
    command = mirror_command(west, east, "--once", "--json", *arguments)
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


def create(node: NodeProcess, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=settings)])
    made[topic].result(20)


def produce(node: NodeProcess, topic: str, numbers: range, **config: object) -> None:
    producer = Producer({"bootstrap.servers": node.kafka, "enable.idempotence": True, "linger.ms": 5, **config})
    transactional = "transactional.id" in config
    if transactional:
        producer.init_transactions(20)
        producer.begin_transaction()
    for number in numbers:
        producer.produce(
            topic,
            str(number),
            key=f"key-{number % 50}",
            partition=number % PARTITIONS,
            headers={"number": str(number)},
            timestamp=1_700_000_000_000 + number,
        )
        producer.poll(0)
    if transactional:
        producer.commit_transaction(20)
    assert producer.flush(20) == 0


def read(node: NodeProcess, topic: str, count: int, group: str = "reader") -> list[Any]:
    """All committed records from the group's position, or the beginning, on; until nothing more comes."""
    consumer = Consumer({
        "bootstrap.servers": node.kafka, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_committed",
    })  # fmt: skip
    places = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], 20)
    for place in places:
        place.offset = max(place.offset, 0)
    consumer.assign(places)
    messages: list[Any] = []
    ended: set[int] = set()
    deadline = time.monotonic() + SECONDS_MAX
    while (len(messages) < count or len(ended) < PARTITIONS) and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
        else:
            ended.discard(message.partition())
            messages.append(message)
    consumer.close()
    return messages


def numbers_of(messages: list[Any]) -> list[int]:
    return sorted(int(message.value()) for message in messages)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_records_settings_and_positions_arrive(west: NodeProcess, east: NodeProcess, topic: str) -> None:
    create(west, topic, retention_ms="86400000", max_message_bytes="2000000")
    produce(west, topic, range(300), **{"compression.type": "zstd"})
    produce(west, topic, range(300, 400), **{"transactional.id": "orders"})
    group = Consumer({"bootstrap.servers": west.kafka, "group.id": "billing", "enable.auto.commit": False})
    # In the middle of a batch, at the end, and in the stretch that came by transaction.
    group.commit(
        offsets=[TopicPartition(topic, 0, 57), TopicPartition(topic, 1, 134), TopicPartition(topic, 2, 120)],
        asynchronous=False,
    )
    group.close()

    found = mirror_once(west, east, "--prefix", "west.")
    assert found["topics"] == [
        {"topic": topic, "records": 400, "bytes": found["topics"][0]["bytes"], "lag": 0, "error": None}
    ]
    copies = read(east, f"west.{topic}", 400)
    assert numbers_of(copies) == list(range(400))
    for message in copies:
        number = int(message.value())
        assert message.partition() == number % PARTITIONS
        assert message.key() == f"key-{number % 50}".encode()
        assert message.timestamp()[1] == 1_700_000_000_000 + number
        assert ("number", str(number).encode()) in message.headers()
    in_order = [int(message.value()) for message in copies if message.partition() == 1]
    assert in_order == sorted(in_order)

    resource = ConfigResource(ConfigResource.Type.TOPIC, f"west.{topic}")
    admin = AdminClient({"bootstrap.servers": east.kafka})
    settings = admin.describe_configs([resource])[resource].result(20)
    assert settings["retention.ms"].value == "86400000"
    assert settings["max.message.bytes"].value == "2000000"

    # The group goes on in the east exactly where it was in the west.
    left = read(west, topic, 0, group="billing")
    moved = read(east, f"west.{topic}", 0, group="billing")
    assert numbers_of(left)
    assert numbers_of(moved) == numbers_of(left)

    # Again: nothing twice, the rest, and a status that says so.
    produce(west, topic, range(400, 450))
    assert mirror_once(west, east, "--prefix", "west.")["topics"][0]["records"] == 50
    assert numbers_of(read(east, f"west.{topic}", 450)) == list(range(450))
    status = subprocess.run(
        mirror_command(west, east, "--json", verb="status"), capture_output=True, timeout=SECONDS_MAX, check=True
    )
    assert [each["lag"] for each in json.loads(status.stdout)["partitions"]] == [0, 0, 0]


def test_each_record_once_whatever_is_killed(west: NodeProcess, east: NodeProcess, topic: str) -> None:
    create(west, topic)
    chance = random.Random(11)
    sent = 0
    running: subprocess.Popen[bytes] | None = None
    for cycle in range(6):
        if running is None:
            running = subprocess.Popen(mirror_command(west, east), stderr=subprocess.DEVNULL)
        try:
            produce(west, topic, range(sent, sent + 400), **{"batch.num.messages": 10})
            sent += 400
            time.sleep(chance.uniform(0.3, 1.2))
            if cycle % 3 == 0:
                running.kill()
                running.wait(20)
                running = None
            elif cycle % 3 == 1:
                east.kill()
                east.start()
            else:
                west.kill()
                west.start()
        except BaseException:
            if running is not None:
                running.kill()
            raise
    if running is not None:
        running.send_signal(signal.SIGTERM)
        assert running.wait(SECONDS_MAX) == 0
    mirror_once(west, east)
    assert numbers_of(read(east, topic, sent)) == list(range(sent))


async def test_the_first_records_of_a_topic_whose_commit_failed_are_mirrored(
    west: NodeProcess, east: NodeProcess, topic: str
) -> None:
    await asyncio.to_thread(create, west, topic)
    await asyncio.to_thread(produce, west, topic, range(30))
    failed: list[ExactlyOnce] = []

    class FailingOnce(ExactlyOnce):
        async def commit(self) -> None:
            if not failed:
                failed.append(self)
                raise ClientError("the connection broke before the commit was sent")
            await super().commit()

    mirror = Mirror(MirrorPlan("m", west.kafka, east.kafka), clock=SystemClock(), exactly_once=FailingOnce)
    running = asyncio.create_task(mirror.run(once=False))
    try:
        found = await asyncio.to_thread(read, east, topic, 30)
    finally:
        mirror.stop()
        await running
    assert failed
    assert numbers_of(found) == list(range(30))


def test_a_running_mirror_takes_up_new_topics_and_stops_when_told(
    west: NodeProcess, east: NodeProcess, topic: str
) -> None:
    create(west, topic)
    produce(west, topic, range(30))
    running = subprocess.Popen(mirror_command(west, east, "--json"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: topic in AdminClient({"bootstrap.servers": east.kafka}).list_topics(timeout=10).topics)
        assert numbers_of(read(east, topic, 30)) == list(range(30))
        produce(west, topic, range(30, 60))
        assert numbers_of(read(east, topic, 60)) == list(range(60))
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=SECONDS_MAX)
        assert running.returncode == 0
        assert json.loads(output)["topics"][0]["records"] == 60
    finally:
        running.kill()
        running.wait(20)


def test_a_cluster_is_not_mirrored_onto_itself(west: NodeProcess) -> None:
    command = mirror_command(west, west, "--once")
    done = subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode != 0
    assert b"same cluster" in done.stderr
    assert b"Traceback" not in done.stderr
