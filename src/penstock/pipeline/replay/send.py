"""A replay's second half: laid-down rows into a topic, at their pace, a tick in a transaction.

With the rows of a tick the transaction writes how far each partition of the origin is, as positions of the group
`penstock-replay-<name>`. So a replay that was stopped, or killed, goes on under its name where its last transaction
ended, and readers of committed records see every row exactly once; a second one of the same name fences the first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.clock import SystemClock
from penstock.client.kafka import groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import PartitionBatch
from penstock.client.kafka.transactional_producer import TransactionalProducer
from penstock.codec.batch.compression import Codec
from penstock.net.address import parse_addresses
from penstock.net.errors import ClientError
from penstock.pipeline.replay.pace import Pace, moments_ms, ticks
from penstock.pipeline.sink import batches as sink_batches

if TYPE_CHECKING:
    import polars as pl

GROUP_PREFIX: Final = "penstock-replay-"
ABORT_PATIENCE_MS: Final = 5_000


class ReplayTarget(msgspec.Struct, frozen=True):
    bootstrap: str
    topic: str
    name: str
    pace: Pace
    # Each row to the partition of the same number; otherwise its key decides.
    keeps_partition: bool = False


def replay_group(name: str) -> str:
    return GROUP_PREFIX + name


async def replayed_below(bootstrap: str, name: str, topic: str) -> dict[int, int]:
    """By partition of the origin, the first offset that was not sent yet."""
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        found = await groups.committed_offsets(client, replay_group(name))
    return {partition: offset for (name_of, partition), offset in found.items() if name_of == topic}


async def send_rows(target: ReplayTarget, rows: Iterable[pl.DataFrame], on_sent: Callable[[int], None]) -> int:
    """How many were sent; `on_sent` hears it after each transaction."""
    async with ClusterClient(parse_addresses(target.bootstrap)) as client:
        producer = TransactionalProducer(client, replay_group(target.name))
        await producer.start()
        # Asked again behind the fence: until then another one of this name may have sent more.
        done = await groups.committed_offsets(client, replay_group(target.name))
        return await _Replay(client, producer, target, on_sent).run(_left_of(rows, done))


def _left_of(rows: Iterable[pl.DataFrame], done: Mapping[tuple[str, int], int]) -> Iterator[pl.DataFrame]:
    """Without what was sent."""
    import polars as pl

    for frame in rows:
        left = frame
        for (topic, partition), offset in done.items():
            is_sent = (pl.col("topic") == topic) & (pl.col("partition") == partition) & (pl.col("offset") < offset)
            left = left.filter(~is_sent)
        if left.height:
            yield left


class _Replay:
    def __init__(
        self,
        client: ClusterClient,
        producer: TransactionalProducer,
        target: ReplayTarget,
        on_sent: Callable[[int], None],
    ) -> None:
        self._client = client
        self._producer = producer
        self._target = target
        self._on_sent = on_sent
        self._sent = 0

    async def run(self, rows: Iterable[pl.DataFrame]) -> int:
        loop = asyncio.get_running_loop()
        began = loop.time()
        first_due_ms: int | None = None
        for frame in rows:
            due = frame["due_ms"].to_numpy()
            first_due_ms = int(due[0]) if first_due_ms is None else first_due_ms
            moments = moments_ms(self._target.pace, due, rows_before=self._sent, first_due_ms=first_due_ms)
            for start, end in ticks(moments):
                wait_seconds = began + float(moments[start]) / 1000 - loop.time()
                if wait_seconds > 0:
                    await asyncio.sleep(wait_seconds)
                await self._send_tick(frame[start:end])
        return self._sent

    async def _send_tick(self, frame: pl.DataFrame) -> None:
        topic = await self._client.topic(self._target.topic, auto_create=True)
        columns = ["key", "value", "headers"] + (["partition"] if self._target.keeps_partition else [])
        built = sink_batches.build(
            self._target.topic,
            frame.select(columns),
            partition_count=len(topic.partitions),
            keyless=self._sent // max(frame.height, 1) % len(topic.partitions),
            timestamp_ms=SystemClock().now_ms(),
            codec=Codec.NONE,
        )
        positions = {
            (row["topic"], row["partition"]): row["offset"] + 1
            for row in frame.select("topic", "partition", "offset")
            .group_by("topic", "partition")
            .max()
            .iter_rows(named=True)
        }
        try:
            await self._send(built)
            await self._producer.commit_offsets(replay_group(self._target.name), positions)
        except BaseException:
            # Nothing was committed; if this cannot be told, the timeout ends it, or the next start of this name.
            with contextlib.suppress(ClientError):
                await self._producer.abort(patience_ms=ABORT_PATIENCE_MS)
            raise
        await self._producer.commit()
        self._sent += frame.height
        self._on_sent(self._sent)

    async def _send(self, batches: Iterable[sink_batches.TargetBatch]) -> None:
        """One batch of a partition at a time, many partitions at once."""
        one_request: dict[int, PartitionBatch] = {}
        for batch in batches:
            if batch.partition in one_request:
                await self._producer.send(list(one_request.values()))
                one_request = {}
            one_request[batch.partition] = PartitionBatch(batch.topic, batch.partition, batch.data, batch.record_count)
        if one_request:
            await self._producer.send(list(one_request.values()))
