"""`penstock bench latency`: messages due at a fixed rate, whether or not the node keeps up.

    due        1 2 3 4 5 6 7 8 …          every 1/rate seconds, message n for partition n modulo P
    tick           ↑       ↑              every linger: one request with all that is due, a batch a partition
    latency    ├───────────────┤          from when a message was *due* to its acknowledgement

A late tick, a full pipe or a slow reply makes the latency of every message that was due meanwhile longer:
nothing is left out because the client was waiting (no coordinated omission). The disk is probed before and
after the load, with writes of a tick's size at a tick's pace, so that the two can be compared.
"""

from __future__ import annotations

import asyncio
import gc

# uvloop's own time stands still within one turn and counts whole milliseconds.
from time import perf_counter
from typing import Final

import msgspec

from penstock.base.clock import Clock, SystemClock
from penstock.cli.failure import CommandError
from penstock.cli.output import run_async
from penstock.cli.progress import BenchProgress
from penstock.cli.work.bench.disk_probe import probe_disk
from penstock.cli.work.bench.latency_histogram import LatencyHistogram
from penstock.cli.work.bench.load import RECORD_OVERHEAD_BYTES, BatchTemplates, messages_per_batch
from penstock.cli.work.bench.plan import BenchPlan, bench_topic
from penstock.cli.work.bench.report import MEGABYTE, BenchOutcome, show, summarise
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.client.kafka.producer import PartitionBatch, Producer, ProducerOptions, Refused
from penstock.codec.batch.compression import Codec
from penstock.net.address import parse_addresses

# Far more than a healthy node owes at 2 ms a tick; past it messages wait in the client, and their latency
# tells.
IN_FLIGHT_MAX: Final = 128
# Connections, compilers and caches settle before anything counts.
WARM_UP_SECONDS: Final = 0.5
PROBE_SECONDS_MAX: Final = 3.0
# A batch stays well below a topic's default message size limit, whatever has piled up.
BATCH_BYTES_MAX: Final = 900_000


def bench_latency(plan: BenchPlan) -> None:
    outcome, histogram = run_async(_bench_latency(plan))
    show(outcome, histogram, as_json=plan.is_json)


async def _bench_latency(plan: BenchPlan) -> tuple[BenchOutcome, LatencyHistogram]:
    seconds = plan.seconds if plan.seconds is not None else (plan.messages or 0) / plan.rate
    disk = LatencyHistogram()
    async with ClusterClient(parse_addresses(plan.bootstrap)) as client, bench_topic(client, plan) as topic:
        await _probe(plan, disk, seconds)
        await OpenLoop(client, topic, plan, SystemClock()).run(WARM_UP_SECONDS)
        load = OpenLoop(client, topic, plan, SystemClock())
        with BenchProgress("latency", seconds) as progress:
            load.progress = progress
            await _without_collector(load, seconds)
        await _probe(plan, disk, seconds)
    return _with_disk(load.outcome(), disk), load.histogram


async def _probe(plan: BenchPlan, disk: LatencyHistogram, seconds: float) -> None:
    if plan.probe_directory is None:
        return
    per_tick = max(int(plan.rate * plan.linger_ms / 1000), 1)
    found = await asyncio.to_thread(
        probe_disk,
        plan.probe_directory,
        write_bytes=per_tick * (plan.size_bytes + RECORD_OVERHEAD_BYTES),
        seconds=min(max(seconds / 4, 1.0), PROBE_SECONDS_MAX),
        interval_ms=plan.linger_ms,
    )
    disk.merge(found)


