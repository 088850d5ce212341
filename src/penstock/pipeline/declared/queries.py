"""The queries of one pipeline: the one that writes its result, and the one that writes its dead letters.

They are two, because a query of Spark has one sink, and because an aggregate cannot carry rows along that were never
part of it. Both read the sources, each with a checkpoint of its own: every row is written exactly once by the one, and
every dead letter exactly once by the other, but not both in one moment.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock.pipeline.declared.bad_rows import dead_letters
from penstock.pipeline.declared.build import Built, Site
from penstock.pipeline.declared.checks import DEAD_LETTERS, dead_letter_topic
from penstock.pipeline.declared.document import Format, OnBadRow
from penstock.pipeline.declared.progress import OBSERVED
from penstock.pipeline.declared.result import types_of
from penstock.pipeline.declared.sinks.contract import ShowRows, Target
from penstock.pipeline.declared.sources import Reading
from penstock.pipeline.declared.state import PipelineState
from penstock.pipeline.declared.times import AVAILABLE_NOW, duration_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def start_queries(built: Built, state: PipelineState, site: Site, *, show: ShowRows, is_once: bool) -> dict[str, Any]:
    """By the query's name."""
    queries: dict[str, Any] = {}
    try:
        target = Target(built.spark, site.bootstrap, site.directory, show)
        queries[built.name] = _start_result(built, state.checkpoint, target, is_once=is_once)
        if has_dead_letters(built):
            name = f"{built.name}{DEAD_LETTERS}"
            queries[name] = _start_dead_letters(built, name, state, site, is_once=is_once)
    except BaseException:
        for query in queries.values():
            query.stop()
        raise
    return queries


def _start_result(built: Built, checkpoint: str, target: Target, *, is_once: bool) -> StreamingQuery:
    # It needs Spark to be there already at its import.
    from penstock.pipeline.declared.topic_table import active

    sink = built.pipeline.sink
    rows = _observed(_shaped(built)).writeStream.queryName(built.name).outputMode(sink.mode.value)
    writer = _with_trigger(rows, built, is_once=is_once).option("checkpointLocation", checkpoint)
    with active(built.spark):
        query: StreamingQuery = sink.write(writer, target).start()
    return query


def _shaped(built: Built) -> DataFrame:
    """The result as the sink takes it."""
    frame: DataFrame = built.result
    columns = built.pipeline.sink.columns(types_of(frame))
    return frame.selectExpr(*columns) if columns else frame


def has_dead_letters(built: Built) -> bool:
    """Bytes as they are cannot be wrong."""
    return built.pipeline.on_bad_row is OnBadRow.DEAD_LETTER and any(
        plan.source.format is not Format.BINARY or plan.source.expect for plan in built.plans.values()
    )


def _start_dead_letters(built: Built, name: str, state: PipelineState, site: Site, *, is_once: bool) -> Any:
    reading = Reading(site.bootstrap, name)
    letters = [dead_letters(built.spark, plan, reading, built.name) for plan in built.plans.values()]
    rows = _observed(reduce(lambda left, right: left.union(right), letters))
    writer = _with_trigger(rows.writeStream.queryName(name), built, is_once=is_once).format("penstock")
    return (
        writer.option("kafka.bootstrap.servers", site.bootstrap)
        .option("topic", dead_letter_topic(built.name, built.pipeline))
        .option("checkpointLocation", state.dead_letter_checkpoint)
        .start()
    )


def _observed(rows: DataFrame) -> DataFrame:
    """Its batches say how many rows they wrote."""
    from pyspark.sql import functions as sql

    return rows.observe(OBSERVED, sql.count(sql.lit(1)).alias("rows"))


def _with_trigger(writer: Any, built: Built, *, is_once: bool) -> Any:
    trigger = built.pipeline.trigger
    if is_once or trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{duration_ms(trigger)} milliseconds")
