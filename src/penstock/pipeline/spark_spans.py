"""What goes from Spark's driver to a task of the source, and what the task does with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition

from penstock.pipeline.archive_files import write_archived
from penstock.pipeline.archive_source import ArchivedSpan, read_archived
from penstock.pipeline.row_batches import SpanReader
from penstock.pipeline.source_filters import Narrowing
from penstock.pipeline.source_options import SourceOptions
from penstock.pipeline.source_ranges import OffsetSpan, group

EVERYTHING = Narrowing()


class SpanPartition(InputPartition):
    """One task: spans of the log, or a piece of an archive."""

    def __init__(self, spans: tuple[OffsetSpan, ...] | ArchivedSpan) -> None:
        self.spans = spans


def tasks_for(options: SourceOptions, pieces: Sequence[OffsetSpan | ArchivedSpan]) -> list[InputPartition]:
    """Those of the log together where they are small, unless the options say how many tasks are wanted."""
    tasks: list[InputPartition] = [SpanPartition(piece) for piece in pieces if isinstance(piece, ArchivedSpan)]
    spans = [piece for piece in pieces if isinstance(piece, OffsetSpan)]
    is_cut = options.partitions_min is not None or options.rows_per_partition_max is not None
    # A task has one span of a partition: two are there when a part was cut out of it.
    is_cut |= len({(span.topic, span.partition) for span in spans}) < len(spans)
    groups = [[span] for span in spans] if is_cut else group(spans)
    return [*tasks, *(SpanPartition(tuple(members)) for members in groups)]


def read_span(options: SourceOptions, partition: InputPartition, narrowing: Narrowing = EVERYTHING) -> Iterator[Any]:
    if not isinstance(partition, SpanPartition):
        # Where there is nothing to read, Spark makes up one partition and asks for that.
        return
    if isinstance(partition.spans, ArchivedSpan):
        yield from read_archived(partition.spans, includes_headers=options.includes_headers)
        return
    reader = SpanReader(
        options.bootstrap,
        partition.spans,
        includes_headers=options.includes_headers,
        is_read_committed=options.is_read_committed,
        fails_on_loss=options.fails_on_data_loss,
        narrowing=narrowing,
    )
    yield from reader.batches() if options.writes_to is None else write_archived(options.writes_to, reader.batches())
