"""The work of `penstock pipeline run`: from the file to an exit code."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.clock import SystemClock
from penstock.cli.failure import CommandError
from penstock.cli.work.pipeline import open_sound_file, start_spark, tell_problems
from penstock.cli.work.pipeline_view import open_view
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses
from penstock.pipeline.declared.document import Pipeline
from penstock.pipeline.declared.prepare import (
    Loaded,
    check_topics,
    create_topics,
    ids_of_topics,
    inferred,
    prepare,
    state_of,
)
from penstock.pipeline.declared.report import Reporter
from penstock.pipeline.declared.runner import Prepared, Runner, RunPlan, View
from penstock.pipeline.declared.state import Kept, PipelineState, StateError
from penstock.pipeline.declared.status import FAILED, Status
from penstock.pipeline.session.spark import check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.declared.build import Built


def run(
    file: Path,
    names: Sequence[str],
    *,
    is_once: bool,
    master: str | None,
    conf: Sequence[str] | None,
    bootstrap: str | None,
    as_json: bool,
) -> None:
    loaded, pipelines = open_sound_file(file, names, bootstrap)
    check_spark()
    states = {name: state_of(loaded.site, name, pipeline) for name, pipeline in pipelines.items()}
    with open_view(as_json=as_json) as view:
        try:
            for state in states.values():
                state.lock()
            asyncio.run(_look_first(loaded, pipelines, states))
            spark = start_spark(loaded, master=master, conf=conf)
            try:
                statuses = run_pipelines(spark, loaded, pipelines, states, view, is_once=is_once)
            finally:
                spark.stop()
        except StateError as error:
            raise CommandError(str(error)) from error
        finally:
            for state in states.values():
                state.release()
    _tell_end(statuses)


async def _look_first(loaded: Loaded, pipelines: Mapping[str, Pipeline], states: Mapping[str, PipelineState]) -> None:
    """What can be known before Spark is started, which takes seconds."""
    async with ClusterClient(parse_addresses(loaded.site.bootstrap)) as client:
        await check_topics(client, pipelines, loaded.problems)
        if loaded.problems.errors:
            tell_problems(loaded)
        for name, state in states.items():
            if state.has_checkpoint:
                state.check_cluster(client.cluster_id)
                state.check_topics(await ids_of_topics(client, pipelines[name]))


def run_pipelines(
    spark: SparkSession,
    loaded: Loaded,
    pipelines: Mapping[str, Pipeline],
    states: Mapping[str, PipelineState],
    view: View,
    *,
    is_once: bool,
) -> list[Status]:
    """In a Spark that is there already; how each of them ended."""
    builts = asyncio.run(_prepare(spark, loaded, pipelines, states, view))
    if loaded.problems.errors:
        tell_problems(loaded)
    clock = SystemClock()
    runner = Runner(
        [Prepared(built, states[built.name]) for built in builts],
        RunPlan(loaded.file, loaded.site, spark.sparkContext.master or "", is_once),
        view=view,
        reporter=Reporter(loaded.site.bootstrap, clock),
        clock=clock,
    )
    with _stopped_by_signals(runner):
        return runner.run()


async def _prepare(
    spark: SparkSession,
    loaded: Loaded,
    pipelines: Mapping[str, Pipeline],
    states: Mapping[str, PipelineState],
    view: View,
) -> list[Built]:
    async with ClusterClient(parse_addresses(loaded.site.bootstrap)) as client:
        builts = await prepare(spark, loaded, pipelines, client=client)
        if loaded.problems.errors:
            return builts
        for topic in await create_topics(client, pipelines):
            view.event("topic created", topic=topic)
        for built in builts:
            topic_ids = await ids_of_topics(client, built.pipeline)
            _keep(built, states[built.name], client.cluster_id, topic_ids, view)
    return builts


def _keep(built: Built, state: PipelineState, cluster_id: str | None, topic_ids: dict[str, str], view: View) -> None:
    """What the next start must know. Of a checkpoint that lies elsewhere it is not known whether this is the first."""
    former = state.read() if state.has_checkpoint else Kept()
    kept = Kept(former.cluster_id or cluster_id, inferred(built), topic_ids)
    for source, columns in kept.columns.items():
        if source not in former.columns:
            view.event("schema found", pipeline=built.name, source=source, columns=columns)
    if kept != former:
        state.keep(kept)


@contextmanager
def _stopped_by_signals(runner: Runner) -> Iterator[None]:
    """Spark has put a handler of its own there, which would break off every job."""

    def stop(number: int, frame: object) -> None:  # noqa: ARG001  Python's signature
        runner.ask_to_stop()

    former = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            with suppress(TypeError):
                signal.signal(number, handler)


def _tell_end(statuses: Sequence[Status]) -> None:
    failed = [status for status in statuses if status.state == FAILED]
    if failed:
        told = "; ".join(
            f"pipeline {each.name!r} failed: {each.last_error} (all of it: {each.log_file})" for each in failed
        )
        raise CommandError(told)
