"""A topic that forgets: its leader alone decides what is old, and its followers forget that and nothing else."""

from __future__ import annotations

from typing import Final

from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Producer
from penstock.codec.batch.records import Record
from support.sim.client import PARTITIONS, SimClient, SimSender
from support.sim.ledger import Ledger, Message
from support.sim.loads.load import TOPIC_SETTINGS
from support.sim.log_checks import check_read
from support.sim.reading import read_everything
from support.sim.world import World

TOPIC: Final = "ring"
# Within the steps of a clock.
RETENTION_MS: Final = 15_000
SENDERS: Final = 2
RECORDS_MAX: Final = 4


class RingLoad:
    rests_on = frozenset[str]()

    def __init__(self, world: World) -> None:
        self._world = world
        self._ledger = Ledger()

    async def prepare(self, client: ClusterClient) -> None:
        configs = {**TOPIC_SETTINGS, "retention.ms": str(RETENTION_MS)}
        await create_topic(client, TOPIC, partitions=PARTITIONS, configs=configs)

    def clients(self) -> list[SimClient]:
        return [SimRinger(f"ringer-{number}", self._world, self._ledger) for number in range(SENDERS)]

    async def check(self, client: ClusterClient) -> None:
        """Whatever is left was sent by somebody; that all replicas hold the same of it, others look after."""
        for place, value in (await read_everything(self._world, client, TOPIC)).values.items():
            check_read(self._ledger, place, value)


class SimRinger(SimSender):
    def __init__(self, name: str, world: World, ledger: Ledger) -> None:
        super().__init__(name, world, TOPIC)
        self._ledger = ledger

    async def _send(self, producer: Producer) -> None:
        partition = self._random.randrange(PARTITIONS)
        values = [self._next_value() for _ in range(self._random.randint(1, RECORDS_MAX))]
        for value in values:
            self._ledger.messages[value] = Message(self.name, self._number, partition, is_idempotent=True)
        await self._send_batch(producer, partition, [Record(value=value) for value in values])
