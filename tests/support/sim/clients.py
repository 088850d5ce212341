"""Clients of a story, by our own wire client: they write down what they do and what they are told.

Each works until it is told to stop, and makes a new connection whenever something has gone wrong. Whatever a node
answers in its need is welcome, but for what breaks an invariant.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, Fetched
from penstock.client.kafka.groups import commit_offsets
from penstock.client.kafka.producer import Acknowledged, PartitionBatch, Producer, ProducerOptions
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import Record, build_batch, read_records
from penstock.codec.kafka import ErrorCode
from penstock.net.address import Address
from penstock.net.connection import ConnectionOptions
from penstock.net.errors import BrokerError, ClientError
from support.sim.invariants import check_read
from support.sim.ledger import Commits, Ledger, Message, Place

TOPIC: Final = "orders"
GROUP: Final = "workers"
PARTITIONS: Final = 2
OPTIONS: Final = ConnectionOptions(connect_timeout_ms=1_000, handshake_timeout_ms=1_000, request_timeout_ms=2_000)
# Between two things that a client does; most do them one after the other.
REST_SECONDS: Final = (0.0, 0.02)
# After so many of them it takes its time: a story that lasts long need not be told in every detail.
BUSY_COUNT: Final = 100
TIRED_REST_SECONDS: Final = (0.1, 0.5)
AFTER_TROUBLE_SECONDS: Final = 0.1
TRIES_MAX: Final = 100
RECORDS_MAX: Final = 3
VALUE_BYTES_MAX: Final = 600


class SimClient:
    """Runs `_work` again and again, each time with a connection of its own."""

    def __init__(self, name: str, address: Address, ledger: Ledger, random: Random) -> None:
        self.name = name
        self.is_stopping = False
        self._address = address
        self._ledger = ledger
        self._random = random
        self._rest_count = 0

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                async with ClusterClient([self._address], OPTIONS) as client:
                    await self._work(client)
            except ClientError:
                await asyncio.sleep(AFTER_TROUBLE_SECONDS)

    async def _work(self, client: ClusterClient) -> None:
        raise NotImplementedError

    async def _rest(self) -> None:
        self._rest_count += 1
        bounds = REST_SECONDS if self._rest_count <= BUSY_COUNT else TIRED_REST_SECONDS
        await asyncio.sleep(self._random.uniform(*bounds))


class SimProducer(SimClient):
    def __init__(
        self,
        name: str,
        address: Address,
        ledger: Ledger,
        random: Random,
        *,
        is_idempotent: bool,
        on_acknowledged: Callable[[bytes], None],
    ) -> None:
        super().__init__(name, address, ledger, random)
        self._is_idempotent = is_idempotent
        self._on_acknowledged = on_acknowledged
        self._number = 0
        self._successor = 0

    async def _work(self, client: ClusterClient) -> None:
        producer = Producer(
            client,
            ProducerOptions(
                is_idempotent=self._is_idempotent, request_timeout_ms=2_000, delivery_timeout_ms=self._patience_ms()
            ),
        )
        await producer.start()
        self._successor += 1
        while not self.is_stopping:
            await self._send(producer)
            await self._rest()

    def _patience_ms(self) -> int:
        return self._random.choice((1_000, 8_000, 30_000))

    async def _send(self, producer: Producer) -> None:
        partition = self._random.randrange(PARTITIONS)
        values = [self._value(partition) for _ in range(self._random.randint(1, RECORDS_MAX))]
        batch = build_batch([Record(value=value) for value in values])
        (outcome,) = await producer.send([PartitionBatch(TOPIC, partition, batch, len(values))])
        if isinstance(outcome, Acknowledged):
            for delta, value in enumerate(values):
                is_told = outcome.base_offset >= 0
                self._ledger.messages[value].offset = outcome.base_offset + delta if is_told else -1
                self._on_acknowledged(value)

    def _value(self, partition: int) -> bytes:
        value = f"{self.name}/{self._number}/".encode()
        value += b"." * self._random.randrange(VALUE_BYTES_MAX)
        producer = f"{self.name} no. {self._successor}"
        self._ledger.messages[value] = Message(producer, self._number, partition, self._is_idempotent)
        self._number += 1
        return value


class SimCommitter(SimClient):
    """Commits one offset after the other for a group."""

    async def _work(self, client: ClusterClient) -> None:
        while not self.is_stopping:
            partition = self._random.randrange(PARTITIONS)
            commits = self._ledger.commits.setdefault(partition, Commits())
            offset = len(commits.asked)
            commits.asked.append(offset)
            await commit_offsets(client, GROUP, {(TOPIC, partition): offset})
            commits.confirmed_count = len(commits.asked)
            await self._rest()


class SimReader(SimClient):
    """Reads along from the beginning, and begins anew after trouble."""

    async def _work(self, client: ClusterClient) -> None:
        options = ConsumerOptions(wait_ms=self._random.choice((10, 200)))
        consumer = Consumer(client, TOPIC, dict.fromkeys(range(PARTITIONS), 0), options=options)
        try:
            while not self.is_stopping:
                for fetched in await consumer.poll():
                    for place, value in values_of(fetched):
                        check_read(self._ledger, place, value)
                await self._rest()
        finally:
            consumer.close()


def values_of(fetched: Fetched) -> list[tuple[Place, bytes]]:
    found: list[tuple[Place, bytes]] = []
    for position, _header in walk_headers(fetched.data):
        records = read_records(fetched.data, position)
        assert isinstance(records, list), records
        found += [((fetched.partition, record.offset), bytes(record.value or b"")) for record in records]
    return found


async def read_everything(client: ClusterClient, partition: int, *, end: int) -> tuple[dict[Place, bytes], list[int]]:
    """All of a partition, and the offsets that its node says are damaged."""
    found: dict[Place, bytes] = {}
    damaged: list[int] = []
    position = tries = 0
    while position < end:
        try:
            async for fetched in _read(client, partition, start=position, end=end):
                found.update(values_of(fetched))
                position = fetched.next_position
        except BrokerError as error:
            if error.code == ErrorCode.KAFKA_STORAGE_ERROR and tries < TRIES_MAX:
                # Offline since a sync failed, and read again every so often.
                tries += 1
                await asyncio.sleep(AFTER_TROUBLE_SECONDS)
            elif error.code == ErrorCode.CORRUPT_MESSAGE:
                damaged.append(position)
                position += 1
            else:
                raise
    return found, damaged


async def _read(client: ClusterClient, partition: int, *, start: int, end: int) -> AsyncIterator[Fetched]:
    options = ConsumerOptions(wait_ms=10)
    consumer = Consumer(client, TOPIC, {partition: start}, ends={partition: end}, options=options)
    try:
        while not consumer.is_done:
            for fetched in await consumer.poll():
                yield fetched
    finally:
        consumer.close()
