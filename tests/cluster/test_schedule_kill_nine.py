"""kill -9 while delayed messages come, are cancelled and come due, by HTTP and by an idempotent Kafka producer.

What must hold: nothing that was confirmed is lost, nothing is delivered twice or before its time, and who was told that
a message is cancelled never sees it. Three cycles in `make test`; `make chaos` sets PENSTOCK_SCHEDULE_KILL_CYCLES.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.node_process import NodeProcess

CYCLES = int(os.environ.get("PENSTOCK_SCHEDULE_KILL_CYCLES", "3"))
PARTITIONS = 2
TOPIC = "orders"
SEED = 5
DELAY_MS_MAX = 2_500
DRAIN_SECONDS_MAX = 30.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node", has_http=True) as started:
        yield started


@pytest.mark.timeout(90 + 10 * CYCLES)
def test_kill_nine_loses_nothing_doubles_nothing_and_is_never_early(node: NodeProcess) -> None:
    chance = random.Random(SEED)
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(20)
    story = Story()
    workers = [HttpSender(node, story), KafkaSender(node, story), Reader(node, story)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(CYCLES):
            time.sleep(chance.uniform(0.3, 0.9))
            node.kill()
            node.start()
        time.sleep(0.5)
        for worker in workers[:2]:
            worker.end()
        wait_until_released(node)
    finally:
        for worker in workers:
            worker.end()
    check(story, read_all(node))
    assert "Traceback" not in node.log_text(), node.log_tail()


class Story:
    """What was told to whom. By value; each thread writes only its own part."""

    def __init__(self) -> None:
        self.due_ms: dict[str, int] = {}
        self.told: set[str] = set()
        self.cancelled: set[str] = set()
        # No answer came: it may be cancelled, or not.
        self.perhaps_cancelled: set[str] = set()
        self.too_late = 0
        self.early: list[str] = []


class Worker(threading.Thread):
    def __init__(self, node: NodeProcess, story: Story) -> None:
        super().__init__()
        self.node = node
        self.story = story
        self.chance = random.Random(SEED)
        self.is_over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.work()
            self.finish()
        except BaseException as error:
            self.error = error

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Nothing, but for who has to clean up."""

    def end(self) -> None:
        self.is_over.set()
        self.join(DRAIN_SECONDS_MAX)
        assert self.error is None, self.error

    def due(self, value: str) -> int:
        due_ms = int(time.time() * 1000) + self.chance.randrange(1, DELAY_MS_MAX)
        self.story.due_ms[value] = due_ms
        return due_ms


class HttpSender(Worker):
    """Some messages, and then and now it cancels one."""

    number = 0

    def __init__(self, node: NodeProcess, story: Story) -> None:
        super().__init__(node, story)
        self._ids: list[tuple[str, str]] = []

    def work(self) -> None:
        values = [f"h{self.number + place}" for place in range(5)]
        self.number += 5
        messages = [{"value": value, "deliver_at": self.due(value)} for value in values]
        reply = self._ask("POST", f"/v1/topics/{TOPIC}/messages", {"messages": messages})
        if reply is None or reply[0] >= 300:
            time.sleep(0.02)
            return
        for value, outcome in zip(values, reply[1]["messages"], strict=True):
            if "error" not in outcome:
                self.story.told.add(value)
                self._ids.append((value, outcome["id"]))
        if len(self._ids) > 20:
            self._cancel(*self._ids.pop(self.chance.randrange(len(self._ids))))
        time.sleep(0.005)

    def _cancel(self, value: str, message_id: str) -> None:
        reply = self._ask("DELETE", f"/v1/schedules/{message_id}", None)
        if reply is None or reply[0] >= 500:
            self.story.perhaps_cancelled.add(value)
        elif reply[0] < 300:
            self.story.cancelled.add(value)
        else:
            assert reply[0] in (404, 409), reply
            self.story.too_late += 1

    def _ask(self, method: str, path: str, body: object) -> tuple[int, Any] | None:
        """None: no answer came, and nobody knows what was done."""
        connection = http.client.HTTPConnection(self.node.http, timeout=30)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            data = reply.read()
            return reply.status, json.loads(data) if data else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


class KafkaSender(Worker):
    """Batches of which some messages are delayed; the client repeats what it got no answer for."""

    number = 0

    def __init__(self, node: NodeProcess, story: Story) -> None:
        super().__init__(node, story)
        settings = {"enable.idempotence": True, "linger.ms": 5, "compression.type": "zstd", "reconnect.backoff.ms": 20}
        self._producer = Producer({"bootstrap.servers": node.kafka, "reconnect.backoff.max.ms": 200, **settings})

    def work(self) -> None:
        for _ in range(10):
            value = f"k{self.number}"
            self.number += 1
            headers: dict[str, str | bytes | None] | None = None
            if self.number % 3:
                headers = {"penstock-deliver-at": str(self.due(value)).encode()}
            else:
                self.story.due_ms[value] = 0
            self._producer.produce(TOPIC, value.encode(), headers=headers, on_delivery=self._note)
        self._producer.poll(0.02)

    def finish(self) -> None:
        assert self._producer.flush(DRAIN_SECONDS_MAX) == 0

    def _note(self, error: object, message: Message) -> None:
        if error is None:
            value = message.value()
            assert value is not None
            self.story.told.add(value.decode())


class Reader(Worker):
    """Looks at the clock whenever a message comes."""

    def __init__(self, node: NodeProcess, story: Story) -> None:
        super().__init__(node, story)
        self._consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "reader"})
        places = [TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)]
        self._consumer.assign(places)

    def work(self) -> None:
        for message in self._consumer.consume(100, 0.05):
            value = (message.value() or b"").decode()
            if message.error() is None and self.story.due_ms[value] > time.time() * 1000:
                self.story.early.append(value)

    def finish(self) -> None:
        self._consumer.close()


def wait_until_released(node: NodeProcess) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while True:
        connection = http.client.HTTPConnection(node.http, timeout=30)
        connection.request("GET", "/v1/schedule-counts")
        pending = json.loads(connection.getresponse().read())["pending_count"]
        connection.close()
        if not pending:
            return
        assert time.monotonic() < deadline, f"{pending} messages are still pending"
        time.sleep(0.05)


def read_all(node: NodeProcess) -> list[str]:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "auditor", "enable.partition.eof": True})
    values: list[str] = []
    try:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])
            while True:
                message = consumer.poll(10)
                assert message is not None
                if message.error() is not None:
                    break  # the end of the partition
                value = message.value()
                assert value is not None
                values.append(value.decode())
    finally:
        consumer.close()
    return values


def check(story: Story, values: list[str]) -> None:
    counts = Counter(values)
    twice = sorted(value for value, count in counts.items() if count > 1)
    assert not twice, f"{len(twice)} twice, such as {twice[:5]}"
    lost = story.told - story.cancelled - story.perhaps_cancelled - set(counts)
    assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:5]}"
    back = story.cancelled & set(counts)
    assert not back, f"{len(back)} cancelled and delivered, such as {sorted(back)[:5]}"
    assert not story.early, f"{len(story.early)} early, such as {story.early[:5]}"
    assert set(counts) <= set(story.due_ms)
    assert len(story.told) > 50 * CYCLES, "too little happened for this to prove anything"
    assert story.cancelled, "nothing was cancelled in time"
