"""Transactions of Apache Kafka's own client, which knows version 2 of the protocol (KIP-890) and uses it here.

Needs Java and the client's jars, which the differential test fetches; without them it is skipped and says why.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from conformance.differential.reference_broker import find_jars, find_java
from support.group.node import LONG_SESSION_MS, node_for_groups
from support.node_process import NodeProcess

pytestmark = pytest.mark.slow

# The program is compiled each time it is started, and two cores may be busy with another suite.
WAIT_SECONDS_MAX: Final = 60.0
TIMEOUT_MS: Final = 60_000
PROGRAM: Final = Path(__file__).with_name("JavaTransaction.java")
OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off")

Start = Callable[..., "JavaProducer"]


@pytest.fixture(scope="module")
def jars() -> Path:
    found = find_jars()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def node(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("transactions-java"), session_ms=LONG_SESSION_MS) as running:
        yield running


@pytest.fixture
def orders(node: NodeProcess, topic: str) -> str:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(WAIT_SECONDS_MAX)
    return topic


class JavaProducer:
    """A producer in a process of its own."""

    def __init__(self, jars: Path, node: NodeProcess, transactional_id: str, timeout_ms: int) -> None:
        words = [find_java() or "java", *OPTIONS, "-cp", f"{jars}/*", str(PROGRAM)]
        self.process = subprocess.Popen(
            [*words, node.kafka, transactional_id, str(timeout_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._told: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        assert self._hear() == ["done", "connect"]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put(line.rstrip("\n").split("\t"))

    def _hear(self) -> list[str]:
        return self._told.get(timeout=WAIT_SECONDS_MAX)

    def ask(self, *words: str) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        return self._hear()

    def do(self, *words: str) -> None:
        assert self.ask(*words) == ["done", words[0]]

    def read(self, topic: str) -> list[str]:
        done, _, *values = self.ask("read", topic)
        assert done == "done", values
        return values

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS_MAX)


@pytest.fixture
def start(jars: Path, node: NodeProcess) -> Iterator[Start]:
    """Producers of the module's node, all ended at the end."""
    producers: list[JavaProducer] = []

    def make(transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> JavaProducer:
        producers.append(JavaProducer(jars, node, transactional_id, timeout_ms))
        return producers[-1]

    yield make
    for producer in producers:
        producer.kill()


def epoch_of(node: NodeProcess, transactional_id: str) -> int:
    with closing(KafkaAdminClient(bootstrap_servers=node.kafka)) as admin:
        return int(admin.describe_transactions([transactional_id])[transactional_id].producer_epoch)


def test_committed_records_are_seen_and_every_end_raises_the_epoch(
    node: NodeProcess, orders: str, start: Start
) -> None:
    producer = start(orders)
    for number in range(6):
        producer.do("begin")
        producer.do("send", orders, str(number))
        producer.do("abort" if number % 2 else "commit")
    assert producer.read(orders) == ["0", "2", "4"]
    # Version 1 would have left it at 0.
    assert epoch_of(node, orders) == 6


def test_second_producer_with_the_same_id_shuts_out_the_first(orders: str, start: Start) -> None:
    zombie = start(orders)
    zombie.do("begin")
    zombie.do("send", orders, "zombie")
    successor = start(orders)
    successor.do("begin")
    successor.do("send", orders, "successor")
    error, name, *_ = zombie.ask("commit")
    assert (error, name) == ("error", "ProducerFencedException")
    successor.do("commit")
    assert successor.read(orders) == ["successor"]


def test_positions_are_committed_with_the_transaction(node: NodeProcess, orders: str, start: Start) -> None:
    producer = start(orders)
    for offset, end in (("5", "commit"), ("9", "abort"), ("7", "commit")):
        producer.do("begin")
        producer.do("send", orders, offset)
        producer.do("offsets", orders, orders, offset)
        producer.do(end)
    settings = {"bootstrap.servers": node.kafka, "group.id": orders, "isolation.level": "read_committed"}
    with closing(Consumer(settings)) as consumer:
        (place,) = consumer.committed([TopicPartition(orders, 0)], WAIT_SECONDS_MAX)
    assert place.offset == 7
    assert producer.read(orders) == ["5", "7"]


def test_transaction_that_takes_too_long_is_aborted(node: NodeProcess, orders: str, start: Start) -> None:
    producer = start(orders, timeout_ms=300)
    producer.do("begin")
    producer.do("send", orders, "slow")
    settings = {"bootstrap.servers": node.kafka, "group.id": orders, "isolation.level": "read_committed"}
    with closing(Consumer(settings)) as consumer:
        # The record and the marker of the abort.
        while consumer.get_watermark_offsets(TopicPartition(orders, 0), WAIT_SECONDS_MAX)[1] != 2:
            pass
    assert producer.ask("commit")[0] == "error"
    successor = start(orders)
    successor.do("begin")
    successor.do("send", orders, "quick")
    successor.do("commit")
    assert successor.read(orders) == ["quick"]


def test_transaction_goes_on_when_the_node_is_back(node: NodeProcess, orders: str, start: Start) -> None:
    producer = start(orders)
    for number in range(2):
        producer.do("begin")
        producer.do("send", orders, f"{number}-before")
        node.kill()
        node.start()
        producer.do("send", orders, f"{number}-after")
        producer.do("commit")
    assert producer.read(orders) == ["0-before", "0-after", "1-before", "1-after"]
