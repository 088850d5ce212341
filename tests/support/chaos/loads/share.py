"""A share group with stock consumers that accept, and now and then give back."""

from __future__ import annotations

import random
import time
from typing import Final

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from support.chaos.checks import Violation
from support.chaos.loads.work import PAUSE_SECONDS, Load, Work
from support.chaos.queue_checks import Delivered, Settled, check_acks, check_fates, check_holders
from support.chaos.steady_load import SteadyLoad

LOCK_MS: Final = 6_000
# A client asks before it is polled: what is surely left of a lock when a message is in hand.
SURE_SECONDS: Final = 3.5
# Never given up: a leader that dies counts the delivery.
DELIVERIES_MAX: Final = 1_000
MEMBERS: Final = 2
RELEASE_SHARE: Final = 0.1
CALL_SECONDS: Final = 10.0
# Nothing is left, or nothing comes, a lock's time after the last one: also one that a new leader has begun anew.
DONE_SECONDS_MAX: Final = 60.0


class ShareLoad(Load):
    """Takes what `feed` sends."""

    def __init__(self, bootstrap: str, feed: SteadyLoad, *, group: str, seed: int) -> None:
        super().__init__(group)
        self.bootstrap = bootstrap
        self.feed = feed
        self.delivered: list[Delivered] = []
        self.settled: list[Settled] = []
        self._members = [Member(self, f"{group}-{number}", seed=seed + number) for number in range(MEMBERS)]

    def define(self, admin: AdminClient) -> None:
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(DELIVERIES_MAX),
            "share.record.lock.duration.ms": str(LOCK_MS),
        }
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, self.name, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(20)

    def start(self) -> None:
        for member in self._members:
            member.start()

    def finish(self) -> list[Violation]:
        """When the feed has ended."""
        until = time.monotonic() + DONE_SECONDS_MAX
        while self._are_left() and time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
        for member in self._members:
            member.end()
        found = check_holders(self.delivered, self.settled, lease_seconds=SURE_SECONDS)
        found += check_acks(self.delivered, self.settled)
        return found + check_fates(self._sent(), self.settled, (), has_dead_letters=False)

    def told(self) -> str:
        return f"{self.name}: {len(self.delivered)} deliveries of {len(self.feed.acked)} messages"

    def _sent(self) -> set[str]:
        return set(self.feed.acked)

    def _are_left(self) -> bool:
        return bool(self._sent() - {each.message for each in list(self.settled) if each.fate == "ack"})


class Member(Work):
    def __init__(self, load: ShareLoad, name: str, *, seed: int) -> None:
        super().__init__(name)
        self._load = load
        self._chance = random.Random(seed)
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": load.bootstrap,
                "group.id": load.name,
                "share.acknowledgement.mode": "explicit",
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([self._load.feed.topic])
        super().run()

    def work(self) -> None:
        asked_at = time.monotonic()
        messages = [each for each in self._consumer.poll(0.2) if each.error() is None]
        at = time.monotonic()
        self._load.delivered += [Delivered(value_of(each), self.name, asked_at, at) for each in messages]
        fates: dict[int, list[tuple[str, str]]] = {}
        for message in messages:
            is_release = self._chance.random() < RELEASE_SHARE
            self._consumer.acknowledge(message, AcknowledgeType.RELEASE if is_release else AcknowledgeType.ACCEPT)
            fate = "release" if is_release else "ack"
            fates.setdefault(message.partition() or 0, []).append((value_of(message), fate))
        if fates:
            self._commit(fates)

    def finish(self) -> None:
        self._consumer.close()

    def _commit(self, fates: dict[int, list[tuple[str, str]]]) -> None:
        asked_at = time.monotonic()
        done: dict[int, object] = {}
        try:
            for place, error in self._consumer.commit_sync(CALL_SECONDS).items():
                done[place.partition] = error
        except KafkaException as error:
            self._load.refused(f"acknowledge: {error}")
        at = time.monotonic()
        for partition, settled in fates.items():
            is_done = partition in done and done[partition] is None
            if not is_done:
                self._load.refused(f"acknowledge: {done.get(partition)}")
            self._load.settled += [
                Settled(value, self.name, fate, asked_at, at if is_done else None) for value, fate in settled
            ]


def value_of(message: Message) -> str:
    return (message.value() or b"").decode()
