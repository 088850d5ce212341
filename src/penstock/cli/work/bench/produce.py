"""`penstock bench produce`: as many whole batches as the node takes, a fixed number under way.

Each request carries one batch for one partition, partitions in turn. Latency is from the send of a request to
its acknowledgement: this loop waits for the node, so for latency under a given load see bench latency.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from penstock.base.clock import Clock, SystemClock
from penstock.cli.failure import CommandError
from penstock.cli.output import run_async
from penstock.cli.progress import BenchProgress
from penstock.cli.work.bench.latency_histogram import LatencyHistogram
from penstock.cli.work.bench.load import BatchTemplates, messages_per_batch
from penstock.cli.work.bench.plan import BenchPlan, bench_topic
from penstock.cli.work.bench.report import MEGABYTE, BenchOutcome, show, summarise
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.client.kafka.producer import PartitionBatch, Producer, ProducerOptions, Refused
from penstock.codec.batch.compression import Codec
from penstock.net.address import parse_addresses


def bench_produce(plan: BenchPlan) -> None:
    outcome, histogram = run_async(_bench_produce(plan))
    show(outcome, histogram, as_json=plan.is_json)


async def _bench_produce(plan: BenchPlan) -> tuple[BenchOutcome, LatencyHistogram]:
    async with ClusterClient(parse_addresses(plan.bootstrap)) as client, bench_topic(client, plan) as topic:
        return await fill(client, topic, plan, title="produce")


async def fill(
    client: ClusterClient, topic: TopicInfo, plan: BenchPlan, *, title: str
) -> tuple[BenchOutcome, LatencyHistogram]:
    load = _ProduceLoad(client, topic, plan, SystemClock())
    total = float(plan.messages) if plan.messages is not None else plan.seconds
    with BenchProgress(title, total) as progress:
        load.progress = progress
        await load.run()
    return load.outcome(), load.histogram


class _ProduceLoad:
    """A few senders share one plan of messages; each waits for an acknowledgement before it sends again."""

    def __init__(self, client: ClusterClient, topic: TopicInfo, plan: BenchPlan, clock: Clock) -> None:
        self._plan = plan
        self._topic = topic
        self._clock = clock
        self._producer = Producer(client, ProducerOptions(acks=plan.acks, requests_in_flight_max=plan.in_flight_max))
        self._templates = BatchTemplates(size_bytes=plan.size_bytes, codec=Codec[plan.compression.upper()])
        self._per_batch = messages_per_batch(plan.size_bytes, plan.batch_bytes)
        self._planned = 0
        self._requests = 0
        self._start = 0.0
        self._end = 0.0
        self.acknowledged = 0
        self.histogram = LatencyHistogram()
        self.progress: BenchProgress | None = None

    async def run(self) -> None:
        self._templates.dated(self._per_batch, 0)
        self._start = perf_counter()
        async with asyncio.TaskGroup() as senders:
            for _ in range(self._plan.in_flight_max):
                senders.create_task(self._send_until_done())
        self._end = perf_counter()

    async def _send_until_done(self) -> None:
        while (count := self._take()) > 0:
            partition = self._requests % len(self._topic.partitions)
            self._requests += 1
            data = self._templates.dated(count, self._clock.now_ms())
            sent = perf_counter()
            outcomes = await self._producer.send([PartitionBatch(self._topic.name, partition, data, count)])
            if self._plan.acks != 0:
                self.histogram.record(int((perf_counter() - sent) * 1_000_000), count)
            for outcome in outcomes:
                if isinstance(outcome, Refused):
                    raise CommandError(outcome.sentence())
            self.acknowledged += count
            self._tell()

    def _take(self) -> int:
        """How many messages the next batch has; 0 at the end."""
        if self._plan.seconds is not None and perf_counter() - self._start >= self._plan.seconds:
            return 0
        if self._plan.messages is None:
            return self._per_batch
        count = min(self._per_batch, self._plan.messages - self._planned)
        self._planned += count
        return count

    def _tell(self) -> None:
        if self.progress is None or not self.progress.is_shown:
            return
        elapsed = max(perf_counter() - self._start, 0.001)
        done = self.acknowledged if self._plan.messages is not None else elapsed
        self.progress.update(done, f"{self.acknowledged / elapsed:,.0f} msg/s")

    def outcome(self) -> BenchOutcome:
        seconds = max(self._end - self._start, 0.000_001)
        payload_bytes = self.acknowledged * self._plan.size_bytes
        return BenchOutcome(
            kind="produce",
            topic=self._topic.name,
            partitions=len(self._topic.partitions),
            message_bytes=self._plan.size_bytes,
            messages=self.acknowledged,
            payload_bytes=payload_bytes,
            seconds=round(seconds, 3),
            messages_per_second=round(self.acknowledged / seconds, 1),
            megabytes_per_second=round(payload_bytes / seconds / MEGABYTE, 3),
            requests=self._requests,
            # Without acknowledgements there is nothing to have waited for.
            latency=summarise(self.histogram) if self._plan.acks != 0 else None,
        )
