"""Plain and idempotent producers, and one who reads along."""

from __future__ import annotations

from typing import Final

from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient, PartitionInfo
from penstock.client.kafka.offsets import LATEST
from penstock.client.kafka.producer import Acknowledged, PartitionBatch, Producer
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from support.sim.client import PARTITIONS, SimClient, SimSender
from support.sim.invariants import WATERMARK_MONOTONIC, check
from support.sim.ledger import Ledger, Message
from support.sim.loads.load import TOPIC_SETTINGS
from support.sim.log_checks import check_durable, check_log, check_read
from support.sim.reading import SimReader, read_everything
from support.sim.world import World

TOPIC: Final = "orders"
RECORDS_MAX: Final = 3
TOGETHER_CHANCE: Final = 0.3


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
        asker = [SimAsker("asker", world)] if world.is_cluster else []
        reader = SimReader("reader", world, TOPIC, lambda *read: check_read(ledger, *read), is_read_committed=False)
        return [*producers, *asker, reader]

    async def check(self, client: ClusterClient) -> None:
        check_log(self._ledger, await read_everything(self._world, client, TOPIC))


class SimProducer(SimSender):
    def __init__(self, name: str, world: World, ledger: Ledger, *, is_idempotent: bool) -> None:
        super().__init__(name, world, TOPIC, is_idempotent=is_idempotent)
        self._ledger = ledger

    async def _send(self, producer: Producer) -> None:
        if self._world.is_cluster and self._random.random() < TOGETHER_CHANCE:
            await self._send_together(producer)
            return
        partition = self._random.randrange(PARTITIONS)
        values = [self._value(partition) for _ in range(self._random.randint(1, RECORDS_MAX))]
        self._note(values, await self._send_batch(producer, partition, [Record(value=value) for value in values]))

    async def _send_together(self, producer: Producer) -> None:
        """To all partitions, those of one leader in one request: who is answered waits for each of them."""
        values = {partition: [self._value(partition)] for partition in range(PARTITIONS)}
        batches = [
            PartitionBatch(TOPIC, partition, build_batch([Record(value=value) for value in of_partition]), 1)
            for partition, of_partition in values.items()
        ]
        for outcome, of_partition in zip(await producer.send(batches), values.values(), strict=True):
            self._is_doubtful |= not isinstance(outcome, Acknowledged)
            self._note(of_partition, outcome.base_offset if isinstance(outcome, Acknowledged) else None)

    def _note(self, values: list[bytes], base_offset: int | None) -> None:
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


class SimAsker(SimClient):
    """Asks how far the log goes, of the leader of an epoch: never less far than anybody has said before."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self._ends: dict[int, int] = {}

    async def _work(self, client: ClusterClient) -> None:
        while not self.is_stopping:
            info = await client.topic(TOPIC, is_fresh=True)
            partition = info.partitions[self._random.randrange(PARTITIONS)]
            before = self._ends.get(partition.partition, 0)
            end = await _end_of(client, partition)
            if end is not None:
                what = (
                    f"{TOPIC}-{partition.partition} ended at {before}, and in epoch {partition.leader_epoch} at {end}"
                )
                check(WATERMARK_MONOTONIC, holds=end >= before, what=what)
                self._ends[partition.partition] = max(before, end)
            await self._rest()


async def _end_of(client: ClusterClient, partition: PartitionInfo) -> int | None:
    """As the leader of that very epoch says; None: it does not say."""
    connection = await client.connection_to(partition.leader)
    asked = ListOffsetsPartition(
        partition_index=partition.partition, timestamp=LATEST, current_leader_epoch=partition.leader_epoch
    )
    request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name=TOPIC, partitions=(asked,)),))
    ((answer,),) = [topic.partitions for topic in (await connection.call(request, ListOffsetsResponse)).topics]
    return answer.offset if answer.error_code == 0 else None
