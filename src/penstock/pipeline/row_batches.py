"""A task's work: spans of partitions as Arrow batches, decoded by columns, never record by record.

Whole batches come from the broker; those of aborted transactions and control batches are left out before anything is
decoded, and what lies before or after a span is cut off afterwards. What one reply holds is decoded at once, however
many partitions it is from: the decoder's own cost is for the call, not for the row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.client.address import parse_addresses
from penstock.client.cluster_client import ClusterClient
from penstock.client.consumer import Consumer, ConsumerOptions, Fetched
from penstock.client.offsets import EARLIEST, list_offsets
from penstock.codec.columns import read_columns
from penstock.codec.record_batch import BatchProblem, check_batch
from penstock.pipeline.source_filters import Narrowing
from penstock.pipeline.source_ranges import OffsetSpan

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

# Large enough that Spark's cost for each batch does not show, small enough for an executor with many tasks.
ROWS_PER_BATCH: Final = 50_000
# What is decoded at once, before it is cut into batches.
DECODE_BYTES: Final = 8 * 1024 * 1024
# Of many partitions, so many have their turn in one reply.
_PARTITIONS_PER_REPLY: Final = 8
# A guess at a row's size: rows are more often smaller.
_ROW_BYTES: Final = 1024
_FETCH_BYTES_MIN: Final = 64 * 1024
_LOG_APPEND_TIME: Final = 1


class DataLossError(Exception):
    """Messages that the query should read are gone from the log."""


class _Piece(msgspec.Struct, frozen=True):
    """Batches that stand one after another, of one partition and one kind of timestamps."""

    partition: int
    timestamp_type: int
    data: memoryview
    record_count: int
    # What is wanted of it, and whether that is less than all.
    start: int
    end: int
    is_cut: bool


class SpanReader:
    def __init__(
        self,
        bootstrap: str,
        spans: OffsetSpan | Sequence[OffsetSpan],
        *,
        includes_headers: bool,
        is_read_committed: bool,
        fails_on_loss: bool,
        narrowing: Narrowing,
    ) -> None:
        """At most one span of each partition."""
        self._bootstrap = bootstrap
        self._spans = [spans] if isinstance(spans, OffsetSpan) else list(spans)
        self._includes_headers = includes_headers
        self._is_read_committed = is_read_committed
        self._fails_on_loss = fails_on_loss
        self._narrowing = narrowing

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Blocking, with a loop of its own: a Python worker of Spark has none."""
        loop = asyncio.new_event_loop()
        try:
            client = ClusterClient(parse_addresses(self._bootstrap))
            loop.run_until_complete(client.connect())
            try:
                for topic in dict.fromkeys(span.topic for span in self._spans):
                    spans = {span.partition: span for span in self._spans if span.topic == topic}
                    yield from self._read(loop, client, topic, spans)
            finally:
                client.close()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _read(
        self, loop: asyncio.AbstractEventLoop, client: ClusterClient, topic: str, spans: dict[int, OffsetSpan]
    ) -> Iterator[pa.RecordBatch]:
        loop.run_until_complete(self._check_starts(client, topic, spans))
        consumer = Consumer(
            client,
            topic,
            {partition: span.start for partition, span in spans.items()},
            ends={partition: span.end for partition, span in spans.items()},
            options=self._consumer_options(spans),
        )
        try:
            while not consumer.is_done:
                polled = loop.run_until_complete(consumer.poll())
                pieces = [piece for fetched in polled for piece in _pieces(fetched, spans[fetched.partition])]
                if pieces:
                    yield from self._rows(topic, pieces)
        finally:
            consumer.close()

    def _consumer_options(self, spans: dict[int, OffsetSpan]) -> ConsumerOptions:
        # A short span is a part of a partition that others read: what is asked for beyond its end is fetched in vain.
        longest = max(span.size for span in spans.values())
        share = DECODE_BYTES // min(len(spans), _PARTITIONS_PER_REPLY)
        return ConsumerOptions(
            is_read_committed=self._is_read_committed,
            partition_bytes_max=min(max(longest * _ROW_BYTES, _FETCH_BYTES_MIN), share),
            fetch_bytes_max=DECODE_BYTES,
        )

    async def _check_starts(self, client: ClusterClient, topic: str, spans: dict[int, OffsetSpan]) -> None:
        if not self._fails_on_loss:
            return
        firsts = await list_offsets(client, topic, dict.fromkeys(spans, EARLIEST))
        for partition, span in spans.items():
            if firsts[partition] > span.start:
                gone = min(firsts[partition], span.end) - span.start
                raise DataLossError(
                    f"partition {partition} of {topic!r} begins at offset {firsts[partition]}, and {span.start} was "
                    f"wanted: retention or a deletion has removed {gone} messages. "
                    "With failOnDataLoss=false the query goes on."
                )

    def _rows(self, topic: str, pieces: list[_Piece]) -> Iterator[pa.RecordBatch]:
        frame = read_columns(pieces[0].data if len(pieces) == 1 else b"".join([piece.data for piece in pieces]))
        if isinstance(frame, BatchProblem):
            raise ValueError(f"{topic}, partitions {sorted({piece.partition for piece in pieces})}: {frame.reason}")
        partitions = _column("partition", [piece.partition for piece in pieces], pieces)
        types = _column("timestampType", [piece.timestamp_type for piece in pieces], pieces)
        frame = frame.with_columns(partitions, types)
        if any(piece.is_cut for piece in pieces):
            starts = _column("start", [piece.start for piece in pieces], pieces)
            ends = _column("end", [piece.end for piece in pieces], pieces)
            frame = frame.filter((frame["offset"] >= starts) & (frame["offset"] < ends))
        if self._narrowing.cuts_times:
            frame = self._cut_times(frame)
        if frame.height:
            yield from self._to_arrow(topic, frame)

    def _cut_times(self, frame: pl.DataFrame) -> pl.DataFrame:
        times, narrowing = frame["timestamp_ms"], self._narrowing
        if narrowing.time_ms_min is not None:
            frame = frame.filter(times >= narrowing.time_ms_min)
            times = frame["timestamp_ms"]
        return frame if narrowing.time_ms_end is None else frame.filter(times < narrowing.time_ms_end)

    def _to_arrow(self, topic: str, frame: pl.DataFrame) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        zeros = pa.array(np.zeros(frame.height, dtype=np.int32))
        columns = [
            frame["key"].to_arrow().cast(pa.binary()),
            frame["value"].to_arrow().cast(pa.binary()),
            pa.array([topic], pa.string()).take(zeros),
            frame["partition"].to_arrow().cast(pa.int32()),
            frame["offset"].to_arrow(),
            (frame["timestamp_ms"] * 1000).to_arrow().cast(pa.timestamp("us", tz="UTC")),
            frame["timestampType"].to_arrow().cast(pa.int32()),
        ]
        names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
        if self._includes_headers:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            columns.append(frame["headers"].to_arrow().cast(kind))
            names.append("headers")
        yield from pa.Table.from_arrays(columns, names=names).to_batches(max_chunksize=ROWS_PER_BATCH)


