"""Topics as a stream, by Spark's Python data source API: where a query stands, and how far the next trigger goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.errors import ClientError
from penstock.pipeline.archive import source as archive_source
from penstock.pipeline.connector.query_group import QueryGroup
from penstock.pipeline.connector.spans import let_one_tell, read_span, tasks_for
from penstock.pipeline.source import positions as source_positions
from penstock.pipeline.source.line import SourceLine
from penstock.pipeline.source.options import SourceOptions
from penstock.pipeline.source.ranges import Position, cut, from_json, limited, lost, spans_between, to_json
from penstock.pipeline.source.row_batches import DataLossError

# A query with short triggers need not tell its group of each.
REPORT_SECONDS_MIN: Final = 1.0

_logger = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps the positions; kept here are the target of AvailableNow, the time of the last trigger, and what the
    group was told last.

    Spark says `commit` of a batch when it plans the one after it, so never of the last one. It does ask for what comes
    next when a batch is done, from that batch's end: the group is told then, and when nothing more is there at the
    latest; of short triggers in a row, not of each. What the group is called may have to be learnt from a task of the
    first batch (`query_group`); nobody is told anything before.
    """

    def __init__(self, options: SourceOptions, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._monotonic = monotonic
        self._line = SourceLine(options.bootstrap)
        self._group = QueryGroup(options.group, options.group_prefix, monotonic)
        self._target: Position | None = None
        self._last_trigger = monotonic()
        self._reported: Position | None = None
        self._last_report = -REPORT_SECONDS_MIN
        self._last_latest: Position | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        return to_json(self._line.ask(self._initial))

    async def _initial(self, client: ClusterClient) -> Position:
        options = self._options
        partitions = await source_positions.find_partitions(client, options)
        archive = archive_source.snapshot_of(options, partitions)
        return await archive_source.resolve(client, options.starting, partitions, options, archive)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._target = self._latest()

    def _latest(self) -> Position:
        async def ask(client: ClusterClient) -> Position:
            return await source_positions.latest_position(client, self._options)

        self._last_latest = self._line.ask(ask)
        return self._last_latest

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        known = from_json(start)
        latest = self._target if self._target is not None else self._latest()
        if latest == known or self._monotonic() - self._last_report >= REPORT_SECONDS_MIN:
            self._report(known)
        self._check_loss(known, latest)
        if self._target is None and self._must_wait(known, latest):
            return start
        self._last_trigger = self._monotonic()
        if isinstance(limit, ReadMaxRows):
            latest = limited(known, latest, limit.max_rows)
        # What is gone keeps its place: Spark must not see a position lose a partition.
        return to_json({topic: known.get(topic, {}) | latest.get(topic, {}) for topic in known | latest})

    def _check_loss(self, known: Position, latest: Position) -> None:
        if not self._options.fails_on_data_loss:
            return
        sentence = lost(known, latest)
        if sentence is not None:
            raise DataLossError(f"{sentence} With failOnDataLoss=false the query goes on with what there is.")

    def _must_wait(self, known: Position, latest: Position) -> bool:
        """Too few rows for a trigger, and the last one is not long ago."""
        rows_min = self._options.rows_per_trigger_min
        if rows_min is None:
            return False
        waited_ms = (self._monotonic() - self._last_trigger) * 1000
        rows = sum(span.size for span in spans_between(known, latest))
        return rows < rows_min and waited_ms < self._options.trigger_delay_ms_max

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        rows_max = self._options.rows_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """For Spark's own figures, and asked for right after `latestOffset`: that answer is young enough."""
        return to_json(self._last_latest if self._last_latest is not None else self._latest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        spans = cut(
            spans_between(from_json(start), from_json(end)),
            count_min=self._options.partitions_min,
            rows_max=self._options.rows_per_partition_max,
        )
        # As it is now. Another run of the same batch may find more archived: the messages are the same.
        archive = archive_source.snapshot_of(self._options, {})
        if archive is not None:
            topics = {span.topic for span in spans}
            self._line.ask(lambda client: archive_source.check_topics(client, archive, topics))
        tasks = tasks_for(self._options, archive_source.divide(archive, spans))
        mailbox = self._group.mailbox_for_task() if tasks else None
        if mailbox is not None:
            let_one_tell(tasks, mailbox)
        return tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_span(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._monotonic() - self._last_report >= REPORT_SECONDS_MIN:
            self._report(from_json(end))

    def _report(self, position: Position) -> None:
        group = self._group.find(self._line) if position != self._reported else None
        if group is None:
            return

        async def tell(client: ClusterClient) -> None:
            if self._options.topic_ids is not None:
                # What is told of another topic of that name would be taken for that topic's.
                await source_positions.find_partitions(client, self._options)
            await source_positions.report_group(client, group, position)

        try:
            self._line.ask(tell)
        except ClientError as error:
            # The lag is for people. The query's own position is in its checkpoint, and a query goes on without.
            _logger.warning("the lag of group %r is not shown: %s", group, error)
        self._reported, self._last_report = position, self._monotonic()

    def stop(self) -> None:
        self._line.close()
