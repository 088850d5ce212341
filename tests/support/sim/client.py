"""What clients of a story have in common, by our own wire client: they work until they are told to stop.

Each makes a new connection whenever something has gone wrong, to whichever node answers. Whatever a node says in its
need is welcome, but for what breaks an invariant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Acknowledged, PartitionBatch, Producer, ProducerOptions
from penstock.codec.batch.records import Record, build_batch
from penstock.net.connection import ConnectionOptions
from penstock.net.errors import ClientError
from support.sim.world import World

PARTITIONS: Final = 2
OPTIONS: Final = ConnectionOptions(connect_timeout_ms=1_000, handshake_timeout_ms=1_000, request_timeout_ms=2_000)
# Between two things that a client does; most do them one after the other.
REST_SECONDS: Final = (0.0, 0.02)
# After so many of them it takes its time: a story that lasts long need not be told in every detail.
BUSY_COUNT: Final = 60
TIRED_REST_SECONDS: Final = (0.1, 0.5)
AFTER_TROUBLE_SECONDS: Final = 0.1
VALUE_BYTES_MAX: Final = 600


def undivided(world: World) -> int:
    """Partitions of a topic whose queue or schedule is asked as a whole: one node has to lead them all."""
    return 1 if world.is_cluster else PARTITIONS


class SimClient:
    """Runs `_work` again and again, each time with a connection of its own."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.is_stopping = False
        self._world = world
        self._random = world.random
        self._rest_count = 0

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                async with ClusterClient(self._world.addresses, OPTIONS) as client:
                    await self._work(client)
            except ClientError:
                await asyncio.sleep(AFTER_TROUBLE_SECONDS)

    async def _work(self, client: ClusterClient) -> None:
        raise NotImplementedError

    async def _rest(self) -> None:
        self._rest_count += 1
        bounds = REST_SECONDS if self._rest_count <= BUSY_COUNT else TIRED_REST_SECONDS
        await asyncio.sleep(self._random.uniform(*bounds))

    def _now(self) -> float:
        return self._world.loop.time()


class SimSender(SimClient):
    """Sends to one topic, a batch after the other, with a new producer after trouble."""

    def __init__(self, name: str, world: World, topic: str, *, is_idempotent: bool = True) -> None:
        super().__init__(name, world)
        self._topic = topic
        self._is_idempotent = is_idempotent
        self._number = 0
        # A producer that no longer knows what has become of a batch is given up, and has a successor.
        self._successor = 0
        self._is_doubtful = False

    async def _work(self, client: ClusterClient) -> None:
        patience_ms = self._random.choice((1_000, 8_000, 30_000))
        options = ProducerOptions(
            is_idempotent=self._is_idempotent, request_timeout_ms=2_000, delivery_timeout_ms=patience_ms
        )
        producer = Producer(client, options)
        await producer.start()
        self._successor += 1
        self._is_doubtful = False
        while not self.is_stopping and not self._is_doubtful:
            await self._send(producer)
            await self._rest()

    async def _send(self, producer: Producer) -> None:
        raise NotImplementedError

    async def _send_batch(self, producer: Producer, partition: int, records: Sequence[Record]) -> int | None:
        """Where its first record is, or UNTOLD_OFFSET; None: it was refused."""
        batch = PartitionBatch(self._topic, partition, build_batch(list(records)), len(records))
        (outcome,) = await producer.send([batch])
        if isinstance(outcome, Acknowledged):
            return outcome.base_offset
        # An attempt before may have been taken, its answer lost, and only the last one refused: another batch of the
        # same sequence would pass for this one, and be confirmed without ever having been stored.
        self._is_doubtful = True
        return None

    def _next_value(self) -> bytes:
        """Written once."""
        self._number += 1
        return f"{self.name}/{self._number}/".encode() + b"." * self._random.randrange(VALUE_BYTES_MAX)
