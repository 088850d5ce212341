"""`penstock bench consume`: everything that a topic holds, as fast as the node gives it.

Records are counted by batch headers and not decoded: what is measured is the node and the wire. An empty or
new topic is filled first.
"""

from __future__ import annotations

from time import perf_counter

from penstock.cli.output import run_async
from penstock.cli.progress import BenchProgress
from penstock.cli.work.bench.latency_histogram import LatencyHistogram
from penstock.cli.work.bench.plan import BenchPlan, bench_topic
from penstock.cli.work.bench.produce import fill
from penstock.cli.work.bench.report import MEGABYTE, BenchOutcome, show, summarise
from penstock.client.kafka.cluster_client import ClusterClient, TopicInfo
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, Fetched
from penstock.client.kafka.offsets import OffsetRange, offset_ranges
from penstock.codec.batch.header import walk_headers
from penstock.net.address import parse_addresses


def bench_consume(plan: BenchPlan) -> None:
    outcome, histogram = run_async(_bench_consume(plan))
    show(outcome, histogram, as_json=plan.is_json)


async def _bench_consume(plan: BenchPlan) -> tuple[BenchOutcome, LatencyHistogram]:
    async with ClusterClient(parse_addresses(plan.bootstrap)) as client, bench_topic(client, plan) as topic:
        numbers = range(len(topic.partitions))
        ranges = await offset_ranges(client, topic.name, numbers)
        if all(held.start == held.end for held in ranges.values()):
            await fill(client, topic, plan, title="fill")
            ranges = await offset_ranges(client, topic.name, numbers)
        return await _drain(client, topic, plan, ranges)


async def _drain(
    client: ClusterClient, topic: TopicInfo, plan: BenchPlan, ranges: dict[int, OffsetRange]
) -> tuple[BenchOutcome, LatencyHistogram]:
    starts = {number: held.start for number, held in ranges.items()}
    ends = {number: held.end for number, held in ranges.items()}
    consumer = Consumer(client, topic.name, starts, ends=ends, options=ConsumerOptions())
    histogram = LatencyHistogram()
    messages = payload_bytes = requests = 0
    start = asked = perf_counter()
    total = sum(held.end - held.start for held in ranges.values())
    with BenchProgress("consume", float(total)) as progress:
        while not consumer.is_done and not _is_over(plan, messages, perf_counter() - start):
            fetched = await consumer.poll()
            arrived = perf_counter()
            got = sum(_count(part) for part in fetched)
            histogram.record(int((arrived - asked) * 1_000_000), max(got, 1))
            asked = arrived
            messages += got
            payload_bytes += sum(len(part.data) for part in fetched)
            requests += 1
            progress.update(messages, f"{messages / max(arrived - start, 0.001):,.0f} msg/s")
    seconds = max(perf_counter() - start, 0.000_001)
    consumer.close()
    outcome = BenchOutcome(
        kind="consume",
        topic=topic.name,
        partitions=len(topic.partitions),
        message_bytes=payload_bytes // max(messages, 1),
        messages=messages,
        payload_bytes=payload_bytes,
        seconds=round(seconds, 3),
        messages_per_second=round(messages / seconds, 1),
        megabytes_per_second=round(payload_bytes / seconds / MEGABYTE, 3),
        requests=requests,
        latency=summarise(histogram),
    )
    return outcome, histogram


def _is_over(plan: BenchPlan, messages: int, seconds: float) -> bool:
    if plan.messages is not None and messages >= plan.messages:
        return True
    return plan.seconds is not None and seconds >= plan.seconds


def _count(fetched: Fetched) -> int:
    return sum(header.record_count for _, header in walk_headers(fetched.data))
