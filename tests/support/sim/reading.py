"""Readers of a story: one that reads along, and the last one, who reads everything there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, Fetched
from penstock.client.kafka.offsets import offset_ranges
from penstock.client.patience import ask_patiently
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import read_records
from penstock.codec.kafka import ErrorCode
from penstock.net.errors import BrokerError
from support.sim.client import AFTER_TROUBLE_SECONDS, PARTITIONS, SimClient
from support.sim.invariants import NO_DAMAGE, check
from support.sim.ledger import Place
from support.sim.world import World

TRIES_MAX: Final = 100
PATIENCE_MS: Final = 120_000

OnRead = Callable[[Place, bytes], None]


class SimReader(SimClient):
    """Reads along from the beginning, and begins anew after trouble."""

    def __init__(
        self,
        name: str,
        world: World,
        topic: str,
        on_read: OnRead,
        *,
        is_read_committed: bool,
        partitions: int = PARTITIONS,
    ) -> None:
        super().__init__(name, world)
        self._topic = topic
        self._partitions = partitions
        self._on_read = on_read
        self._is_read_committed = is_read_committed

    async def _work(self, client: ClusterClient) -> None:
        options = ConsumerOptions(wait_ms=self._random.choice((10, 200)), is_read_committed=self._is_read_committed)
        consumer = Consumer(client, self._topic, dict.fromkeys(range(self._partitions), 0), options=options)
        try:
            while not self.is_stopping:
                for fetched in await consumer.poll():
                    for place, value in values_of(fetched):
                        self._on_read(place, value)
                await self._rest()
        finally:
            consumer.close()


@dataclass(slots=True)
class Everything:
    """What a topic holds in the end."""

    values: dict[Place, bytes] = field(default_factory=dict)
    # Offsets that its node says are damaged, and those of them whose bytes have rotted.
    damaged: set[Place] = field(default_factory=set)
    rotten: set[Place] = field(default_factory=set)


async def read_everything(
    world: World, client: ClusterClient, topic: str, *, partitions: int = PARTITIONS, is_read_committed: bool = False
) -> Everything:
    found = Everything()
    info = await ask_patiently(lambda: client.topic(topic), patience_ms=PATIENCE_MS)
    ranges = await ask_patiently(
        lambda: offset_ranges(client, topic, range(partitions), is_read_committed=is_read_committed),
        patience_ms=PATIENCE_MS,
    )
    for partition in range(partitions):
        options = ConsumerOptions(wait_ms=10, is_read_committed=is_read_committed)
        reading = _Reading(client, topic, partition, ranges[partition].end, options)
        async for fetched in reading.all():
            found.values.update(values_of(fetched))
        log = f"{info.topic_id.hex()}/{partition}"
        excused = {offset for offset in reading.damaged if world.may_be_damaged(log, offset)}
        told = sorted(set(reading.damaged) - excused)
        check(NO_DAMAGE, holds=not told, what=f"offsets {told} of {topic}-{partition} on a disk that kept them")
        found.damaged |= {(partition, offset) for offset in reading.damaged}
        found.rotten |= {(partition, offset) for offset in reading.damaged if world.is_rotten(log, offset)}
    return found


class _Reading:
    """All of a partition up to its end, whatever is damaged of it."""

    def __init__(self, client: ClusterClient, topic: str, partition: int, end: int, options: ConsumerOptions) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._end = end
        self._options = options
        self._position = 0
        self.damaged: list[int] = []

    async def all(self) -> AsyncIterator[Fetched]:
        tries = 0
        while self._position < self._end:
            try:
                async for fetched in self._read():
                    yield fetched
            except BrokerError as error:
                if error.code == ErrorCode.KAFKA_STORAGE_ERROR and tries < TRIES_MAX:
                    # Offline since a sync failed, and read again every so often.
                    tries += 1
                    await asyncio.sleep(AFTER_TROUBLE_SECONDS)
                elif error.code == ErrorCode.CORRUPT_MESSAGE:
                    self.damaged.append(self._position)
                    self._position += 1
                else:
                    raise

    async def _read(self) -> AsyncIterator[Fetched]:
        consumer = Consumer(
            self._client,
            self._topic,
            {self._partition: self._position},
            ends={self._partition: self._end},
            options=self._options,
        )
        try:
            while not consumer.is_done:
                for fetched in await consumer.poll():
                    yield fetched
                    self._position = fetched.next_position
            self._position = self._end
        finally:
            consumer.close()


def values_of(fetched: Fetched) -> list[tuple[Place, bytes]]:
    """Without those of aborted transactions, and what is nobody's message."""
    found: list[tuple[Place, bytes]] = []
    for position, header in walk_headers(fetched.data):
        if header.is_control or header.base_offset in fetched.aborted:
            continue
        records = read_records(fetched.data, position)
        assert isinstance(records, list), records
        found += [((fetched.partition, record.offset), bytes(record.value or b"")) for record in records]
    return found
