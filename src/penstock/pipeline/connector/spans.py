"""What goes from Spark's driver to a task of the source, and what the task does with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import InputPartition

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.pipeline.archive.source import ArchivedSpan, read_archived
from penstock.pipeline.connector.query_group import tell_name, tell_name_alone
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.filters import Narrowing
from penstock.pipeline.source.options import SourceOptions
from penstock.pipeline.source.ranges import OffsetSpan, group
from penstock.pipeline.source.row_batches import SpanReader
from penstock.pipeline.table.task_files import write_archived

EVERYTHING = Narrowing()


class SpanPartition(InputPartition):
    """One task: spans of the log, or a piece of an archive."""

    def __init__(self, spans: tuple[OffsetSpan, ...] | ArchivedSpan) -> None:
        self.spans = spans
        # Where the query's name is waited for (query_group), if it is this task that is to say it.
        self.mailbox: str | None = None


def tasks_for(options: SourceOptions, pieces: Sequence[OffsetSpan | ArchivedSpan]) -> list[InputPartition]:
    """Those of the log together where they are small, unless the options say how many tasks are wanted."""
    tasks: list[InputPartition] = [SpanPartition(piece) for piece in pieces if isinstance(piece, ArchivedSpan)]
    spans = [piece for piece in pieces if isinstance(piece, OffsetSpan)]
    is_cut = options.partitions_min is not None or options.rows_per_partition_max is not None
    # A task has one span of a partition: two are there when a part was cut out of it.
    is_cut |= len({(span.topic, span.partition) for span in spans}) < len(spans)
    groups = [[span] for span in spans] if is_cut else group(spans)
    return [*tasks, *(SpanPartition(tuple(members)) for members in groups)]


def let_one_tell(tasks: Sequence[InputPartition], mailbox: str) -> None:
    """One that has a connection anyway, if there is any."""
    asked = [task for task in tasks if isinstance(task, SpanPartition)]
    min(asked, key=lambda task: isinstance(task.spans, ArchivedSpan)).mailbox = mailbox


def read_span(options: SourceOptions, partition: InputPartition, narrowing: Narrowing = EVERYTHING) -> Iterator[Any]:
    if not isinstance(partition, SpanPartition):
        # Where there is nothing to read, Spark makes up one partition and asks for that.
        return
    if isinstance(partition.spans, ArchivedSpan):
        if partition.mailbox is not None:
            source_positions.run(tell_name_alone(options, partition.mailbox, partition.spans))
        yield from read_archived(partition.spans, includes_headers=options.includes_headers)
        return
    reader = SpanReader(
        options.bootstrap,
        partition.spans,
        includes_headers=options.includes_headers,
        is_read_committed=options.is_read_committed,
        fails_on_loss=options.fails_on_data_loss,
        narrowing=narrowing,
        at_first=_telling(partition.mailbox, partition.spans[0]),
    )
    batches = reader.batches() if options.topic_ids is None else _of_the_same_topics(options, reader.batches())
    yield from batches if options.writes_to is None else write_archived(options.writes_to, batches)


def _of_the_same_topics(options: SourceOptions, batches: Iterator[Any]) -> Iterator[Any]:
    """The driver looked before and this looks after the last read: an id that is still there was there all the time."""

    async def look() -> None:
        async with source_positions.connect(options) as client:
            await source_positions.find_partitions(client, options)

    yield from batches
    source_positions.run(look())


def _telling(mailbox: str | None, span: OffsetSpan) -> Callable[[ClusterClient], Awaitable[None]] | None:
    return None if mailbox is None else partial(tell_name, mailbox=mailbox, span=span)
