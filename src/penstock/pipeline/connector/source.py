"""`format("penstock")`: topics as a table and as a stream, by Spark's Python data source API. Here is the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.pipeline.connector.plan import plan
from penstock.pipeline.connector.sink import BatchWriter, StreamWriter
from penstock.pipeline.connector.spans import read_span, tasks_for
from penstock.pipeline.connector.stream import StreamReader
from penstock.pipeline.sink.options import SinkOptions, check_columns, parse_sink_options
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.filters import Narrowing, narrow
from penstock.pipeline.source.options import OptionError, SourceOptions, parse_options

SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
# The limit came with the change that keeps both with the scan.
KEEPS_FILTERS_WITH_SCAN = hasattr(DataSourceReader, "pushLimit")
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


class FilterTaker:
    """The reader's `pushFilters`. Spark refuses a reader that has one while its setting
    `spark.sql.python.filterPushdown.enabled` is off, which is the default, and looks at `__func__` to find out: so this
    shows that of a reader without, and a session works either way.

    A Spark without SPARK-58551 keeps what it pushed with the table instead of with the scan, and gives it to the next
    query on the same DataFrame, whose rows would be missing. There this takes nothing; `pushdown` does.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """All are evaluated again: what is spared here is reading."""
        if KEEPS_FILTERS_WITH_SCAN:
            self._reader.narrow_to(narrow(filters))
        return filters


class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowing = options.narrowing

    @property
    def pushFilters(self) -> FilterTaker:  # noqa: N802  Spark's name
        return FilterTaker(self)

    def narrow_to(self, narrowing: Narrowing) -> None:
        self._narrowing = self._narrowing.within(narrowing)

    def partitions(self) -> Sequence[InputPartition]:
        return tasks_for(self._options, source_positions.run(plan(self._options, self._narrowing)))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_span(self._options, partition, self._narrowing)
