"""From a file to pipelines that can start, as far as its mistakes allow: what `validate`, `explain` and `run` share.

    read ──► check the document ──► ask the node for topics ──► find columns ──► build views and steps ──► check sinks

Every stage looks at all that the one before could make sense of, so that one call tells all problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.kafka import ErrorCode
from penstock.domain.topic_rules import is_internal
from penstock.net.errors import BrokerError
from penstock.pipeline.declared.build import Built, Site, build, find_columns, quiet_spark
from penstock.pipeline.declared.checks import check_document, dead_letter_topic
from penstock.pipeline.declared.document import Document, Format, OnBadRow, Pipeline, TopicSource
from penstock.pipeline.declared.paths import locate
from penstock.pipeline.declared.problems import Problems, suggestion
from penstock.pipeline.declared.reader import read_document
from penstock.pipeline.declared.result import check_result
from penstock.pipeline.declared.sinks.contract import Place
from penstock.pipeline.declared.state import PipelineState, default_directory
from penstock.pipeline.source.options import BOOTSTRAP_DEFAULT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Loaded(msgspec.Struct, frozen=True):
    file: Path
    site: Site
    problems: Problems
    # None: it could not be read.
    document: Document | None


def load(file: Path, environment: Mapping[str, str], *, bootstrap: str | None = None) -> Loaded:
    """Neither Spark nor a node is needed. Raises `OSError`."""
    problems = Problems()
    document = _read(file, environment, problems)
    if document is not None:
        check_document(document, problems)
    directory = file.absolute().parent
    told = None if document is None else document.state_directory
    state = default_directory(environment) if told is None else directory / Path(told).expanduser()
    address = bootstrap or (document.bootstrap if document else None) or BOOTSTRAP_DEFAULT
    return Loaded(file, Site(directory, address, state), problems, document)


def _read(file: Path, environment: Mapping[str, str], problems: Problems) -> Document | None:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        problems.add((), f"no YAML: the file is not UTF-8 (byte {error.start})")
        return None
    return read_document(text, environment, problems)


def state_of(site: Site, name: str, pipeline: Pipeline) -> PipelineState:
    checkpoint = None if pipeline.checkpoint is None else locate(pipeline.checkpoint, site.directory)
    return PipelineState(site.state_directory, name, checkpoint)


def choose(document: Document, names: Sequence[str]) -> dict[str, Pipeline] | str:
    """Those that were asked for, all by default; or a sentence on one that there is not."""
    for name in names:
        if name not in document.pipelines:
            known = f" (it has {', '.join(document.pipelines)})"
            return f"there is no pipeline {name!r} in the file{suggestion(name, document.pipelines) or known}"
    return {name: pipeline for name, pipeline in document.pipelines.items() if not names or name in names}


# ------------------------------------------------------------------ topics


async def check_topics(client: ClusterClient, pipelines: Mapping[str, Pipeline], problems: Problems) -> None:
    known = {topic.name for topic in await client.topics()}
    # What one pipeline writes another may read before it is there.
    written = {pipeline.sink.claims.topic for pipeline in pipelines.values()}
    shown = [name for name in known if not is_internal(name)]
    for name, pipeline in pipelines.items():
        for source_name, source in pipeline.sources.items():
            for topic in source.topics if isinstance(source, TopicSource) else ():
                if topic not in known and topic not in written:
                    here = ("pipelines", name, "sources", source_name, "topic")
                    problems.add(here, f"topic {topic!r} does not exist{suggestion(topic, shown)}")
        created = pipeline.sink.claims.topic
        if created is not None and created not in known:
            told = f"topic {created!r} does not exist yet and will be created"
            # A new name is often like an old one, and only seldom meant to be it.
            told += suggestion(created, shown, likeness_min=0.85)
            problems.add(("pipelines", name, "sink", "topic"), told, is_warning=True)


async def ids_of_topics(client: ClusterClient, pipeline: Pipeline) -> dict[str, str]:
    """Of those that are read as streams and are there, by name."""
    streams = [
        source for source in pipeline.sources.values() if isinstance(source, TopicSource) and not source.as_table
    ]
    read = {topic for source in streams for topic in source.topics}
    # A cluster without ids tells zeros.
    return {
        topic.name: topic.topic_id.hex()
        for topic in await client.topics()
        if topic.name in read and any(topic.topic_id)
    }


async def create_topics(client: ClusterClient, pipelines: Mapping[str, Pipeline]) -> list[str]:
    """Those that pipelines write and that are not there yet; their names."""
    known = {topic.name for topic in await client.topics()}
    wanted: dict[str, int] = {}
    for name, pipeline in pipelines.items():
        claims = pipeline.sink.claims
        if claims.topic is not None:
            wanted[claims.topic] = claims.partitions or -1
        if pipeline.on_bad_row is OnBadRow.DEAD_LETTER:
            wanted.setdefault(dead_letter_topic(name, pipeline), -1)
    missing = [topic for topic in wanted if topic not in known]
    for topic in missing:
        try:
            # -1: as many as the node gives by default.
            await admin.create_topic(client, topic, partitions=wanted[topic])
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
    return missing


# ------------------------------------------------------------------ Spark


async def prepare(
    spark: SparkSession,
    loaded: Loaded,
    pipelines: Mapping[str, Pipeline],
    *,
    client: ClusterClient | None,
    is_streaming: bool = True,
) -> list[Built]:
    """Those that have no problem."""
    quiet_spark()
    ready: list[Built] = []
    for name, pipeline in pipelines.items():
        problems, path = loaded.problems, ("pipelines", name)
        count = len(problems.errors)
        state = state_of(loaded.site, name, pipeline)
        known = state.read().columns if state.has_checkpoint else {}
        plans = await find_columns(spark, pipeline, path, loaded.site, problems, client=client, known=known)
        topics = [source for source in pipeline.sources.values() if isinstance(source, TopicSource)]
        if len(plans) < len(topics):
            continue
        built = build(spark, name, pipeline, plans, loaded.site, problems, is_streaming=is_streaming)
        if built is not None and is_streaming:
            check_result(built, Place(loaded.site.directory, state.checkpoint), problems)
        if built is not None and len(problems.errors) == count:
            ready.append(built)
    return ready


def inferred(built: Built) -> dict[str, str]:
    """Columns that a sample told, by source."""
    return {
        name: plan.columns
        for name, plan in built.plans.items()
        if plan.source.format in (Format.JSON, Format.CSV) and plan.source.schema is None
    }
