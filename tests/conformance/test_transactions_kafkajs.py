"""Transactions of kafkajs, where Node.js and a package registry are at hand: a third language's version 1."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.group.node import LONG_SESSION_MS, node_for_groups
from support.node_process import NodeProcess
from support.programs.kafkajs import kafkajs_modules

WAIT_SECONDS_MAX: Final = 30.0
TIMEOUT_MS: Final = 60_000
PROGRAM: Final = Path(__file__).with_name("kafkajs_transaction.js")

Start = Callable[..., "JsProducer"]


@pytest.fixture(scope="session")
def modules() -> Path:
    return kafkajs_modules()


@pytest.fixture(scope="module")
def node(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("transactions-kafkajs"), session_ms=LONG_SESSION_MS) as running:
        yield running


@pytest.fixture
def orders(node: NodeProcess, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(WAIT_SECONDS_MAX)
    return topic


class JsProducer:
    """A producer in a process of its own."""

    def __init__(self, modules: Path, node: NodeProcess, transactional_id: str, timeout_ms: int) -> None:
        self.process = subprocess.Popen(
            ["node", str(PROGRAM), node.kafka, transactional_id, str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        )
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self._told.get(timeout=WAIT_SECONDS_MAX) == {"done": "connect"}

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put(json.loads(line))

    def ask(self, *words: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._told.get(timeout=WAIT_SECONDS_MAX)

    def do(self, *words: object) -> None:
        assert self.ask(*words) == {"done": words[0]}

    def read(self, topic: str, count: int) -> list[str]:
        told = self.ask("read", topic, count)
        assert "values" in told, told
        return list(told["values"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS_MAX)


@pytest.fixture
def start(modules: Path, node: NodeProcess) -> Iterator[Start]:
    """Producers of the module's node, all ended at the end."""
    producers: list[JsProducer] = []

    def make(transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> JsProducer:
        producers.append(JsProducer(modules, node, transactional_id, timeout_ms))
        return producers[-1]

    yield make
    for producer in producers:
        producer.kill()


def test_committed_records_are_seen_and_aborted_ones_are_not(orders: str, start: Start) -> None:
    producer = start(orders)
    for number in range(4):
        producer.do("begin")
        producer.do("send", orders, str(number))
        producer.do("abort" if number % 2 else "commit")
    assert producer.read(orders, 2) == ["0", "2"]


def test_second_producer_with_the_same_id_shuts_out_the_first(orders: str, start: Start) -> None:
    zombie = start(orders)
    zombie.do("begin")
    zombie.do("send", orders, "zombie")
    successor = start(orders)
    successor.do("begin")
    successor.do("send", orders, "successor")
    assert zombie.ask("commit")["error"] in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    successor.do("commit")
    assert successor.read(orders, 1) == ["successor"]


def test_positions_are_committed_with_the_transaction(node: NodeProcess, orders: str, start: Start) -> None:
    producer = start(orders)
    for offset, end in (("5", "commit"), ("9", "abort"), ("7", "commit")):
        producer.do("begin")
        producer.do("offsets", orders, orders, offset)
        producer.do(end)
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": orders, "isolation.level": "read_committed"})
    (place,) = consumer.committed([TopicPartition(orders, 0)], WAIT_SECONDS_MAX)
    consumer.close()
    assert place.offset == 7


def test_transaction_that_takes_too_long_is_aborted(node: NodeProcess, orders: str, start: Start) -> None:
    producer = start(orders, timeout_ms=300)
    producer.do("begin")
    producer.do("send", orders, "slow")
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": orders, "isolation.level": "read_committed"})
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    # The record and the marker of the abort.
    while consumer.get_watermark_offsets(TopicPartition(orders, 0), WAIT_SECONDS_MAX)[1] != 2:
        assert time.monotonic() < deadline
    consumer.close()
    assert "error" in producer.ask("commit")
    successor = start(orders)
    successor.do("begin")
    successor.do("send", orders, "quick")
    successor.do("commit")
    assert successor.read(orders, 1) == ["quick"]


def test_transaction_goes_on_when_the_node_is_back(node: NodeProcess, orders: str, start: Start) -> None:
    producer = start(orders)
    producer.do("begin")
    producer.do("send", orders, "before")
    node.kill()
    node.start()
    producer.do("send", orders, "after")
    producer.do("commit")
    assert producer.read(orders, 2) == ["before", "after"]
