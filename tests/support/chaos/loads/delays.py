"""Delayed messages by HTTP, some of them cancelled, and a reader of the log that looks at the clock when one comes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from msgspec.structs import replace

from support.chaos.checks import Violation
from support.chaos.delay_checks import Arrived, Delayed, check_delays
from support.chaos.loads.http_door import UNAVAILABLE, LeaderDoor
from support.chaos.loads.work import PAUSE_SECONDS, Load, Work

DELAY_MS_MAX: Final = 4_000
SEND_SECONDS: Final = 0.05
# Of those that are not due yet, one in so many is cancelled.
CANCEL_EVERY: Final = 3
# After the last one is due: nothing comes that was to come.
QUIET_SECONDS: Final = 5.0
ARRIVAL_SECONDS_MAX: Final = 60.0


class DelayLoad(Load):
    def __init__(
        self,
        addresses: Callable[[], Mapping[int, str]],
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        seed: int,
    ) -> None:
        super().__init__(topic)
        self.topic = topic
        self.delayed: dict[str, Delayed] = {}
        self.arrived: list[Arrived] = []
        self._sender = Sender(self, LeaderDoor(addresses), seed=seed)
        self._reader = Reader(self, bootstrap, partitions)

    def start(self) -> None:
        self._reader.start()
        self._sender.start()

    def finish(self) -> list[Violation]:
        self._sender.end()
        until = time.monotonic() + ARRIVAL_SECONDS_MAX
        while self._are_missing() and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        time.sleep(QUIET_SECONDS)
        self._reader.end()
        return check_delays(self.delayed, self.arrived)

    def told(self) -> str:
        cancelled = sum(each.is_cancelled for each in self.delayed.values())
        return f"{self.topic}: {len(self.delayed)} delayed, {len(self.arrived)} arrived, {cancelled} cancelled"

    def _are_missing(self) -> bool:
        there = {each.message for each in self.arrived}
        return any(
            each.is_confirmed and not each.is_cancelled and not each.is_perhaps_cancelled and message not in there
            for message, each in self.delayed.items()
        )


class Sender(Work):
    def __init__(self, load: DelayLoad, door: LeaderDoor, *, seed: int) -> None:
        super().__init__(f"{load.topic}-sender")
        self._load = load
        self._door = door
        self._chance = random.Random(seed)
        self._number = 0

    def work(self) -> None:
        value = f"{self._load.topic}-{self._number}"
        self._number += 1
        due_ms = int(time.time() * 1000) + self._chance.randrange(1, DELAY_MS_MAX)
        self._load.delayed[value] = Delayed(due_ms, is_confirmed=False)
        message = {"value": value, "deliver_at": due_ms}
        answer = self._door.ask("POST", f"/v1/topics/{self._load.topic}/messages", {"messages": [message]})
        if answer is None or not answer.is_done or "error" in answer.body["messages"][0]:
            self._load.refused(f"delay: {answer}")
            time.sleep(PAUSE_SECONDS)
            return
        self._load.delayed[value] = Delayed(due_ms, is_confirmed=True)
        if self._number % CANCEL_EVERY == 0:
            self._cancel(value, answer.body["messages"][0]["id"])
        time.sleep(SEND_SECONDS)

    def finish(self) -> None:
        self._door.close()

    def _cancel(self, value: str, message_id: str) -> None:
        answer = self._door.ask("DELETE", f"/v1/schedules/{message_id}")
        promise = self._load.delayed[value]
        if answer is None or answer.status >= UNAVAILABLE:
            self._load.refused(f"cancel: {answer}")
            self._load.delayed[value] = replace(promise, is_perhaps_cancelled=True)
        elif answer.is_done:
            self._load.delayed[value] = replace(promise, is_cancelled=True)
        else:
            # Too late: it was released, or is being released.
            assert answer.status in (404, 409), answer


class Reader(Work):
    def __init__(self, load: DelayLoad, bootstrap: str, partitions: int) -> None:
        super().__init__(f"{load.topic}-reader")
        self._load = load
        settings = {"group.id": self.name, "enable.auto.commit": False, "log_level": 0, "fetch.wait.max.ms": 50}
        self._consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
        self._consumer.assign([TopicPartition(load.topic, number, OFFSET_BEGINNING) for number in range(partitions)])

    def work(self) -> None:
        for message in self._consumer.consume(100, 0.05):
            if message.error() is None:
                value = (message.value() or b"").decode()
                self._load.arrived.append(Arrived(value, time.time() * 1000))

    def finish(self) -> None:
        self._consumer.close()
