"""What goes from Spark's driver to a task of the source, and what the task does with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import InputPartition

from penstock.pipeline.archive_source import ArchivedSpan, read_archived
from penstock.pipeline.row_batches import SpanReader
from penstock.pipeline.source_filters import Narrowing
from penstock.pipeline.source_options import SourceOptions
from penstock.pipeline.source_ranges import OffsetSpan

EVERYTHING = Narrowing()


class SpanPartition(InputPartition):
    def __init__(self, span: OffsetSpan | ArchivedSpan) -> None:
        self.span = span


def read_span(options: SourceOptions, partition: InputPartition, narrowing: Narrowing = EVERYTHING) -> Iterator[Any]:
    if not isinstance(partition, SpanPartition):
        # Where there is nothing to read, Spark makes up one partition and asks for that.
        return
    if isinstance(partition.span, ArchivedSpan):
        yield from read_archived(partition.span, includes_headers=options.includes_headers)
        return
    reader = SpanReader(
        options.bootstrap,
        partition.span,
        includes_headers=options.includes_headers,
        is_read_committed=options.is_read_committed,
        fails_on_loss=options.fails_on_data_loss,
        narrowing=narrowing,
    )
    yield from reader.batches()
