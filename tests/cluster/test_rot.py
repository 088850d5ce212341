"""A disk that rots under a running node: bits of a file change after the node has written and served them.

What must hold: nobody gets the wrong bytes once the node has looked, readers of that batch are told at once instead of
being left to wait, and everything else goes on: what lies before it, what lies behind it, and writing.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from support.node_process import NodeProcess

TOPIC: Final = "orders"
BATCHES: Final = 6
ROTTEN: Final = 2
WAIT_SECONDS_MAX: Final = 20.0
PRODUCER_PATIENCE_MS: Final = 10_000
# Often, and fast: a test has no day.
SCRUB: Final = {
    "PENSTOCK_STORAGE__SCRUB_INTERVAL_MS": "100",
    "PENSTOCK_STORAGE__SCRUB_BYTES_PER_SECOND": "100000000",
    "PENSTOCK_BROKER__SCRUB_CHECK_MS": "100",
    # So that the node knows at once of segments that it has begun.
    "PENSTOCK_BROKER__CHECKPOINT_MS": "100",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node", has_http=True, environment=SCRUB) as started:
        yield started


@pytest.mark.timeout(120)
def test_rot_is_found_by_the_scrubber_and_costs_one_batch(node: NodeProcess) -> None:
    for number in range(BATCHES):
        produce(node, number)
    assert read_from(node, 0) == ([value_of(number) for number in range(BATCHES)], None)
    rot(node, value_of(ROTTEN))
    wait_for_damage(node)
    before = [value_of(number) for number in range(ROTTEN)]
    assert read_from(node, 0) == (before, KafkaError.INVALID_MSG), "the reader is told, and does not wait for ever"
    produce(node, BATCHES)
    behind = [value_of(number) for number in range(ROTTEN + 1, BATCHES + 1)]
    assert read_from(node, ROTTEN + 1) == (behind, None)
    assert receive(node) == before + behind
    assert f"offset {ROTTEN} is damaged" in command(node, "topic", "describe", TOPIC)
    assert f"offset {ROTTEN} of partition 0" in command(node, "consume", TOPIC, "--from", "earliest")
    assert health(node) == {"status": "damaged", "damaged_partitions": 1}
    node.kill()
    node.start()
    assert "penstock_damaged_partitions 1.0" in metrics(node), "it is remembered"
    assert read_from(node, ROTTEN + 1) == (behind, None)
    produce(node, BATCHES + 1)
    assert "Traceback" not in node.log_text(), node.log_tail()


@pytest.mark.timeout(120)
def test_rot_that_no_scrubber_has_seen_does_not_reach_the_consumers_of_a_queue(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", has_http=True) as node:
        for number in range(BATCHES):
            produce(node, number)
        rot(node, value_of(ROTTEN))
        assert receive(node) == [value_of(number) for number in range(BATCHES) if number != ROTTEN]
        assert "log damaged" in node.log_text()


@pytest.mark.timeout(120)
def test_lost_end_of_a_log_refuses_writes_at_once_and_at_every_door(node: NodeProcess) -> None:
    produce(node, 0)
    (path,) = node.data_directory.glob("logs/*/0/00000000000000000000.log")
    checkpoint, topic_id = node.data_directory / "checkpoint", bytes.fromhex(path.parent.parent.name)
    wait_for(node, lambda: checkpoint.exists() and topic_id in checkpoint.read_bytes())
    node.kill()
    path.unlink()
    node.start()
    began = time.monotonic()
    assert produced(node, 1) == [KafkaError.UNKNOWN]
    assert time.monotonic() - began < PRODUCER_PATIENCE_MS / 1000, "no client tries that again"
    url = f"http://{node.http}/v1/topics/{TOPIC}/messages"
    reply = httpx.post(url, json={"messages": [{"value": "x"}]}, timeout=WAIT_SECONDS_MAX)
    assert "is damaged" in reply.text, reply.text
    assert "log repair" in reply.text, reply.text


# The scene


def value_of(number: int) -> str:
    return f"value-{number:04}-good"


def produce(node: NodeProcess, number: int) -> None:
    """A batch of its own."""
    assert produced(node, number) == [None]


def produced(node: NodeProcess, number: int) -> list[int | None]:
    codes: list[int | None] = []
    producer = Producer({"bootstrap.servers": node.kafka, "message.timeout.ms": PRODUCER_PATIENCE_MS})
    producer.produce(
        TOPIC, value_of(number), on_delivery=lambda error, _: codes.append(None if error is None else error.code())
    )
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return codes


def read_from(node: NodeProcess, offset: int) -> tuple[list[str], int | None]:
    """Until the end, or an error that is not the end; check.crcs is off, as librdkafka has it."""
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    found: list[str] = []
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message.value().decode())
            else:
                return found, None if error.code() == KafkaError._PARTITION_EOF else error.code()
    finally:
        consumer.close()
    raise AssertionError(f"neither the end nor an error came: {found}\n{node.log_tail()}")


def rot(node: NodeProcess, value: str) -> None:
    (path,) = node.data_directory.glob("logs/*/0/00000000000000000000.log")
    content = path.read_bytes()
    place = content.index(value.encode()) + len(value) - 1
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([content[place] ^ 1]))


def receive(node: NodeProcess) -> list[str]:
    url = f"http://{node.http}/v1/queues/{TOPIC}/workers/receive"
    reply = httpx.post(url, json={"count": 100}, timeout=WAIT_SECONDS_MAX)
    assert reply.status_code == 200, reply.text
    return [message["value"] for message in reply.json()["messages"]]


def wait_for_damage(node: NodeProcess) -> None:
    wait_for(node, lambda: "penstock_damaged_partitions 1.0" in metrics(node))


def wait_for(node: NodeProcess, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, node.log_tail()
        time.sleep(0.05)


def metrics(node: NodeProcess) -> str:
    with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=10) as reply:
        text: str = reply.read().decode()
    return text


def health(node: NodeProcess) -> Any:
    return httpx.get(f"http://{node.http}/health", timeout=10).json()


def command(node: NodeProcess, *words: str) -> str:
    """What it says, well or not."""
    line = [sys.executable, "-m", "penstock.main", *words, "--bootstrap", node.kafka]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr
