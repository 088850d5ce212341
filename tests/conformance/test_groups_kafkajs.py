"""Groups of kafkajs, where Node.js and a package registry are at hand: a classic group in a third language."""

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
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.group.node import HEARTBEAT_MS, LONG_SESSION_MS, SESSION_MS, node_for_groups
from support.node_process import NodeProcess
from support.programs.kafkajs import kafkajs_modules

WAIT_SECONDS_MAX: Final = 30.0
PARTITIONS: Final = 4
PROGRAM: Final = Path(__file__).with_name("kafkajs_group.js")


@pytest.fixture(scope="session")
def modules() -> Path:
    return kafkajs_modules()


@pytest.fixture(scope="module")
def node(modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with node_for_groups(tmp_path_factory.mktemp("groups-kafkajs")) as running:
        yield running


class Member:
    """A member in a process of its own."""

    def __init__(self, modules: Path, node: NodeProcess, topic: str, session_ms: int) -> None:
        words = ["node", str(PROGRAM), node.kafka, topic, topic, str(session_ms), str(HEARTBEAT_MS)]
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        )
        self.held: list[int] = []
        self.values: list[str] = []
        self._told: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put(json.loads(line))

    def hear(self) -> None:
        while not self._told.empty():
            told = self._told.get()
            assert "error" not in told, told
            self.held = told.get("held", self.held)
            self.values += [told["value"]] if "value" in told else []

    def leave(self) -> None:
        self.process.communicate("leave\n", timeout=WAIT_SECONDS_MAX)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS_MAX)


@pytest.fixture
def enter(modules: Path, node: NodeProcess) -> Iterator[Callable[..., Member]]:
    members: list[Member] = []

    def make(topic: str, on: NodeProcess | None = None, session_ms: int = SESSION_MS) -> Member:
        members.append(Member(modules, on or node, topic, session_ms))
        return members[-1]

    yield make
    for member in members:
        member.kill()


def settle(members: list[Member], is_settled: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_settled():
        for member in members:
            member.hear()
        assert time.monotonic() < deadline, [(member.held, len(member.values)) for member in members]
        time.sleep(0.02)


def share(*members: Member) -> Callable[[], bool]:
    def is_shared() -> bool:
        counts = sorted(len(member.held) for member in members)
        held = sorted(number for member in members for number in member.held)
        return held == list(range(PARTITIONS)) and counts[-1] - counts[0] <= 1

    return is_shared


def send(node: NodeProcess, topic: str, count: int, first: int = 0) -> list[str]:
    producer = Producer({"bootstrap.servers": node.kafka})
    values = [str(number) for number in range(first, first + count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    return values


def create(node: NodeProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(WAIT_SECONDS_MAX)


def committed(node: NodeProcess, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": topic})
    places = consumer.committed([TopicPartition(topic, number) for number in range(PARTITIONS)], WAIT_SECONDS_MAX)
    consumer.close()
    return [place.offset for place in places]


def test_partitions_are_shared_as_members_come_leave_and_die(
    node: NodeProcess, topic: str, enter: Callable[..., Member]
) -> None:
    create(node, topic)
    first = enter(topic)
    settle([first], share(first))
    second = enter(topic)
    settle([first, second], share(first, second))
    sent = send(node, topic, 40)
    settle([first, second], lambda: len(first.values) + len(second.values) >= 40)
    assert sorted(first.values + second.values) == sorted(sent)
    assert first.values
    assert second.values
    assert committed(node, topic) == [10, 10, 10, 10]
    second.leave()
    settle([first], share(first))
    third = enter(topic)
    settle([first, third], share(first, third))
    third.kill()
    settle([first], share(first))


def test_commits_and_members_outlive_a_killed_node(tmp_path: Path, topic: str, enter: Callable[..., Member]) -> None:
    with node_for_groups(tmp_path / "own-node") as own_node:
        create(own_node, topic)
        # A commit of who was thrown out ends this client for good.
        member = enter(topic, own_node, LONG_SESSION_MS)
        settle([member], share(member))
        send(own_node, topic, 20)
        settle([member], lambda: len(member.values) == 20)
        own_node.kill()
        own_node.start()
        assert committed(own_node, topic) == [5, 5, 5, 5]
        sent = send(own_node, topic, 8, first=20)
        settle([member], lambda: len(member.values) >= 28)
        assert sorted(member.values[20:]) == sorted(sent)
        assert committed(own_node, topic) == [7, 7, 7, 7]
