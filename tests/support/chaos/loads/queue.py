"""A queue by HTTP at whoever leads it: published, acked, rejected, given back, forgotten; and its dead letters."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from support.chaos.checks import Violation
from support.chaos.loads.http_door import LeaderDoor
from support.chaos.loads.work import PAUSE_SECONDS, Load, Work
from support.chaos.queue_checks import Delivered, Settled, check_acks, check_fates, check_holders
from support.chaos.steady_load import read_partition

LEASE_MS: Final = 3_000
# Of a lease, what is surely left of it when clocks and waits are counted.
SURE_SECONDS: Final = 2.5
COUNT: Final = 10
DELIVERIES_MAX: Final = 4
PUBLISH_SECONDS: Final = 0.05
WAIT_MS: Final = 100
# Nothing came for so long: every lease is over, also one that a new leader has begun anew.
QUIET_SECONDS: Final = 5.0
BURIED_SECONDS_MAX: Final = 60.0
FATES: Final = ("ack", "reject", "release", "forget")
WEIGHTS: Final = (75, 10, 10, 5)

Addresses = Callable[[], Mapping[int, str]]


class QueueLoad(Load):
    """`topic` has one partition: HTTP answers for what the asked node leads. So has the topic of its dead letters."""

    def __init__(self, addresses: Addresses, bootstrap: str, topic: str, *, seed: int) -> None:
        super().__init__(topic)
        self.topic = topic
        self.dead_topic = f"{topic}-dead"
        self.path = f"/v1/queues/{topic}/workers"
        self.published: set[str] = set()
        # No answer came: it may be there, or not.
        self.perhaps_published: set[str] = set()
        self.delivered: list[Delivered] = []
        self.settled: list[Settled] = []
        self._bootstrap = bootstrap
        self._door = LeaderDoor(addresses)
        self._publisher = Publisher(self, LeaderDoor(addresses))
        self._receivers = [
            Receiver(self, f"{topic}-{number}", LeaderDoor(addresses), seed=seed + number) for number in range(2)
        ]

    def define(self) -> None:
        options = {"deliveries_max": DELIVERIES_MAX, "dead_letter_topic": self.dead_topic, "lease_ms": LEASE_MS}
        answer = self._door.insist("PUT", self.path, options)
        assert answer is not None, "nobody answers"
        assert answer.is_done, answer

    def start(self) -> None:
        self._publisher.start()
        for receiver in self._receivers:
            receiver.start()

    def finish(self) -> list[Violation]:
        self._publisher.end()
        for receiver in self._receivers:
            receiver.chance = None
        # One after the other: the second finds nothing.
        for receiver in self._receivers:
            receiver.end()
        found = check_holders(self.delivered, self.settled, lease_seconds=SURE_SECONDS)
        found += check_acks(self.delivered, self.settled)
        return found + check_fates(self.published, self.settled, self._dead_letters(), maybe=self.perhaps_published)

    def told(self) -> str:
        acked = sum(each.fate == "ack" and each.confirmed_at is not None for each in self.settled)
        return f"{self.topic}: {len(self.published)} published, {len(self.delivered)} deliveries, {acked} acked"

    def _dead_letters(self) -> list[str]:
        """Those that must come are waited for; what else comes is seen too."""
        wanted = {each.message for each in self.settled if each.fate == "reject" and each.confirmed_at is not None}
        until = time.monotonic() + BURIED_SECONDS_MAX
        while True:
            found = [value for _, value in read_partition(self._bootstrap, self.dead_topic, 0)]
            if wanted <= set(found) or time.monotonic() > until:
                return found
            time.sleep(PAUSE_SECONDS)


class Publisher(Work):
    def __init__(self, load: QueueLoad, door: LeaderDoor) -> None:
        super().__init__(f"{load.topic}-publisher")
        self._load = load
        self._door = door
        self._number = 0

    def work(self) -> None:
        # Never the same again: a publish that got no answer may have been done.
        values = [f"{self._load.topic}-{self._number + place}" for place in range(2)]
        self._number += len(values)
        self._load.perhaps_published.update(values)
        messages = {"messages": [{"value": value} for value in values]}
        answer = self._door.ask("POST", f"/v1/topics/{self._load.topic}/messages", messages)
        if answer is None or not answer.is_done:
            self._load.refused(f"publish: {answer}")
        else:
            outcomes = zip(values, answer.body["messages"], strict=True)
            self._load.published.update(value for value, outcome in outcomes if "error" not in outcome)
        time.sleep(PUBLISH_SECONDS)

    def finish(self) -> None:
        self._door.close()


class Receiver(Work):
    def __init__(self, load: QueueLoad, name: str, door: LeaderDoor, *, seed: int) -> None:
        super().__init__(name)
        self._load = load
        self._door = door
        # None: everything is acked.
        self.chance: random.Random | None = random.Random(seed)

    def work(self) -> None:
        if not self._receive():
            time.sleep(PAUSE_SECONDS)

    def finish(self) -> None:
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET_SECONDS:
            if self._receive():
                quiet_since = time.monotonic()
            else:
                time.sleep(PAUSE_SECONDS)
        self._door.close()

    def _receive(self) -> bool:
        asked_at = time.monotonic()
        wanted = {"count": COUNT, "wait_ms": WAIT_MS, "lease_ms": LEASE_MS, "consumer": self.name}
        answer = self._door.ask("POST", f"{self._load.path}/receive", wanted)
        if answer is None or not answer.is_done:
            self._load.refused(f"receive: {answer}")
            return False
        messages, at = answer.body["messages"], time.monotonic()
        self._load.delivered += [Delivered(message["value"], self.name, asked_at, at) for message in messages]
        fates: dict[str, list[Any]] = {}
        for message in messages:
            fates.setdefault(self._choose(), []).append(message)
        for fate, chosen in fates.items():
            self._settle(fate, chosen)
        return bool(messages)

    def _choose(self) -> str:
        return "ack" if self.chance is None else self.chance.choices(FATES, WEIGHTS)[0]

    def _settle(self, fate: str, messages: list[Any]) -> None:
        if fate == "forget":
            return
        values = {message["receipt"]: message["value"] for message in messages}
        body: dict[str, object] = {"receipts": list(values)}
        if fate == "reject":
            body |= {"reject": True, "error": "by chance"}
        elif fate == "release":
            body |= {"delay_ms": 0}
        asked_at = time.monotonic()
        answer = self._door.ask("POST", f"{self._load.path}/{'ack' if fate == 'ack' else 'nack'}", body)
        at = time.monotonic()
        done: set[str] = set()
        if answer is None or not answer.is_done:
            self._load.refused(f"{fate}: {answer}")
        else:
            done = {result["receipt"] for result in answer.body["results"] if result["outcome"] == "done"}
        self._load.settled += [
            Settled(value, self.name, fate, asked_at, at if receipt in done else None)
            for receipt, value in values.items()
        ]
