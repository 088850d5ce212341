"""A queue with consumers that accept, give back, reject, and forget what they were given; and its dead letters."""

from __future__ import annotations

from typing import Final

from penstock.broker.queue.messages import Message, QueueTotals, ReceivedMessages
from penstock.broker.queue.settling import ReceiptSettlement
from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Producer
from penstock.codec.batch.records import Record
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import DEAD_LETTER_SUFFIX, QueueName, QueueOptions
from penstock.net.errors import ClientError
from support.sim.client import SimClient, SimSender, undivided
from support.sim.loads.load import TOPIC_SETTINGS, until
from support.sim.loads.queue_books import Delivery, Job, QueueBooks
from support.sim.log_checks import check_durable
from support.sim.reading import read_everything
from support.sim.world import World

TOPIC: Final = "jobs"
PLACE: Final = (TOPIC, 0)
LETTERS: Final = f"{TOPIC}{DEAD_LETTER_SUFFIX}"
NAME: Final = QueueName(TOPIC, "crew")
LEASE_MS: Final = 400
# With one, whatever fails is a dead letter.
DELIVERIES_MAX: Final = (1, 3)
CONSUMERS: Final = 3
RECORDS_MAX: Final = 3
RECEIVED_MAX: Final = 4
WAIT_MS: Final = 300
LEASES_MS: Final = (50, 400, 1_500)
# What becomes of a delivery; None: nothing, until its lease has run out.
FATES: Final[dict[Act | None, int]] = {Act.ACCEPT: 5, Act.RELEASE: 2, Act.REJECT: 2, None: 2}


class QueueLoad:
    rests_on = frozenset({f"{TOPIC}.queues"})

    def __init__(self, world: World) -> None:
        self._world = world
        self._books = QueueBooks()
        deliveries_max = world.random.choice(DELIVERIES_MAX)
        self._options = QueueOptions(lease_ms=LEASE_MS, deliveries_max=deliveries_max)

    async def prepare(self, client: ClusterClient) -> None:
        for topic in (TOPIC, LETTERS):
            await create_topic(client, topic, partitions=undivided(self._world), configs=TOPIC_SETTINGS)
        await until(self._world, self._define, "the queue could not be made")

    async def _define(self) -> bool:
        await self._world.ask(lambda parts: parts.queues.define(NAME, self._options))
        return True

    def clients(self) -> list[SimClient]:
        consumers = [SimConsumer(f"hand-{number}", self._world, self._books) for number in range(CONSUMERS)]
        return [SimEmployer("employer", self._world, self._books), *consumers]

    async def check(self, client: ClusterClient) -> None:
        last = SimConsumer("last", self._world, self._books)
        await until(self._world, lambda: self._is_empty(last), "the queue is not empty")
        jobs = await read_everything(self._world, client, TOPIC, partitions=undivided(self._world))
        letters = await read_everything(self._world, client, LETTERS, partitions=undivided(self._world))
        self._books.check_end(jobs, letters)

    async def _is_empty(self, last: SimConsumer) -> bool:
        while await last.take(act=Act.ACCEPT):
            pass
        totals = await self._world.ask(lambda parts: parts.delivery.totals(NAME), led=PLACE)
        if not isinstance(totals, QueueTotals):
            raise ClientError(f"no totals: {totals}")
        return not (totals.backlog_count or totals.leased_count or totals.waiting_count or totals.dying_count)


class SimEmployer(SimSender):
    def __init__(self, name: str, world: World, books: QueueBooks) -> None:
        super().__init__(name, world, TOPIC)
        self._books = books

    async def _send(self, producer: Producer) -> None:
        values = [self._next_value() for _ in range(self._random.randint(1, RECORDS_MAX))]
        self._books.jobs.update({value: Job() for value in values})
        partition = self._random.randrange(undivided(self._world))
        if await self._send_batch(producer, partition, [Record(value=value) for value in values]) is not None:
            for value in values:
                self._books.jobs[value].is_acknowledged = True
                check_durable(self._world, value)


class SimConsumer(SimClient):
    def __init__(self, name: str, world: World, books: QueueBooks) -> None:
        super().__init__(name, world)
        self._books = books

    async def _work(self, client: ClusterClient) -> None:
        while not self.is_stopping:
            act = self._random.choices(list(FATES), list(FATES.values()))[0]
            await self.take(act=act)
            await self._rest()

    async def take(self, *, act: Act | None) -> int:
        """Some messages, all of them with the same fate; how many."""
        lease_ms, count_max = self._random.choice(LEASES_MS), self._random.randint(1, RECEIVED_MAX)
        asked_at = self._now()
        received = await self._world.ask(
            lambda parts: parts.delivery.receive(
                NAME, consumer=self.name, count_max=count_max, wait_ms=WAIT_MS, lease_ms=lease_ms
            ),
            led=PLACE,
        )
        if not isinstance(received, ReceivedMessages):
            raise ClientError(f"nothing was received: {received}")
        deliveries = [self._note(message, asked_at, lease_ms) for message in received.messages]
        await self._rest()
        if act is not None and received.messages:
            await self._settle(act, received.messages, deliveries)
        return len(received.messages)

    def _note(self, message: Message, asked_at: float, lease_ms: int) -> Delivery:
        delivery = Delivery(message.source.number, message.delivery_count, message.until_ms, asked_at, lease_ms)
        place = message.source.partition, message.record.offset
        self._books.deliver(_value_of(message), place, delivery, highest_ms=self._world.highest_ms())
        if self._world.is_cluster and not self._world.has_set_clock:
            self._books.check_alone(_value_of(message), self._now())
        return delivery

    async def _settle(self, act: Act, messages: tuple[Message, ...], deliveries: list[Delivery]) -> None:
        for message, delivery in zip(messages, deliveries, strict=True):
            delivery.is_given_back = act is not Act.ACCEPT
            self._books.jobs[_value_of(message)].may_be_accepted |= act is Act.ACCEPT
        items = [ReceiptSettlement(message.receipt, act) for message in messages]
        outcomes = await self._world.ask(lambda parts: parts.delivery.settle(NAME, items), led=PLACE)
        if not isinstance(outcomes, list):
            raise ClientError(f"nothing was settled: {outcomes}")
        for message, delivery, outcome in zip(messages, deliveries, outcomes, strict=True):
            if outcome is Outcome.DONE and act is Act.ACCEPT:
                self._books.accept(_value_of(message), delivery)


def _value_of(message: Message) -> bytes:
    return bytes(message.record.value or b"")
