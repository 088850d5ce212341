"""A group of the newer protocol (KIP-848): members that read and commit, and somebody who looks at its positions."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from support.chaos.checks import Violation
from support.chaos.group_checks import Committed, Seen, check_positions, check_read
from support.chaos.loads.work import PAUSE_SECONDS, Load, Work
from support.chaos.steady_load import SteadyLoad

MEMBERS: Final = 2
LOOK_SECONDS: Final = 0.1
CALL_SECONDS: Final = 5.0
READ_SECONDS_MAX: Final = 60.0


class GroupLoad(Load):
    """Reads what `feed` sends."""

    def __init__(self, bootstrap: str, feed: SteadyLoad, *, group: str) -> None:
        super().__init__(group)
        self.bootstrap = bootstrap
        self.feed = feed
        self.commits: list[Committed] = []
        self.seen: list[Seen] = []
        self.read: set[str] = set()
        self._members = [Member(self, f"{group}-{number}") for number in range(MEMBERS)]
        self._watcher = Watcher(self)

    def start(self) -> None:
        for member in self._members:
            member.start()
        self._watcher.start()

    def finish(self) -> list[Violation]:
        """When the feed has ended."""
        until = time.monotonic() + READ_SECONDS_MAX
        while self.feed.acked.keys() - self.read and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        self._watcher.end()
        for member in self._members:
            member.end()
        return check_positions(self.commits, self.seen) + check_read(self.feed.acked, self.read)

    def told(self) -> str:
        confirmed = sum(each.confirmed_at is not None for each in self.commits)
        return f"{self.name}: {len(self.read)} read, {confirmed} positions committed, {len(self.seen)} seen"


class Member(Work):
    def __init__(self, load: GroupLoad, name: str) -> None:
        super().__init__(name)
        self._load = load
        # Partitions that it was given and has not read from yet, and when.
        self._given_at: dict[int, float] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": load.bootstrap,
                "group.id": load.name,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([self._load.feed.topic], on_assign=self._on_assign)
        super().run()

    def work(self) -> None:
        messages = [each for each in self._consumer.consume(50, 0.05) if each.error() is None]
        positions: dict[int, int] = {}
        for message in messages:
            partition, offset = message.partition() or 0, message.offset() or 0
            given_at = self._given_at.pop(partition, None)
            if given_at is not None:
                self._load.seen.append(Seen(partition, offset, given_at, time.monotonic()))
            positions[partition] = offset + 1
            self._load.read.add((message.value() or b"").decode())
        if positions:
            self._commit(positions)

    def finish(self) -> None:
        self._consumer.close()

    def _commit(self, positions: dict[int, int]) -> None:
        began_at = time.monotonic()
        places = [TopicPartition(self._load.feed.topic, number, offset) for number, offset in positions.items()]
        done: dict[int, bool] = {}
        try:
            for place in self._consumer.commit(offsets=places, asynchronous=False) or ():
                done[place.partition] = place.error is None
        except KafkaException as error:
            self._load.refused(f"commit: {error}")
        at = time.monotonic()
        self._load.commits += [
            Committed(number, offset, began_at, at if done.get(number) else None)
            for number, offset in positions.items()
        ]

    def _on_assign(self, _consumer: object, places: list[TopicPartition]) -> None:
        now = time.monotonic()
        for place in places:
            self._given_at[place.partition] = now


class Watcher(Work):
    """Asks for the group's positions; that is all it has to do with the group."""

    def __init__(self, load: GroupLoad) -> None:
        super().__init__(f"{load.name}-watcher")
        self._load = load
        settings = {"group.id": load.name, "enable.auto.commit": False, "log_level": 0, "reconnect.backoff.max.ms": 200}
        self._consumer = Consumer({"bootstrap.servers": load.bootstrap, **settings})

    def work(self) -> None:
        feed, began_at = self._load.feed, time.monotonic()
        wanted = [TopicPartition(feed.topic, number) for number in range(feed.partitions)]
        try:
            found = self._consumer.committed(wanted, timeout=CALL_SECONDS)
        except KafkaException as error:
            self._load.refused(f"positions: {error}")
            found = []
        at = time.monotonic()
        for place in found:
            if place.error is None:
                self._load.seen.append(Seen(place.partition, max(0, place.offset), began_at, at))
        time.sleep(LOOK_SECONDS)

    def finish(self) -> None:
        self._consumer.close()
