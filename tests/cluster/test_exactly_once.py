"""Consume, transform, produce in transactions, and kill -9 of node and clients at random points: every input shows
exactly once in the output for readers of committed records, in order, and the committed positions agree.

Two workers do the same work for one group, each in a process of its own (`support.transaction.exactly_once_worker`).
What happens to them, and when, is drawn from a seed: the node is killed or stopped properly, a worker is killed, both
at once, a third one comes and takes partitions away or goes and gives them back, or a worker is stopped and becomes a
zombie that wakes up when another has its name. Each once in `make test`; `make chaos` runs PENSTOCK_KILL_CYCLES of
them.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.group.node import node_for_groups
from support.node_process import NodeProcess
from support.transaction.exactly_once_worker import FENCED, LOST

CYCLES: Final = int(os.environ.get("PENSTOCK_KILL_CYCLES", "7"))
SEED: Final = int(os.environ.get("PENSTOCK_SEED", "2026"))
PARTITIONS: Final = 3
WORKERS: Final = ("worker-a", "worker-b")
GUEST: Final = "guest-c"
WAIT_SECONDS_MAX: Final = 60.0
# A node under this load comes to a few hundred of them a second.
COMMITS_MAX: Final = 20
# At a time: twenty milliseconds' work for two workers.
FED_MAX: Final = 20
TESTS: Final = Path(__file__).parents[1]


class WorkerProcess:
    def __init__(self, bootstrap: str, source: str, target: str, name: str, protocol: str) -> None:
        words = [
            sys.executable,
            "-m",
            "support.transaction.exactly_once_worker",
            bootstrap,
            source,
            target,
            name,
            protocol,
        ]
        self.name = name
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=TESTS)
        self.commits = 0
        self.lines: list[str] = []
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._told.put(line.strip())

    def hear(self) -> None:
        while not self._told.empty():
            self.lines.append(self._told.get())
            self.commits += self.lines[-1].startswith("committed")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS_MAX)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None


class Story:
    """A node, its input, its workers, and what happens to them."""

    def __init__(self, node: NodeProcess, topic: str, chance: random.Random, protocol: str = "classic") -> None:
        self.node = node
        self.protocol = protocol
        self.source, self.target = f"{topic}-in", f"{topic}-out"
        self.chance = chance
        self.workers: dict[str, WorkerProcess] = {}
        self.zombies: list[WorkerProcess] = []
        self.sent = 0
        self.diary: list[str] = []
        self._ended_commits = 0
        self._bag: list[Callable[[], None]] = []
        admin = AdminClient({"bootstrap.servers": node.kafka})
        for created in admin.create_topics(
            [NewTopic(name, PARTITIONS) for name in (self.source, self.target)]
        ).values():
            created.result(WAIT_SECONDS_MAX)
        self._producer = Producer({
            "bootstrap.servers": node.kafka,
            "enable.idempotence": True,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        })  # fmt: skip
        for name in WORKERS:
            self.start(name)

    def start(self, name: str) -> None:
        if name in self.workers:
            self._ended_commits += self.workers[name].commits
        self.workers[name] = WorkerProcess(self.node.kafka, self.source, self.target, name, self.protocol)

    def feed(self) -> None:
        """A little more input; the node may be away just now."""
        for _ in range(FED_MAX if len(self._producer) < FED_MAX else 0):
            self._producer.produce(self.source, b"%d" % self.sent, partition=self.sent % PARTITIONS)
            self.sent += 1
        self._producer.poll(0.005)

    def supervise(self) -> None:
        """A worker that gave up is started again, as whoever runs it would."""
        for name, worker in list(self.workers.items()):
            worker.hear()
            if worker.has_ended and worker.process.returncode != 0:
                assert worker.process.returncode in (FENCED, LOST), f"{name} ended: {worker.lines[-3:]}"
                self.diary.append(f"{name} ended: {worker.lines[-1]}")
                self.start(name)

    def commits(self) -> int:
        return self._ended_commits + sum(worker.commits for worker in self.workers.values())

    def wait(self, is_true: Callable[[], bool], *, feeding: bool = True) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not is_true():
            if feeding:
                self.feed()
            else:
                self._producer.poll(0.02)
            self.supervise()
            assert time.monotonic() < deadline, f"{self.told()}\n{self.node.log_tail()}"

    def told(self) -> str:
        return "; ".join(
            f"{name}: {worker.commits} commits, {worker.lines[-2:]}" for name, worker in self.workers.items()
        )

    # What happens

    def cycle(self) -> None:
        goal = self.commits() + self.chance.randrange(1, COMMITS_MAX)
        self.wait(lambda: self.commits() >= goal)
        # Not at the edge of a commit only: somewhere in the next requests, which are under way by now.
        until = time.monotonic() + self.chance.uniform(0.0, 0.05)
        self.wait(lambda: time.monotonic() >= until)
        what = self._draw()
        self.diary.append(f"{self.commits()} commits, {what.__name__}")
        what()

    def _draw(self) -> Callable[[], None]:
        """Every deed once, in some order, and again."""
        if not self._bag:
            self._bag = [self.kill_node, self.stop_node, self.kill_worker, self.kill_both, self.change_guest]
            self._bag += [self.make_zombie, self.kill_node]
            self.chance.shuffle(self._bag)
        return self._bag.pop()

    def kill_node(self) -> None:
        self.node.kill()
        self.node.start()

    def stop_node(self) -> None:
        assert self.node.terminate() == 0, self.node.log_tail()
        self.node.start()

    def change_guest(self) -> None:
        guest = self.workers.get(GUEST)
        if guest is None:
            self.start(GUEST)
            self.wait(lambda: self.workers[GUEST].commits > 0)
        else:
            guest.process.terminate()
            self.wait(lambda: guest.has_ended or self.workers[GUEST] is not guest)
            self._ended_commits += self.workers.pop(GUEST).commits

    def kill_worker(self) -> None:
        name = self.chance.choice(WORKERS)
        self.workers[name].kill()
        self.start(name)

    def kill_both(self) -> None:
        self.node.kill()
        self.kill_worker()
        self.node.start()

    def make_zombie(self) -> None:
        """It stands still wherever it is, and goes on when another has its name."""
        name = self.chance.choice(WORKERS)
        zombie = self.workers[name]
        zombie.process.send_signal(signal.SIGSTOP)
        self.start(name)
        self.wait(lambda: self.workers[name].commits > 0)
        zombie.process.send_signal(signal.SIGCONT)
        self.zombies.append(zombie)

    # What must be true

    def finish(self) -> None:
        assert self._producer.flush(WAIT_SECONDS_MAX) == 0
        expected = {number: len(range(number, self.sent, PARTITIONS)) for number in range(PARTITIONS)}
        self.wait(lambda: self.positions() == expected, feeding=False)

    def positions(self) -> dict[int, int]:
        consumer = Consumer({
            "bootstrap.servers": self.node.kafka,
            "group.id": f"of-{self.source}",
            "isolation.level": "read_committed",
        })  # fmt: skip
        with closing(consumer):
            places = [TopicPartition(self.source, number) for number in range(PARTITIONS)]
            return {place.partition: place.offset for place in consumer.committed(places, WAIT_SECONDS_MAX)}

    def check(self) -> None:
        for number in range(PARTITIONS):
            found = read(self.node.kafka, self.target, number)
            expected = list(range(number, self.sent, PARTITIONS))
            assert len(found) == len(set(found)), f"partition {number}: {twice(found)} are there twice"
            missing = sorted(set(expected) - set(found))
            assert not missing, f"partition {number}: {len(missing)} inputs are missing, the first is {missing[0]}"
            assert found == expected, f"partition {number}: out of order"

    def aborted_count(self) -> int:
        """Records that are there and that no reader of committed ones may see."""
        places = range(PARTITIONS)
        return sum(len(read(self.node.kafka, self.target, number, "read_uncommitted")) for number in places) - self.sent

    def end(self) -> None:
        for worker in [*self.workers.values(), *self.zombies]:
            worker.process.kill()
            worker.process.wait(WAIT_SECONDS_MAX)


def read(bootstrap: str, topic: str, partition: int, isolation: str = "read_committed") -> list[int]:
    consumer = Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "log_level": 0,
    })  # fmt: skip
    numbers: list[int] = []
    with closing(consumer):
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            assert time.monotonic() < deadline, f"partition {partition}: no end after {len(numbers)} messages"
            for message in consumer.consume(10_000, 0.1):
                if message.error() is None:
                    numbers.append(int(message.value() or b"-1"))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return numbers
                else:
                    raise AssertionError(message.error())


def twice(numbers: list[int]) -> list[int]:
    seen: set[int] = set()
    return [number for number in numbers if number in seen or seen.add(number)][:5]  # type: ignore[func-returns-value]


# A group's positions are taken in the same way by both, and who may commit them is not decided in the same way.
@pytest.fixture(params=["classic", pytest.param("consumer", marks=pytest.mark.slow)])
def story(request: pytest.FixtureRequest, tmp_path: Path, topic: str) -> Iterator[Story]:
    with node_for_groups(tmp_path / "node") as node:
        told = Story(node, topic, random.Random(SEED), request.param)
        yield told
        told.end()


@pytest.mark.timeout(120 + 20 * CYCLES)
def test_every_input_shows_exactly_once_whoever_is_killed(story: Story) -> None:
    for _ in range(CYCLES):
        story.cycle()
    story.finish()
    story.check()
    # Otherwise there was nothing to be left out, and nothing is proved.
    assert story.aborted_count() > 0
    assert "Traceback" not in story.node.log_text(), story.node.log_tail()
