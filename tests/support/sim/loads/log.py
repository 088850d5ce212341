"""Plain and idempotent producers, and one who reads along."""

from __future__ import annotations

from typing import Final

from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Producer
from penstock.codec.batch.records import Record
from support.sim.client import PARTITIONS, SimClient, SimSender
from support.sim.ledger import Ledger, Message
from support.sim.loads.load import TOPIC_SETTINGS
from support.sim.log_checks import check_durable, check_log, check_read
from support.sim.reading import SimReader, read_everything
from support.sim.world import World

TOPIC: Final = "orders"
RECORDS_MAX: Final = 3


class LogLoad:
    rests_on = frozenset[str]()

    def __init__(self, world: World) -> None:
        self._world = world
        self._ledger = Ledger()

    async def prepare(self, client: ClusterClient) -> None:
        await create_topic(client, TOPIC, partitions=PARTITIONS, configs=TOPIC_SETTINGS)

    def clients(self) -> list[SimClient]:
        world, ledger = self._world, self._ledger
        kinds = [True, False, world.random.random() < 0.5]
        producers = [
            SimProducer(f"{'sure' if is_idempotent else 'plain'}-{number}", world, ledger, is_idempotent=is_idempotent)
            for number, is_idempotent in enumerate(kinds)
        ]
        reader = SimReader("reader", world, TOPIC, lambda *read: check_read(ledger, *read), is_read_committed=False)
        return [*producers, reader]

    async def check(self, client: ClusterClient) -> None:
        check_log(self._ledger, await read_everything(self._world, client, TOPIC))


class SimProducer(SimSender):
    def __init__(self, name: str, world: World, ledger: Ledger, *, is_idempotent: bool) -> None:
        super().__init__(name, world, TOPIC, is_idempotent=is_idempotent)
        self._ledger = ledger

    async def _send(self, producer: Producer) -> None:
        partition = self._random.randrange(PARTITIONS)
        values = [self._value(partition) for _ in range(self._random.randint(1, RECORDS_MAX))]
        base_offset = await self._send_batch(producer, partition, [Record(value=value) for value in values])
        if base_offset is None:
            return
        for delta, value in enumerate(values):
            is_told = base_offset >= 0
            self._ledger.messages[value].offset = base_offset + delta if is_told else base_offset
            check_durable(self._world, value)

    def _value(self, partition: int) -> bytes:
        value = self._next_value()
        producer = f"{self.name} no. {self._successor}"
        self._ledger.messages[value] = Message(producer, self._number, partition, self._is_idempotent)
        return value
