"""`format("penstock")`: topics as a table and as a stream, by Spark's Python data source API."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.pipeline import source_positions
from penstock.pipeline.row_batches import SpanReader
from penstock.pipeline.sink_options import SinkOptions, check_columns, parse_sink_options
from penstock.pipeline.source_options import OptionError, SourceOptions, parse_options
from penstock.pipeline.source_ranges import OffsetSpan, Position, cut, from_json, limited, spans_between, to_json
from penstock.pipeline.spark_sink import BatchWriter, StreamWriter

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS = "headers array<struct<key: string, value: binary>>"


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        includes_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return f"{SCHEMA}, {HEADERS}" if includes_headers else SCHEMA

    def reader(self, schema: StructType) -> BatchReader:  # noqa: ARG002  ours is fixed
        return BatchReader(parse_options(dict(self.options), is_streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: ARG002, N802  Spark's name, our schema
        return StreamReader(parse_options(dict(self.options), is_streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise OptionError("a topic is appended to, never overwritten: the mode `append` is meant")
        return BatchWriter(self._sink_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: ARG002, N802  Spark's name
        # `overwrite` is the output mode `complete`: every batch appends all of the result, as with Kafka's connector.
        return StreamWriter(self._sink_options(schema))

    def _sink_options(self, schema: StructType) -> SinkOptions:
        options = parse_sink_options(dict(self.options))
        check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
        return options


class SpanPartition(InputPartition):
    def __init__(self, span: OffsetSpan) -> None:
        self.span = span


def read_span(options: SourceOptions, partition: InputPartition) -> Iterator[Any]:
    assert isinstance(partition, SpanPartition)
    reader = SpanReader(
        options.bootstrap,
        partition.span,
        includes_headers=options.includes_headers,
        is_read_committed=options.is_read_committed,
        fails_on_loss=options.fails_on_data_loss,
    )
    yield from reader.batches()


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        start, end = source_positions.run(self._resolve())
        spans = cut(
            spans_between(start, end),
            count_min=self._options.partitions_min,
            rows_max=self._options.rows_per_partition_max,
        )
        return [SpanPartition(span) for span in spans]

    async def _resolve(self) -> tuple[Position, Position]:
        options = self._options
        async with source_positions.connect(options) as client:
            partitions = await source_positions.find_partitions(client, options)
            start = await source_positions.resolve(
                client,
                options.starting,
                partitions,
                strategy=options.strategy,
                is_read_committed=options.is_read_committed,
            )
            end = await source_positions.resolve(
                client,
                options.ending,
                partitions,
                strategy=options.strategy,
                is_read_committed=options.is_read_committed,
                is_end=True,
            )
        return start, end

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_span(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stateless but for the target of AvailableNow and the time of the last trigger: Spark keeps the positions."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Position | None = None
        self._last_trigger = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return to_json(source_positions.run(self._initial()))

    async def _initial(self) -> Position:
        options = self._options
        async with source_positions.connect(options) as client:
            partitions = await source_positions.find_partitions(client, options)
            return await source_positions.resolve(
                client,
                options.starting,
                partitions,
                strategy=options.strategy,
                is_read_committed=options.is_read_committed,
            )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = source_positions.run(self._latest())

    async def _latest(self) -> Position:
        async with source_positions.connect(self._options) as client:
            return await source_positions.latest_position(client, self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        known = from_json(start)
        latest = self._target if self._target is not None else source_positions.run(self._latest())
        if self._target is None and self._must_wait(known, latest):
            return start
        self._last_trigger = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            latest = limited(known, latest, limit.max_rows)
        return to_json(_at_least(known, latest))

    def _must_wait(self, known: Position, latest: Position) -> bool:
        """Too few rows for a trigger, and the last one is not long ago."""
        rows_min = self._options.rows_per_trigger_min
        if rows_min is None:
            return False
        waited_ms = (time.monotonic() - self._last_trigger) * 1000
        rows = sum(span.size for span in spans_between(known, latest))
        return rows < rows_min and waited_ms < self._options.trigger_delay_ms_max

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        rows_max = self._options.rows_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return to_json(source_positions.run(self._latest()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        spans = cut(
            spans_between(from_json(start), from_json(end)),
            count_min=self._options.partitions_min,
            rows_max=self._options.rows_per_partition_max,
        )
        return [SpanPartition(span) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_span(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.group is not None:
            source_positions.run(self._report(self._options.group, from_json(end)))

    async def _report(self, group: str, position: Position) -> None:
        async with source_positions.connect(self._options) as client:
            await source_positions.report_group(client, group, position)

    def stop(self) -> None:
        """Nothing is held between two calls."""


def _at_least(known: Position, latest: Position) -> Position:
    """Never before what was read: a topic that was made anew must not send the query back without a word."""
    merged = {topic: dict(partitions) for topic, partitions in known.items()}
    for topic, partitions in latest.items():
        for partition, offset in partitions.items():
            before = merged.setdefault(topic, {}).get(partition, 0)
            merged[topic][partition] = max(before, offset)
    return merged
