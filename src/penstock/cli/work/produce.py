"""What `penstock produce` does: lines → batches by partition → acknowledgements, a few requests under way.

Memory is bounded by the batches that wait (line_source) and the requests under way. Lines without a key go to
one partition a batch, the next batch to the next partition; lines with a key go where every Kafka client
would send them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, cast

import msgspec

from penstock.base.clock import Clock, SystemClock
from penstock.cli.failure import CommandError
from penstock.cli.line_source import BatchLimits, LineSource
from penstock.cli.output import print_json, run_async, say
from penstock.cli.work.produce_tally import ProduceTally
from penstock.client.errors import PartitionMissingError
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.producer import Acks, PartitionBatch, Producer, ProducerOptions, Refused
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, read_header
from penstock.codec.batch.records import Headers
from penstock.codec.columns.frame import build_batches_from_columns
from penstock.domain.partitioner import StickyPartitions, partition_for_key
from penstock.net.address import parse_addresses

SENDS_UNDER_WAY_MAX: Final = 5


class ProducePlan(msgspec.Struct, frozen=True):
    topic: str
    files: tuple[Path, ...]
    is_whole_file: bool
    key: bytes | None
    key_separator: bytes | None
    headers: Headers
    partition: int | None
    compression: str
    acks: int
    batch_lines_max: int
    # Their time comes later, so the offsets of the reply are not theirs.
    is_delayed: bool = False


class LineRouter:
    """Decides for each batch of lines which partitions get what."""

    def __init__(self, plan: ProducePlan, partition_count: int, clock: Clock) -> None:
        if plan.partition is not None and plan.partition >= partition_count:
            raise PartitionMissingError(plan.topic, plan.partition, partition_count)
        self._plan = plan
        self._partition_count = partition_count
        self._clock = clock
        self._codec = Codec[plan.compression.upper()]
        self._sticky = StickyPartitions(partition_count, first=clock.now_ms())

    def rounds(self, lines: Sequence[bytes]) -> list[list[PartitionBatch]]:
        """What to send, one request after another: a request takes one batch of a partition, and long headers may
        make more than one of its lines.
        """
        if self._plan.key_separator is None:
            by_partition = {self._partition_of(self._plan.key): [(self._plan.key, line) for line in lines]}
        else:
            by_partition = self._split_keys(lines, self._plan.key_separator)
        now_ms = self._clock.now_ms()
        rounds: list[list[PartitionBatch]] = []
        for partition, rows in by_partition.items():
            for number, batch in enumerate(self._batches(partition, rows, now_ms)):
                if number == len(rounds):
                    rounds.append([])
                rounds[number].append(batch)
        return rounds

    def _split_keys(self, lines: Sequence[bytes], separator: bytes) -> dict[int, list[tuple[bytes | None, bytes]]]:
        """A line without the separator has no key."""
        by_partition: dict[int, list[tuple[bytes | None, bytes]]] = {}
        without_key = self._partition_of(None)
        for line in lines:
            key, found, value = line.partition(separator)
            if found:
                by_partition.setdefault(self._partition_of(key), []).append((key, value))
            else:
                by_partition.setdefault(without_key, []).append((None, line))
        return by_partition

    def _partition_of(self, key: bytes | None) -> int:
        if self._plan.partition is not None:
            return self._plan.partition
        if key is None:
            return self._sticky.next_partition()
        return partition_for_key(key, self._partition_count)

    def _batches(self, partition: int, rows: list[tuple[bytes | None, bytes]], now_ms: int) -> Iterator[PartitionBatch]:
        headers = [self._plan.headers] * len(rows) if self._plan.headers else None
        keys, values = [key for key, _ in rows], [value for _, value in rows]
        for data in build_batches_from_columns(keys, values, now_ms, headers, codec=self._codec):
            header = read_header(data)
            assert isinstance(header, BatchHeader)
            yield PartitionBatch(self._plan.topic, partition, data, header.record_count)


def produce(bootstrap: str, plan: ProducePlan, *, as_json: bool = False) -> None:
    tally = ProduceTally(plan.topic, is_acknowledged=plan.acks != 0, is_delayed=plan.is_delayed)
    is_whole = False
    try:
        run_async(_produce(bootstrap, plan, tally, SystemClock()))
        is_whole = True
    finally:
        # After a failure too, if there is something to tell: whoever sends the rest must know where to begin.
        if tally.message_count or (is_whole and tally.refusal is None):
            if as_json:
                print_json(tally.document())
            else:
                say(tally.sentence())
    if tally.refusal is not None:
        raise CommandError(tally.refusal)


async def _produce(bootstrap: str, plan: ProducePlan, tally: ProduceTally, clock: Clock) -> None:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        topic = await client.topic(plan.topic, auto_create=True)
        tally.topic_id = topic.topic_id
        # Kafka's own default: with acks=all a retry after a lost connection must not write twice.
        options = ProducerOptions(acks=cast(Acks, plan.acks), is_idempotent=plan.acks == -1)
        producer = Producer(client, options)
        await producer.start()
        router = LineRouter(plan, len(topic.partitions), clock)
        if not plan.files and sys.stdin.isatty():
            say("each line becomes a message; Ctrl-D ends")
        source = LineSource(plan.files, is_whole_file=plan.is_whole_file)
        source.start()
        room = asyncio.Semaphore(SENDS_UNDER_WAY_MAX)
        async with asyncio.TaskGroup() as sends:
            async for lines in source.batches(BatchLimits(lines_max=plan.batch_lines_max)):
                # A task for each, made in order: the order of the lines is the order of a partition's batches.
                for batches in router.rounds(lines):
                    await room.acquire()
                    sends.create_task(_send(producer, batches, tally, room))
                if tally.refusal is not None:
                    break


async def _send(
    producer: Producer, batches: list[PartitionBatch], tally: ProduceTally, room: asyncio.Semaphore
) -> None:
    try:
        for outcome in await producer.send(batches):
            if isinstance(outcome, Refused):
                tally.refusal = tally.refusal or outcome.sentence()
            else:
                tally.add(outcome)
    finally:
        room.release()
