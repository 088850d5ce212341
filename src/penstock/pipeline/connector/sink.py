"""The writers of `format("penstock")`: tasks stage, the driver commits.

A writer is made anew for each of its calls, in a process of its own, so nothing crosses from `write` to `commit` but
the messages. `commit` has the batch's number from Spark but not the query's id: the tasks know it and tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.base.chance import SYSTEM_CHANCE
from penstock.pipeline.sink.options import QUERY_ID_PROPERTY, SinkOptions
from penstock.pipeline.sink.stage_copy import StageCopy, commit_staged
from penstock.pipeline.sink.stage_write import StagedBatch, StageWriter, stage_rows
from penstock.pipeline.source.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What one task has put in the stage."""

    query_id: str | None
    batches: tuple[StagedBatch, ...]


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(
        self, iterator: Iterator[pa.RecordBatch], *, stage: type[StageWriter] = StageWriter
    ) -> WriterCommitMessage:
        return _stage(self._options, iterator, stage)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803  Spark's name
        *,
        copy: type[StageCopy] = StageCopy,
    ) -> None:
        staged, query_ids = _gather(messages)
        if not staged:
            return
        query_id = min(query_ids, default=None) or self._options.query_id
        if query_id is None:
            raise OptionError("Spark does not tell the query's id: the option queryId must")
        asyncio.run(commit_staged(self._options.bootstrap, staged, writer_id=query_id, batch_id=batchId, copy=copy))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Nothing: Spark calls this also when `commit` took effect and failed afterwards. What was staged and not
        committed is in nobody's way."""


class BatchWriter(DataSourceArrowWriter):
    """Exactly once within one run. In `foreachBatch`, with the options queryId and batchId, also over restarts."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _stage(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        staged, _ = _gather(messages)
        options = self._options
        writer_id = options.query_id if options.batch_id is not None else None
        work = commit_staged(
            options.bootstrap, staged, writer_id=writer_id or f"batch-{SYSTEM_CHANCE.uuid()}", batch_id=options.batch_id
        )
        asyncio.run(work)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """As in a stream: nothing."""


def _stage(options: SinkOptions, rows: Iterator[pa.RecordBatch], stage: type[StageWriter] = StageWriter) -> StagedRows:
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    query_id = None if context is None else context.getLocalProperty(QUERY_ID_PROPERTY)
    return StagedRows(query_id, tuple(stage_rows(options, rows, task=task, stage=stage)))


def _gather(messages: Sequence[WriterCommitMessage | None]) -> tuple[list[StagedBatch], set[str]]:
    staged: list[StagedBatch] = []
    query_ids: set[str] = set()
    for message in messages:
        assert isinstance(message, StagedRows), f"a task told {message!r}"
        staged += message.batches
        if message.query_id is not None:
            query_ids.add(message.query_id)
    return staged, query_ids
