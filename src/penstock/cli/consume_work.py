"""What `penstock consume` does: start offsets by meaning, then fetch, format, write."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from penstock.base.clock import Clock, SystemClock
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.moments import AtOffset, AtTime, Earliest, Latest, NotUnderstood, Start, parse_start
from penstock.cli.output import run_async
from penstock.cli.record_format import RowFormatter, RowShape, row_formatter
from penstock.client.address import parse_addresses
from penstock.client.cluster_client import ClusterClient
from penstock.client.consumer import Consumer, ConsumerOptions, Fetched, OffsetOutOfRangeError
from penstock.client.errors import PartitionMissingError
from penstock.client.offsets import OffsetRange, list_offsets, offset_ranges
from penstock.client.rows import NO_END, rows_of

__all__ = ["ConsumePlan", "RowShape", "consume"]


class ConsumePlan(msgspec.Struct, frozen=True):
    topic: str
    start: str
    last: int | None
    # None of them: all.
    partitions: tuple[int, ...]
    count: int | None
    is_following: bool
    is_read_committed: bool


def consume(bootstrap: str, plan: ConsumePlan, shape: RowShape) -> None:
    formatter = row_formatter(plan.topic, shape)
    start = parse_start(plan.start, now_ms=_now_ms(SystemClock()))
    if isinstance(start, NotUnderstood):
        raise CommandError(f"--from: {start.reason}", exit_code=EXIT_USAGE)
    run_async(_consume(bootstrap, plan, start, formatter))


def _now_ms(clock: Clock) -> int:
    return clock.now_ms()


async def _consume(bootstrap: str, plan: ConsumePlan, start: Start, formatter: RowFormatter) -> None:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        info = await client.topic(plan.topic)
        partitions = _chosen(plan, len(info.partitions))
        ranges = await offset_ranges(client, plan.topic, partitions)
        positions = await _positions(client, plan, start, ranges)
        ends = None if plan.is_following else {partition: ranges[partition].end for partition in partitions}
        options = ConsumerOptions(is_read_committed=plan.is_read_committed)
        consumer = Consumer(client, plan.topic, positions, ends=ends, options=options)
        writer = _Writer(formatter, plan.count)
        try:
            while not consumer.is_done and not writer.is_full:
                for fetched in await consumer.poll():
                    writer.write(fetched, NO_END if ends is None else ends[fetched.partition])
        finally:
            consumer.close()


def _chosen(plan: ConsumePlan, partition_count: int) -> Sequence[int]:
    for partition in plan.partitions:
        if partition >= partition_count:
            raise PartitionMissingError(plan.topic, partition, partition_count)
    return plan.partitions or range(partition_count)


async def _positions(
    client: ClusterClient, plan: ConsumePlan, start: Start, ranges: dict[int, OffsetRange]
) -> dict[int, int]:
    if plan.last is not None:
        return {number: max(held.start, held.end - plan.last) for number, held in ranges.items()}
    match start:
        case Earliest():
            return {number: held.start for number, held in ranges.items()}
        case Latest():
            return {number: held.end for number, held in ranges.items()}
        case AtOffset(offset):
            return _at_offset(plan.topic, offset, ranges)
        case AtTime(timestamp_ms):
            found = await list_offsets(client, plan.topic, dict.fromkeys(ranges, timestamp_ms))
            # -1: nothing is that young, so what comes from now on is what was asked for.
            return {number: ranges[number].end if offset < 0 else offset for number, offset in found.items()}


def _at_offset(topic: str, offset: int, ranges: dict[int, OffsetRange]) -> dict[int, int]:
    """The offset need not lie in each partition: where it is past the end, nothing is read yet."""
    if all(offset > held.end for held in ranges.values()):
        end = max(held.end for held in ranges.values())
        raise OffsetOutOfRangeError(f"topic {topic!r} has no offset {offset}: it ends at {end}")
    return {number: min(max(offset, held.start), held.end) for number, held in ranges.items()}


class _Writer:
    """Whole replies at once: one system call for thousands of short lines."""

    def __init__(self, formatter: RowFormatter, count: int | None) -> None:
        self._formatter = formatter
        self._left = count
        self._output = sys.stdout.buffer

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def write(self, fetched: Fetched, end: int) -> None:
        partition, formatter = fetched.partition, self._formatter
        rows = rows_of(fetched, end=end)
        if self._left is None:
            lines = [formatter(partition, record) for record in rows]
        else:
            lines = [formatter(partition, record) for record, _ in zip(rows, range(self._left), strict=False)]
            self._left -= len(lines)
        self._output.write(b"".join(lines))
        self._output.flush()
