"""A task's work: one span of a partition as Arrow batches, decoded by columns, never record by record.

Whole batches come from the broker; those of aborted transactions and control batches are left out before anything is
decoded, and what lies before or after the span is cut off afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

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
# A guess at a row's size: rows are more often smaller.
_ROW_BYTES: Final = 1024
_FETCH_BYTES_MIN: Final = 64 * 1024
_LOG_APPEND_TIME: Final = 1


class DataLossError(Exception):
    """Messages that the query should read are gone from the log."""


class SpanReader:
    def __init__(
        self,
        bootstrap: str,
        span: OffsetSpan,
        *,
        includes_headers: bool,
        is_read_committed: bool,
        fails_on_loss: bool,
        narrowing: Narrowing,
    ) -> None:
        self._bootstrap = bootstrap
        self._span = span
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
                yield from self._read(loop, client)
            finally:
                client.close()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _read(self, loop: asyncio.AbstractEventLoop, client: ClusterClient) -> Iterator[pa.RecordBatch]:
        span = self._span
        loop.run_until_complete(self._check_start(client))
        # A short span is a part of a partition that others read: what is asked for beyond its end is fetched in vain.
        bytes_max = min(max(span.size * _ROW_BYTES, _FETCH_BYTES_MIN), DECODE_BYTES)
        options = ConsumerOptions(
            is_read_committed=self._is_read_committed, partition_bytes_max=bytes_max, fetch_bytes_max=bytes_max
        )
        consumer = Consumer(
            client, span.topic, {span.partition: span.start}, ends={span.partition: span.end}, options=options
        )
        try:
            while not consumer.is_done:
                for fetched in loop.run_until_complete(consumer.poll()):
                    yield from self._rows(fetched)
        finally:
            consumer.close()

    async def _check_start(self, client: ClusterClient) -> None:
        span = self._span
        first = (await list_offsets(client, span.topic, {span.partition: EARLIEST}))[span.partition]
        if first > span.start and self._fails_on_loss:
            gone = min(first, span.end) - span.start
            raise DataLossError(
                f"partition {span.partition} of {span.topic!r} begins at offset {first}, and {span.start} was wanted: "
                f"retention or a deletion has removed {gone} messages. With failOnDataLoss=false the query goes on."
            )

    def _rows(self, fetched: Fetched) -> Iterator[pa.RecordBatch]:
        for timestamp_type, data in _pieces(fetched):
            frame = read_columns(data)
            if isinstance(frame, BatchProblem):
                raise ValueError(f"{fetched.topic}-{fetched.partition} after {fetched.position}: {frame.reason}")
            # A batch may begin before what was asked for: with records of another task, or with deleted ones.
            start, end = max(self._span.start, fetched.position), self._span.end
            if frame.height and (frame["offset"][0] < start or frame["offset"][-1] >= end):
                frame = frame.filter(frame["offset"].is_between(start, end, closed="left"))
            if self._narrowing.cuts_times:
                frame = self._cut_times(frame)
            if frame.height:
                yield from self._to_arrow(frame, timestamp_type)

    def _cut_times(self, frame: pl.DataFrame) -> pl.DataFrame:
        times, narrowing = frame["timestamp_ms"], self._narrowing
        if narrowing.time_ms_min is not None:
            frame = frame.filter(times >= narrowing.time_ms_min)
            times = frame["timestamp_ms"]
        return frame if narrowing.time_ms_end is None else frame.filter(times < narrowing.time_ms_end)

    def _to_arrow(self, frame: pl.DataFrame, timestamp_type: int) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        zeros = pa.array(np.zeros(frame.height, dtype=np.int32))
        columns = [
            frame["key"].to_arrow().cast(pa.binary()),
            frame["value"].to_arrow().cast(pa.binary()),
            pa.array([self._span.topic], pa.string()).take(zeros),
            pa.array([self._span.partition], pa.int32()).take(zeros),
            frame["offset"].to_arrow(),
            (frame["timestamp_ms"] * 1000).to_arrow().cast(pa.timestamp("us", tz="UTC")),
            pa.array([timestamp_type], pa.int32()).take(zeros),
        ]
        names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
        if self._includes_headers:
            kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            columns.append(frame["headers"].to_arrow().cast(kind))
            names.append("headers")
        yield from pa.Table.from_arrays(columns, names=names).to_batches(max_chunksize=ROWS_PER_BATCH)


def _pieces(fetched: Fetched) -> Iterator[tuple[int, memoryview | bytearray]]:
    """Runs of batches with the same kind of timestamps, without those that are nobody's messages."""
    data, position = fetched.data, 0
    run_start, run_type, kept = 0, 0, False
    pieces: list[tuple[int, int, int]] = []
    while position < len(data):
        header = check_batch(data, position)
        if isinstance(header, BatchProblem):
            raise ValueError(f"{fetched.topic}-{fetched.partition} after {fetched.position}: {header.reason}")
        is_wanted = not header.is_control and header.base_offset not in fetched.aborted
        timestamp_type = _LOG_APPEND_TIME if header.has_log_append_time else 0
        if kept and (not is_wanted or timestamp_type != run_type):
            pieces.append((run_type, run_start, position))
            kept = False
        if is_wanted and not kept:
            run_start, run_type, kept = position, timestamp_type, True
        position += header.size_bytes
    if kept:
        pieces.append((run_type, run_start, position))
    for timestamp_type, start, end in pieces:
        yield timestamp_type, data[start:end]