def _column(name: str, numbers: list[int], pieces: list[_Piece]) -> pl.Series:
    """The number of each piece for each of its rows."""
    import numpy as np
    import polars as pl

    counts = [piece.record_count for piece in pieces]
    return pl.Series(name, np.repeat(np.array(numbers, dtype=np.int64), counts))


def _pieces(fetched: Fetched, span: OffsetSpan) -> Iterator[_Piece]:
    """Runs of batches with the same kind of timestamps, without those that are nobody's messages."""
    # A batch may begin before what was asked for: with records of another task, or with deleted ones.
    start, end = max(span.start, fetched.position), span.end
    data, position = fetched.data, 0
    run_start, run_type, record_count, is_cut = 0, 0, 0, False
    while position < len(data):
        header = check_batch(data, position)
        if isinstance(header, BatchProblem):
            raise ValueError(f"{fetched.topic}-{fetched.partition} after {fetched.position}: {header.reason}")
        is_wanted = not header.is_control and header.base_offset not in fetched.aborted
        timestamp_type = _LOG_APPEND_TIME if header.has_log_append_time else 0
        if record_count and (not is_wanted or timestamp_type != run_type):
            run = data[run_start:position]
            yield _Piece(fetched.partition, run_type, run, record_count, start, end, is_cut)
            record_count, is_cut = 0, False
        if is_wanted and not record_count:
            run_start, run_type = position, timestamp_type
        if is_wanted:
            record_count += header.record_count
            is_cut |= header.base_offset < start or header.next_offset > end
        position += header.size_bytes
    if record_count:
        yield _Piece(fetched.partition, run_type, data[run_start:position], record_count, start, end, is_cut)