async def _without_collector(load: OpenLoop, seconds: float) -> None:
    """The client's own garbage collector would be part of the node's latency."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        await load.run(seconds)
    finally:
        gc.enable()
        gc.unfreeze()


def _with_disk(outcome: BenchOutcome, disk: LatencyHistogram) -> BenchOutcome:
    if not disk.count or outcome.latency is None:
        return outcome
    disk_p99_us = max(disk.percentile_us(99), 1)
    ratio = round(outcome.latency.p99_ms * 1000 / disk_p99_us, 2)
    return msgspec.structs.replace(outcome, disk_sync=summarise(disk), disk_ratio=ratio)


class OpenLoop:
    def __init__(self, client: ClusterClient, topic: TopicInfo, plan: BenchPlan, clock: Clock) -> None:
        self._plan = plan
        self._topic = topic
        self._clock = clock
        self._producer = Producer(client, ProducerOptions(acks=plan.acks, requests_in_flight_max=IN_FLIGHT_MAX))
        self._templates = BatchTemplates(size_bytes=plan.size_bytes, codec=Codec[plan.compression.upper()])
        self._partition_count = len(topic.partitions)
        self._per_request_max = self._partition_count * messages_per_batch(plan.size_bytes, BATCH_BYTES_MAX)
        self._sent = 0
        self._requests = 0
        self._under_way = 0
        self._acknowledged = 0
        self._start = 0.0
        self._end = 0.0
        self._behind = 0.0
        self.histogram = LatencyHistogram()
        self.progress: BenchProgress | None = None

    async def run(self, seconds: float) -> None:
        total = int(self._plan.rate * seconds)
        self._batches(0, 2 * self._partition_count + int(self._plan.rate * self._plan.linger_ms / 500))
        linger = self._plan.linger_ms / 1000
        self._start = perf_counter()
        next_tick = self._start
        async with asyncio.TaskGroup() as sends:
            while self._sent < total:
                next_tick = max(next_tick + linger, perf_counter())
                await asyncio.sleep(next_tick - perf_counter())
                now = perf_counter()
                self._behind = max(self._behind, now - next_tick)
                due = min(int((now - self._start) * self._plan.rate), total)
                count = min(due - self._sent, self._per_request_max)
                if count > 0 and self._under_way < IN_FLIGHT_MAX:
                    sends.create_task(self._send(self._sent, count))
                    self._sent += count
                    self._under_way += 1
        self._end = perf_counter()

    async def _send(self, first: int, count: int) -> None:
        try:
            outcomes = await self._producer.send(self._batches(first, count))
        finally:
            self._under_way -= 1
        now = perf_counter()
        for outcome in outcomes:
            if isinstance(outcome, Refused):
                raise CommandError(outcome.sentence())
        rate = self._plan.rate
        oldest_us = (now - self._start - first / rate) * 1_000_000
        self.histogram.record_run(oldest_us, step_us=1_000_000 / rate, count=count)
        self._acknowledged += count
        self._requests += 1
        if self.progress is not None and self.progress.is_shown and self._requests % 64 == 0:
            note = f"{self._acknowledged / (now - self._start):,.0f} msg/s   "
            note += f"p99 {self.histogram.percentile_us(99) / 1000:.2f} ms"
            self.progress.update(now - self._start, note)

    def _batches(self, first: int, count: int) -> list[PartitionBatch]:
        """Message n goes to partition n modulo P: some partitions get one message more than others."""
        now_ms = self._clock.now_ms()
        partitions = self._partition_count
        each, more = divmod(count, partitions)
        name = self._topic.name
        # All batches of a size are alike: two sizes a tick, whatever the number of partitions.
        small = self._templates.dated(each, now_ms) if each else bytearray()
        large = self._templates.dated(each + 1, now_ms) if more else bytearray()
        batches = []
        for number in range(count if each == 0 else partitions):
            partition = (first + number) % partitions
            if number < more:
                batches.append(PartitionBatch(name, partition, large, each + 1))
            else:
                batches.append(PartitionBatch(name, partition, small, each))
        return batches

    def outcome(self) -> BenchOutcome:
        seconds = max(self._end - self._start, 0.000_001)
        payload_bytes = self._acknowledged * self._plan.size_bytes
        return BenchOutcome(
            kind="latency",
            topic=self._topic.name,
            partitions=self._partition_count,
            message_bytes=self._plan.size_bytes,
            messages=self._acknowledged,
            payload_bytes=payload_bytes,
            seconds=round(seconds, 3),
            messages_per_second=round(self._acknowledged / seconds, 1),
            megabytes_per_second=round(payload_bytes / seconds / MEGABYTE, 3),
            requests=self._requests,
            latency=summarise(self.histogram),
            behind_ms_max=round(self._behind * 1000, 3),
        )
