"""kill -9 while an idempotent producer delays records: every record is delivered once, in its time.

The schedule has a record before the topic has its hole. A node that dies in between has promised nothing: the producer
sends the batch again, and the schedule knows it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess

WAIT_SECONDS_MAX: Final = 30.0
# Nothing may come after so long a silence. Delays are over long before.
SILENCE_SECONDS: Final = 1.0
CYCLES: Final = 2
DELAY_MS: Final = 300
IN_FLIGHT_MAX: Final = 500
SEED: Final = 5

# A node that kills itself when a batch with holes is about to be written, once, if it finds this file.
KILLER: Final = """
import os, signal
from penstock.broker.partition.shell import PartitionShell

append_checked = PartitionShell.append_checked

def die_first(*arguments, **others):
    if os.path.exists(os.environ["DIE_FILE"]):
        os.remove(os.environ["DIE_FILE"])
        os.kill(os.getpid(), signal.SIGKILL)
    return append_checked(*arguments, **others)

PartitionShell.append_checked = die_first
"""


@pytest.fixture
def mortal_node(tmp_path: Path) -> Iterator[NodeProcess]:
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    environment = {"PYTHONPATH": str(tmp_path), "DIE_FILE": str(tmp_path / "die")}
    with NodeProcess(tmp_path / "node", environment=environment) as running:
        yield running


class DelayedLoad:
    """Numbered records of an idempotent producer, every second of them delayed."""

    def __init__(self, node: NodeProcess, topic: str) -> None:
        self._node = node
        self._topic = topic
        self._next_number = 0
        self._problems: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": node.kafka,
                "enable.idempotence": True,
                "compression.type": "zstd",
                "linger.ms": 2,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "socket.connection.setup.timeout.ms": 2_000,
                "log_level": 0,
            }
        )
        admin = AdminClient({"bootstrap.servers": node.kafka})
        admin.create_topics([NewTopic(topic, 1)])[topic].result(20)

    def push(self, count: int) -> None:
        for _ in range(count):
            number = self._next_number
            self._next_number += 1
            self._producer.produce(
                self._topic, b"%d" % number, headers=_headers_of(number), on_delivery=self._on_delivery
            )
            self._producer.poll(0)

    def push_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.push(max(0, IN_FLIGHT_MAX - len(self._producer)))
            self._producer.poll(0.005)

    def finish(self) -> None:
        assert self._producer.flush(WAIT_SECONDS_MAX) == 0, self._node.log_tail()
        assert not self._problems, self._problems[:5]

    def check(self) -> None:
        """Each is there once, and nothing comes any more."""
        consumer = Consumer({"bootstrap.servers": self._node.kafka, "group.id": self._topic})
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        numbers: list[int] = []
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(numbers) < self._next_number and time.monotonic() < deadline:
            numbers += _numbers_of(consumer.consume(1_000, 0.2))
        numbers += _numbers_of(consumer.consume(1, SILENCE_SECONDS))
        consumer.close()
        assert sorted(numbers) == list(range(self._next_number))

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._problems.append(str(error))


def _headers_of(number: int) -> list[tuple[str, str | bytes | None]]:
    if number % 4 == 1:
        return [("penstock-delay-ms", str(DELAY_MS))]
    return [("penstock-deliver-at", str(int(time.time() * 1000) + DELAY_MS))] if number % 4 == 3 else []


def _numbers_of(messages: list[Any]) -> list[int]:
    return [int(message.value()) for message in messages if message.error() is None]


def test_crash_between_schedule_and_topic_delays_nothing_twice(mortal_node: NodeProcess, tmp_path: Path) -> None:
    load = DelayedLoad(mortal_node, "orders")
    load.push(10)
    load.finish()
    (tmp_path / "die").touch()
    load.push(10)
    assert mortal_node.wait() == -9, "it dies by its own hand"
    # When it is back, the time that some of the records were to be delivered at is past: they are in the schedule, and
    # the batch that comes again must not bring them a second time.
    mortal_node.start()
    load.push(10)
    load.finish()
    load.check()
    assert "Traceback" not in mortal_node.log_text(), mortal_node.log_tail()


def test_kill_nine_delivers_delayed_records_once(own_node: NodeProcess) -> None:
    chance = random.Random(SEED)
    load = DelayedLoad(own_node, "orders")
    for _ in range(CYCLES):
        load.push_for(chance.uniform(0.3, 0.8))
        own_node.kill()
        own_node.start()
    load.push_for(0.2)
    load.finish()
    load.check()
    assert "Traceback" not in own_node.log_text(), own_node.log_tail()
