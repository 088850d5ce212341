"""What `penstock consume` does: where to begin and to end by meaning, then fetch, format, write.

The end of what is read is the end as of the start of the command, unless it follows. By time:

- `--at T` begins in each partition at the first record stamped T or later, and shows everything from there on: what
  comes after it in the log may be stamped earlier, for timestamps are the producers' and need not be sorted.
- `--between A B` shows exactly the records stamped A or later and before B. No record before the first one stamped A
  or later can be one of them; behind it, each may be, so that everything up to the end is read and looked at. Whoever
  knows how late his records are at most says so (`--late-max`): the reading then ends at the first record stamped so
  long after B, and what comes behind that, later than promised, is not seen.

With either of them partitions are merged in the order of time (`merge`), unless it follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from penstock.cli.moments import AtOffset, AtTime, Earliest, Latest, Start
from penstock.cli.output import run_async, say, write_bytes
from penstock.cli.record_format import RowFormatter, RowShape, row_formatter
from penstock.cli.work.consume.merge import TimeMerge
from penstock.client.errors import PartitionMissingError
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, Fetched, OffsetOutOfRangeError
from penstock.client.kafka.offsets import OffsetRange, list_offsets, offset_ranges
from penstock.client.kafka.rows import NO_END, SkippedBatches, rows_of
from penstock.codec.batch.records import StoredRecord
from penstock.net.address import parse_addresses

__all__ = ["ConsumePlan", "RowShape", "Window", "chosen_partitions", "consume"]

# Merging holds up to two pieces of each partition: so many bytes for all of them together.
MERGE_BYTES_MAX: Final = 64 * 1024 * 1024
MERGE_PIECE_BYTES_MIN: Final = 16 * 1024


class Window(msgspec.Struct, frozen=True):
    """Records stamped from `since_ms` on, before `before_ms`."""

    since_ms: int
    before_ms: int
    # None: a record may come arbitrarily long after others with later timestamps.
    late_ms_max: int | None = None


class ConsumePlan(msgspec.Struct, frozen=True):
    topic: str
    start: Start = Earliest()
    # Instead of the start: so many offsets before the end of each partition.
    last: int | None = None
    # Instead of the start: only these.
    window: Window | None = None
    # None of them: all.
    partitions: tuple[int, ...] = ()
    count: int | None = None
    is_following: bool = False
    is_merged: bool = False
    is_read_committed: bool = False
    skips_damaged: bool = False


def consume(bootstrap: str, plan: ConsumePlan, shape: RowShape) -> None:
    formatter = row_formatter(plan.topic, shape)
    run_async(_consume(bootstrap, plan, formatter))


async def _consume(bootstrap: str, plan: ConsumePlan, formatter: RowFormatter) -> None:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        partitions = await chosen_partitions(client, plan.topic, plan.partitions)
        ranges = await offset_ranges(client, plan.topic, partitions, is_read_committed=plan.is_read_committed)
        positions = await _positions(client, plan, ranges)
        ends = None if plan.is_following else await _ends(client, plan, ranges)
        is_merged = plan.is_merged and len(positions) > 1 and ends is not None
        consumer = Consumer(client, plan.topic, positions, ends=ends, options=_options(plan, positions, is_merged))
        writer = _Writer(formatter, plan.count)
        skipped = SkippedBatches() if plan.skips_damaged else None
        rows = _Rows(plan.window, ends, skipped)
        try:
            if is_merged:
                await _write_merged(consumer, writer, rows)
            else:
                await _write_as_it_comes(consumer, writer, rows)
        finally:
            consumer.close()
            _tell_skipped(skipped)


def _tell_skipped(skipped: SkippedBatches | None) -> None:
    """Beside the messages, so that whoever pipes them on sees it, too."""
    if skipped is not None and skipped.batch_count:
        batches = "1 damaged batch" if skipped.batch_count == 1 else f"{skipped.batch_count:,} damaged batches"
        say(f"skipped {batches} with {skipped.offset_count:,} offsets")


async def chosen_partitions(client: ClusterClient, topic: str, asked: Sequence[int]) -> Sequence[int]:
    """Those that were asked for, or all there are."""
    partition_count = len((await client.topic(topic)).partitions)
    for partition in asked:
        if partition >= partition_count:
            raise PartitionMissingError(topic, partition, partition_count)
    return asked or range(partition_count)


def _options(plan: ConsumePlan, positions: dict[int, int], is_merged: bool) -> ConsumerOptions:
    if not is_merged:
        return ConsumerOptions(is_read_committed=plan.is_read_committed)
    piece_bytes = max(MERGE_BYTES_MAX // 2 // len(positions), MERGE_PIECE_BYTES_MIN)
    whole = ConsumerOptions()
    return ConsumerOptions(
        is_read_committed=plan.is_read_committed,
        partition_bytes_max=min(whole.partition_bytes_max, piece_bytes),
    )


async def _positions(client: ClusterClient, plan: ConsumePlan, ranges: dict[int, OffsetRange]) -> dict[int, int]:
    if plan.last is not None:
        return {number: max(held.start, held.end - plan.last) for number, held in ranges.items()}
    start = plan.start if plan.window is None else AtTime(plan.window.since_ms)
    match start:
        case Earliest():
            return {number: held.start for number, held in ranges.items()}
        case Latest():
            return {number: held.end for number, held in ranges.items()}
        case AtOffset(offset):
            return _at_offset(plan.topic, offset, ranges)
        case AtTime(timestamp_ms):
            found = await list_offsets(client, plan.topic, dict.fromkeys(ranges, max(timestamp_ms, 0)))
            # -1: nothing is that young, so what comes from now on is what was asked for.
            return {number: ranges[number].end if offset < 0 else offset for number, offset in found.items()}


def _at_offset(topic: str, offset: int, ranges: dict[int, OffsetRange]) -> dict[int, int]:
    """The offset need not lie in each partition: where it is past the end, nothing is read yet."""
    if all(offset > held.end for held in ranges.values()):
        end = max(held.end for held in ranges.values())
        raise OffsetOutOfRangeError(f"topic {topic!r} has no offset {offset}: it ends at {end}")
    return {number: min(max(offset, held.start), held.end) for number, held in ranges.items()}


async def _ends(client: ClusterClient, plan: ConsumePlan, ranges: dict[int, OffsetRange]) -> dict[int, int]:
    ends = {number: held.end for number, held in ranges.items()}
    window = plan.window
    if window is None or window.late_ms_max is None:
        return ends
    later_ms = max(window.before_ms + window.late_ms_max, 0)
    found = await list_offsets(client, plan.topic, dict.fromkeys(ranges, later_ms))
    return {number: end if found[number] < 0 else min(end, found[number]) for number, end in ends.items()}


class _Rows:
    """The records of a fetched piece that are wanted."""

    def __init__(self, window: Window | None, ends: dict[int, int] | None, skipped: SkippedBatches | None) -> None:
        self._window = window
        self._ends = ends
        self._skipped = skipped

    def of(self, fetched: Fetched) -> Iterator[StoredRecord]:
        end = NO_END if self._ends is None else self._ends[fetched.partition]
        rows = rows_of(fetched, end=end, skipped=self._skipped)
        window = self._window
        if window is None:
            return rows
        return (record for record in rows if window.since_ms <= record.timestamp_ms < window.before_ms)


async def _write_as_it_comes(consumer: Consumer, writer: _Writer, rows: _Rows) -> None:
    while not consumer.is_done and not writer.is_full:
        for fetched in await consumer.poll():
            partition = fetched.partition
            writer.write((partition, record) for record in rows.of(fetched))


async def _write_merged(consumer: Consumer, writer: _Writer, rows: _Rows) -> None:
    partitions = set(consumer.positions)
    merge = TimeMerge(partitions)
    while partitions and not writer.is_full:
        for fetched in await consumer.poll():
            merge.feed(fetched.partition, rows.of(fetched))
        for partition in partitions - consumer.positions.keys():
            partitions.discard(partition)
            merge.finish(partition)
        writer.write(merge.ready())
        consumer.hold(merge.fed)


class _Writer:
    """Thousands of short lines in one system call."""

    ROWS_AT_ONCE = 10_000

    def __init__(self, formatter: RowFormatter, count: int | None) -> None:
        self._formatter = formatter
        self._left = count

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def write(self, rows: Iterable[tuple[int, StoredRecord]]) -> None:
        """Up to the wanted count; the rest is left unread."""
        formatter = self._formatter
        remaining = iter(rows if self._left is None else islice(rows, self._left))
        while lines := [formatter(partition, row) for partition, row in islice(remaining, self.ROWS_AT_ONCE)]:
            write_bytes(b"".join(lines))
            if self._left is not None:
                self._left -= len(lines)
