"""The queries of one pipeline: the one that writes its result, and the one that writes its dead letters.

They are two, because a query of Spark has one sink, and because an aggregate cannot carry rows along that were never
part of it. Both read the sources, each with a checkpoint of its own: every row is written exactly once by the one, and
every dead letter exactly once by the other, but not both in one moment.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from penstock.pipeline.declared.bad_rows import dead_letters
from penstock.pipeline.declared.build import Built, Site
from penstock.pipeline.declared.checks import DEAD_LETTERS, dead_letter_topic
from penstock.pipeline.declared.document import Format, OnBadRow
from penstock.pipeline.declared.sinks import ShowRows, observed, start_query, with_trigger
from penstock.pipeline.declared.sources import Reading
from penstock.pipeline.declared.state import PipelineState
from penstock.pipeline.declared.times import AVAILABLE_NOW


def start_queries(built: Built, state: PipelineState, site: Site, *, show: ShowRows, is_once: bool) -> dict[str, Any]:
    """By the query's name."""
    queries: dict[str, Any] = {}
    try:
        queries[built.name] = start_query(
            built,
            bootstrap=site.bootstrap,
            checkpoint=state.checkpoint,
            directory=site.directory,
            show=show,
            is_once=is_once,
        )
        if has_dead_letters(built):
            name = f"{built.name}{DEAD_LETTERS}"
            queries[name] = _start_dead_letters(built, name, state, site, is_once=is_once)
    except BaseException:
        for query in queries.values():
            query.stop()
        raise
    return queries


def has_dead_letters(built: Built) -> bool:
    """Bytes as they are cannot be wrong."""
    return built.pipeline.on_bad_row is OnBadRow.DEAD_LETTER and any(
        plan.source.format is not Format.BINARY or plan.source.expect for plan in built.plans.values()
    )


def _start_dead_letters(built: Built, name: str, state: PipelineState, site: Site, *, is_once: bool) -> Any:
    reading = Reading(site.bootstrap, name)
    letters = [dead_letters(built.spark, plan, reading, built.name) for plan in built.plans.values()]
    rows = observed(reduce(lambda left, right: left.union(right), letters))
    trigger = AVAILABLE_NOW if is_once else built.pipeline.trigger
    writer = with_trigger(rows.writeStream.queryName(name), trigger).format("penstock")
    return (
        writer.option("kafka.bootstrap.servers", site.bootstrap)
        .option("topic", dead_letter_topic(built.name, built.pipeline))
        .option("checkpointLocation", state.dead_letter_checkpoint)
        .start()
    )
