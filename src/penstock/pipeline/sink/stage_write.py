"""A task's work in the sink: its rows as ordinary batches in the stage, which nobody takes for messages.

The stage is one internal topic for all queries. Its partition 0 holds no rows: the fences of queries are offsets of it,
and in an empty partition they show no lag. All batches for one partition of a topic lie in one partition of the stage,
so that their order is kept. Rows of a task that failed, or of a batch that was never committed, go by retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final
from zlib import crc32

import msgspec

from penstock.base.clock import SystemClock
from penstock.client.errors import TopicMissingError
from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Acknowledged, Outcome, PartitionBatch, Producer, ProducerOptions
from penstock.client.patience import NOT_YET, ask_patiently
from penstock.codec.batch.header import HEADER_BYTES
from penstock.codec.batch.rewrite import header_of
from penstock.codec.columns.write import BATCH_BYTES_MAX
from penstock.codec.kafka import ErrorCode
from penstock.domain.topic_rules import SPARK_STAGE
from penstock.net.address import parse_addresses
from penstock.net.errors import BrokerError, ClientError
from penstock.pipeline.sink import batches as sink_batches
from penstock.pipeline.sink.batches import TargetBatch
from penstock.pipeline.sink.options import SinkOptions
from penstock.pipeline.sink.stage_window import SendWindow

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE_MS: Final = 120_000
# One for fences, eight for rows: what one request carries at most, and enough for the writers of one node.
STAGE_PARTITIONS: Final = 9
FENCE_PARTITION: Final = 0
# Rows are needed until their micro-batch is committed, minutes at most; whoever finds them gone says so and stages
# again.
STAGE_CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(3 * 3_600_000),
    "segment.ms": str(10 * 60_000),
    "segment.bytes": str(64 * 1024 * 1024),
    # Whatever the topics take that rows are for. What is too large for its topic is refused there.
    "max.message.bytes": str(64 * 1024 * 1024),
}
# Of one request; a node takes frames up to 100 MiB.
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
# A batch that does not get smaller by compression gets a little larger.
_COMPRESSION_ROOM: Final = 0.99


class StagedBatch(msgspec.Struct, frozen=True):
    """Where a batch lies in the stage, and where it is to go."""

    stage_partition: int
    base_offset: int
    topic: str
    partition: int
    record_count: int
    size_bytes: int
    # Whose it is: after a power failure, other rows may lie at an offset that was told before it.
    producer_id: int
    base_sequence: int


class Target(msgspec.Struct, frozen=True):
    """What a topic takes."""

    partition_count: int
    batch_bytes_max: int


def stage_rows(
    options: SinkOptions, rows: Iterable[pa.RecordBatch], *, task: int, stage: type[StageWriter] | None = None
) -> list[StagedBatch]:
    """Blocking: a Python worker of Spark has no loop. `rows` is read as it goes, a chunk at a time."""
    return asyncio.run(_stage_rows(options, rows, task, stage or StageWriter))


async def _stage_rows(
    options: SinkOptions, rows: Iterable[pa.RecordBatch], task: int, stage: type[StageWriter]
) -> list[StagedBatch]:
    client = ClusterClient(parse_addresses(options.bootstrap))
    staged: StageWriter | None = None
    targets: dict[str, Target] = {}
    clock = SystemClock()
    try:
        for frame in sink_batches.chunks(rows, rows_max=stage.chunk_rows_max):
            if staged is None:
                await ask_patiently(client.connect, patience_ms=PATIENCE_MS)
                staged = stage(client, await ensure_stage(client))
                await staged.start()
            for topic, part in sink_batches.by_topic(frame, options.topic):
                target = targets.get(topic)
                if target is None:
                    target = targets[topic] = await _look_at(client, topic)
                built = sink_batches.build(
                    topic,
                    part,
                    partition_count=target.partition_count,
                    keyless=task % target.partition_count,
                    timestamp_ms=clock.now_ms(),
                    codec=options.codec,
                    batch_bytes_max=target.batch_bytes_max,
                )
                await staged.write(built)
            # Rows without a key: a chunk to each partition in turn.
            task += 1
        return [] if staged is None else await staged.finish()
    finally:
        if staged is not None:
            staged.close()
        client.close()


async def ensure_stage(client: ClusterClient) -> int:
    """How many partitions it has."""

    async def ask() -> int:
        try:
            return len((await client.topic(SPARK_STAGE)).partitions)
        except TopicMissingError:
            pass
        try:
            await admin.create_topic(client, SPARK_STAGE, partitions=STAGE_PARTITIONS, configs=STAGE_CONFIGS)
        except BrokerError as error:
            # Another task was first.
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        return len((await client.topic(SPARK_STAGE, is_fresh=True)).partitions)

    return await ask_patiently(ask, patience_ms=PATIENCE_MS)


async def _look_at(client: ClusterClient, topic: str) -> Target:
    async def ask() -> Target:
        count = len((await client.topic(topic, auto_create=True)).partitions)
        return Target(count, await _batch_bytes_max(client, topic))

    return await ask_patiently(ask, patience_ms=PATIENCE_MS)


async def _batch_bytes_max(client: ClusterClient, topic: str) -> int:
    """As many rows in a batch as the topic takes, and not more than is of use."""
    try:
        configs = await admin.describe_topic_configs(client, topic)
    except (BrokerError, TopicMissingError) as error:
        if isinstance(error, BrokerError) and error.code in NOT_YET:
            raise
        # Who may write a topic need not be allowed to see its configs, and one that was just made may not be known yet.
        return BATCH_BYTES_MAX
    told = next((config.value for config in configs if config.name == "max.message.bytes"), None)
    if told is None:
        return BATCH_BYTES_MAX
    return max(1, min(BATCH_BYTES_MAX, int(int(told) * _COMPRESSION_ROOM) - HEADER_BYTES))


class StageWriter:
    # How many rows it is given at once.
    chunk_rows_max: ClassVar[int] = sink_batches.CHUNK_ROWS_MAX

    def __init__(self, client: ClusterClient, stage_partitions: int) -> None:
        self._stage_partitions = stage_partitions
        # Idempotent for the order: a batch that is sent again must not come after its successor.
        self._producer = Producer(client, ProducerOptions(is_idempotent=True, delivery_timeout_ms=PATIENCE_MS))
        self._window = SendWindow[list[StagedBatch]]()
        self._staged: list[StagedBatch] = []

    async def start(self) -> None:
        await ask_patiently(self._producer.start, patience_ms=PATIENCE_MS)

    async def write(self, batches: Iterable[TargetBatch]) -> None:
        """Returns when all are sent and few are still without a reply."""
        one_request: dict[int, TargetBatch] = {}
        size_bytes = 0
        for batch in batches:
            place = stage_partition_of(batch.topic, batch.partition, self._stage_partitions)
            if place in one_request or (one_request and size_bytes + len(batch.data) > REQUEST_BYTES_MAX):
                await self._send(one_request)
                one_request, size_bytes = {}, 0
            one_request[place] = batch
            size_bytes += len(batch.data)
        if one_request:
            await self._send(one_request)

    async def finish(self) -> list[StagedBatch]:
        """All of them, once they are durable."""
        for staged in await self._window.finish():
            self._staged += staged
        return self._staged

    def close(self) -> None:
        self._window.close()

    async def _send(self, one_request: dict[int, TargetBatch]) -> None:
        for staged in await self._window.add(self._stage(one_request)):
            self._staged += staged

    async def _stage(self, one_request: dict[int, TargetBatch]) -> list[StagedBatch]:
        request = [
            PartitionBatch(SPARK_STAGE, place, batch.data, batch.record_count) for place, batch in one_request.items()
        ]
        return _as_staged(list(one_request.values()), await self._producer.send(request))


def stage_partition_of(topic: str, partition: int, stage_partitions: int) -> int:
    assert stage_partitions > 1
    return 1 + (crc32(topic.encode()) + partition) % (stage_partitions - 1)


def _as_staged(batches: Sequence[TargetBatch], outcomes: Sequence[Outcome]) -> list[StagedBatch]:
    staged: list[StagedBatch] = []
    for batch, outcome in zip(batches, outcomes, strict=True):
        if not isinstance(outcome, Acknowledged):
            raise ClientError(f"rows were not staged: {outcome.sentence()}")
        if outcome.base_offset < 0:
            raise ClientError("rows were staged, but where is not known any more: the task must be run again")
        signed = header_of(memoryview(outcome.batch.data))
        staged.append(
            StagedBatch(
                outcome.batch.partition,
                outcome.base_offset,
                batch.topic,
                batch.partition,
                batch.record_count,
                len(batch.data),
                signed.producer_id,
                signed.base_sequence,
            )
        )
    return staged
