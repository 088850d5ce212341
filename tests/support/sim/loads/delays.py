"""Delayed messages: each is there once, not before it is due, and never if it was cancelled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.broker.parts import Parts
from penstock.broker.schedule.values import ChangeOutcome, NotScheduled, PendingMessage
from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Producer
from penstock.codec.batch.records import Record
from penstock.domain.schedule.commands import Done
from penstock.domain.schedule.headers import DELAY_HEADER
from penstock.net.errors import ClientError
from support.sim.client import SimClient, SimSender, undivided
from support.sim.invariants import CANCELLED_STAYS, DELAY_ONCE, NO_PHANTOM, READ_STAYS, check
from support.sim.ledger import Place
from support.sim.loads.load import TOPIC_SETTINGS, until
from support.sim.log_checks import check_durable
from support.sim.reading import SimReader, read_everything
from support.sim.world import World

TOPIC: Final = "reminders"
PLACE: Final = (TOPIC, 0)
RECORDS_MAX: Final = 3
DELAYS_MS: Final = (0, 30, 200, 1_500)
PENDING_COUNT: Final = 5
CANCEL_REST_SECONDS: Final = (0.0, 0.3)


@dataclass(slots=True)
class Reminder:
    sent_at: float
    delay_ms: int
    is_acknowledged: bool = False
    is_cancelled: bool = False
    may_be_cancelled: bool = False
    places: set[Place] = field(default_factory=set)


class DelayBooks:
    def __init__(self, world: World) -> None:
        self._world = world
        self.reminders: dict[bytes, Reminder] = {}
        self.seen: dict[Place, bytes] = {}

    def on_read(self, place: Place, value: bytes) -> None:
        check(NO_PHANTOM, holds=value in self.reminders, what=f"{value!r} at {place}: nobody sent it")
        before = self.seen.setdefault(place, value)
        check(READ_STAYS, holds=before == value, what=f"{place} held {before!r} for one and {value!r} for another")
        reminder = self.reminders[value]
        reminder.places.add(place)
        what = f"{value!r} is at {sorted(reminder.places)}"
        check(DELAY_ONCE, holds=len(reminder.places) == 1, what=what)
        check(CANCELLED_STAYS, holds=not reminder.is_cancelled, what=f"{value!r} was cancelled and is at {place}")
        passed_ms = self._world.highest_ms(reminder.sent_at) - self._world.lowest_ms(reminder.sent_at)
        what = f"{value!r} was read {passed_ms} ms after it was sent, and delayed by {reminder.delay_ms} ms"
        # The clock counts whole milliseconds.
        check(DELAY_ONCE, holds=passed_ms + 1 >= reminder.delay_ms, what=what)


class DelayLoad:
    rests_on = frozenset({f"{TOPIC}.schedule"})

    def __init__(self, world: World) -> None:
        self._world = world
        self._books = DelayBooks(world)

    async def prepare(self, client: ClusterClient) -> None:
        await create_topic(client, TOPIC, partitions=undivided(self._world), configs=TOPIC_SETTINGS)

    def clients(self) -> list[SimClient]:
        world, books = self._world, self._books
        reader = SimReader(
            "reminded", world, TOPIC, books.on_read, is_read_committed=False, partitions=undivided(world)
        )
        return [SimReminder("clerk", world, books), SimCanceller("canceller", world, books), reader]

    async def check(self, client: ClusterClient) -> None:
        await until(self._world, self._is_nothing_pending, "a message that is due was not released")
        everything = await read_everything(self._world, client, TOPIC, partitions=undivided(self._world))
        for place, value in everything.values.items():
            self._books.on_read(place, value)
        present = set(everything.values.values())
        for place, value in self._books.seen.items():
            is_there = everything.values.get(place) == value or place in everything.rotten
            check(READ_STAYS, holds=is_there, what=f"{value!r} was read at {place} and is gone")
        for value, reminder in self._books.reminders.items():
            is_owed = reminder.is_acknowledged and not reminder.may_be_cancelled and not everything.rotten
            check(DELAY_ONCE, holds=value in present or not is_owed, what=f"{value!r} was confirmed and never came")

    async def _is_nothing_pending(self) -> bool:
        return not await self._world.ask(_pending, led=PLACE)


class SimReminder(SimSender):
    def __init__(self, name: str, world: World, books: DelayBooks) -> None:
        super().__init__(name, world, TOPIC)
        self._books = books

    async def _send(self, producer: Producer) -> None:
        delays_ms = {self._next_value(): self._random.choice(DELAYS_MS) for _ in range(RECORDS_MAX)}
        for value, delay_ms in delays_ms.items():
            self._books.reminders[value] = Reminder(self._now(), delay_ms)
        records = [
            Record(value=value, headers=((DELAY_HEADER, b"%d" % delay_ms),)) for value, delay_ms in delays_ms.items()
        ]
        if await self._send_batch(producer, self._random.randrange(undivided(self._world)), records) is not None:
            for value in delays_ms:
                self._books.reminders[value].is_acknowledged = True
                check_durable(self._world, value)


class SimCanceller(SimClient):
    def __init__(self, name: str, world: World, books: DelayBooks) -> None:
        super().__init__(name, world)
        self._books = books

    async def _work(self, client: ClusterClient) -> None:
        while not self.is_stopping:
            pending = await self._world.ask(_pending, led=PLACE)
            if pending:
                await self._cancel(self._random.choice(pending))
            await self._rest()

    async def _cancel(self, message: PendingMessage) -> None:
        reminder = self._books.reminders[message.value or b""]
        reminder.may_be_cancelled = True
        outcome = await self._world.ask(lambda parts: _cancel(parts, message.message_id), led=PLACE)
        reminder.is_cancelled = isinstance(outcome, Done)


async def _pending(parts: Parts) -> list[PendingMessage]:
    topic = parts.broker.topic(TOPIC)
    if topic is None:
        raise ClientError(f"{TOPIC} is not served")
    elsewhere = topic.why_not_whole()
    if elsewhere is not None:
        raise ClientError(elsewhere)
    page = await parts.schedules.list_due(topic, None, PENDING_COUNT)
    if isinstance(page, NotScheduled):
        raise ClientError(page.reason)
    return page.messages


async def _cancel(parts: Parts, message_id: str) -> ChangeOutcome:
    return await parts.schedules.cancel(message_id)
