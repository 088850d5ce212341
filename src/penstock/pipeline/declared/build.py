"""A pipeline as Spark sees it: schemas found, views made, steps analysed. Nothing is run, and few rows are looked at.

`validate`, `explain` and `run` all build by these functions, so that what is checked is what is run. Each pipeline has
a Spark session of its own beside the shared one: two may call a source by the same name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.errors import ClientError
from penstock.pipeline.declared.decoding import SchemaError
from penstock.pipeline.declared.document import Format, Pipeline, PythonStep, SqlStep, Step, TopicSource
from penstock.pipeline.declared.errors import read_complaint
from penstock.pipeline.declared.function import call_function
from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems, suggestion
from penstock.pipeline.declared.samples import sample_values
from penstock.pipeline.declared.sources import (
    HEADERS,
    METADATA,
    Reading,
    TopicPlan,
    columns_of,
    decoder_of,
    good_rows,
    struct_of,
    table_rows,
    write_columns,
)
from penstock.pipeline.sql import command_of
from penstock.pipeline.table.options import TableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Built(msgspec.Struct, frozen=True):
    name: str
    pipeline: Pipeline
    spark: Any
    plans: dict[str, TopicPlan]
    # Sources and named steps, in their order.
    views: dict[str, Any]
    result: Any


class Site(msgspec.Struct, frozen=True):
    """Where a document is at home."""

    # Of the file: paths begin here, and modules are looked for.
    directory: Path
    bootstrap: str
    state_directory: Path


def quiet_spark() -> None:
    """PySpark logs every statement that does not analyse, with the JVM's stack; we tell it in one sentence."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


# ------------------------------------------------------------------ schemas


async def find_columns(
    spark: SparkSession,
    pipeline: Pipeline,
    path: Where,
    site: Site,
    problems: Problems,
    *,
    client: ClusterClient | None,
    known: Mapping[str, str],
) -> dict[str, TopicPlan]:
    """Plans of the topic sources. `known` are columns that an earlier run has found; without a client no topic is
    looked into."""
    plans: dict[str, TopicPlan] = {}
    for name, source in pipeline.sources.items():
        if not isinstance(source, TopicSource):
            continue
        here = (*path, "sources", name)
        try:
            decoder = decoder_of(source, site.directory)
            columns = columns_of(source, decoder) or known.get(name)
        except (SchemaError, OSError) as error:
            told = str(error) if isinstance(error, SchemaError) else f"{error.filename}: {error.strerror}"
            problems.add((*here, "schema_file"), told)
            continue
        if columns is None:
            columns = await _infer(spark, source, here, problems, client)
        if columns is not None and _are_columns(columns, source, here, problems):
            plans[name] = TopicPlan(name, source, columns, decoder)
    return plans


async def _infer(
    spark: SparkSession, source: TopicSource, path: Where, problems: Problems, client: ClusterClient | None
) -> str | None:
    if client is None:
        problems.add(path, "no `schema` is given, and without a node none can be found in the topic: not checked")
        return None
    values: list[bytes] = []
    for topic in source.topics:
        try:
            values += await sample_values(client, topic)
        except ClientError as error:
            problems.add((*path, "topic"), str(error))
            return None
    texts = [text for value in values if (text := value.decode(errors="replace").strip())]
    if not texts:
        problems.add(path, f"no `schema` is given, and {source.topic!r} has no message to find one in")
        return None
    return _infer_from(spark, source, texts, path, problems)


def _infer_from(
    spark: SparkSession, source: TopicSource, texts: list[str], path: Where, problems: Problems
) -> str | None:
    rows: Any = spark.sparkContext.parallelize(texts, 1)
    corrupt = "__no_json"
    reader = spark.read.options(**{"inferTimestamp": "true", "columnNameOfCorruptRecord": corrupt} | source.options)
    if source.format is Format.CSV:
        schema = spark.read.options(**{"inferSchema": "true"} | source.options).csv(rows).schema
    else:
        schema = reader.json(rows).schema
    # Bad rows are in a sample as well; what is said of them is not a field.
    fields = [field for field in schema.fields if field.name != corrupt]
    if not fields:
        problems.add(
            path, f"none of {len(texts)} messages of {source.topic!r} is {source.format}: `schema` must be given"
        )
        return None
    return write_columns(type(schema)(fields))


def _are_columns(columns: str, source: TopicSource, path: Where, problems: Problems) -> bool:
    from pyspark.errors import PySparkException

    where = (*path, "schema") if source.schema is not None else path
    try:
        schema = struct_of(columns)
    except (PySparkException, AssertionError) as error:
        complaint = read_complaint(error)
        place = problems.place_of(where)
        line = None if place is None or complaint.line is None else place.text_line + complaint.line - 1
        problems.add(where, f"no columns (`id STRING, amount DOUBLE`): {complaint.text}", line=line)
        return False
    count = len(problems.errors)
    seen: set[str] = set()
    for field in schema.fields:
        if field.name.lower() in seen:
            problems.add(where, f"two columns are called {field.name!r} (Spark does not tell A from a)")
        seen.add(field.name.lower())
        if field.name.lower() in (*METADATA, *([HEADERS] if source.headers else [])) or field.name.startswith("__"):
            problems.add(where, f"a field cannot be called {field.name!r}, which is a name of the message itself")
    _check_watermark(source, schema, path, problems)
    return len(problems.errors) == count


def _check_watermark(source: TopicSource, schema: Any, path: Where, problems: Problems) -> None:
    mark = source.watermark
    if mark is None or mark.column == "_timestamp":
        return
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    where = (*path, "watermark", "column")
    if mark.column not in types:
        problems.add(where, f"there is no column {mark.column!r}{suggestion(mark.column, [*types, '_timestamp'])}")
    elif types[mark.column] not in ("timestamp", "timestamp_ntz"):
        problems.add(where, f"column {mark.column!r} is {types[mark.column]}, a TIMESTAMP is meant")


# ------------------------------------------------------------------ views and steps


def build(
    spark: SparkSession,
    name: str,
    pipeline: Pipeline,
    plans: dict[str, TopicPlan],
    site: Site,
    problems: Problems,
    *,
    is_streaming: bool = True,
) -> Built | None:
    """None: `problems` say why."""
    own = spark.newSession()
    path: Where = ("pipelines", name)
    reading = Reading(site.bootstrap, name, is_streaming)
    views: dict[str, Any] = {}
    for source_name in pipeline.sources:
        frame = _source_frame(own, pipeline, source_name, plans, reading, site, path, problems)
        if frame is None:
            return None
        frame.createOrReplaceTempView(source_name)
        views[source_name] = frame
    result = next(iter(views.values()))
    for number, step in enumerate(pipeline.all_steps):
        where = _step_path(pipeline, path, number)
        made = _apply(own, step, views, site, where, problems)
        if made is None:
            return None
        result = made
        if step.name is not None:
            made.createOrReplaceTempView(step.name)
            views[step.name] = made
    return Built(name, pipeline, own, plans, views, result)


def _step_path(pipeline: Pipeline, path: Where, number: int) -> Where:
    if pipeline.sql is not None:
        return (*path, "sql")
    if pipeline.python is not None:
        return (*path, "python")
    return (*path, "steps", number, pipeline.steps[number].KEYS[0])


def _source_frame(
    spark: SparkSession,
    pipeline: Pipeline,
    name: str,
    plans: dict[str, TopicPlan],
    reading: Reading,
    site: Site,
    path: Where,
    problems: Problems,
) -> DataFrame | None:
    from pyspark.errors import PySparkException

    source = pipeline.sources[name]
    here = (*path, "sources", name)
    try:
        if isinstance(source, TopicSource):
            return good_rows(spark, plans[name], reading, pipeline.on_bad_row)
        return table_rows(spark, source, site.directory)
    except TableError as error:
        problems.add((*here, "delta"), str(error))
    except PySparkException as error:
        key = "expect" if isinstance(source, TopicSource) and source.expect else source.KEYS[0]
        where = here if isinstance(source, TopicSource) and not source.expect else (*here, key)
        problems.add(where if isinstance(source, TopicSource) else here, read_complaint(error).text)
    return None


def _apply(
    spark: SparkSession, step: Step, views: dict[str, Any], site: Site, path: Where, problems: Problems
) -> DataFrame | None:
    if isinstance(step, PythonStep):
        return call_function(spark, step, views, site.directory, path, problems)
    return _select(spark, step, views, path, problems)


def _select(
    spark: SparkSession, step: SqlStep, views: dict[str, Any], path: Where, problems: Problems
) -> DataFrame | None:
    from pyspark.errors import PySparkException

    try:
        command = command_of(spark, step.sql)
        if command is None:
            return spark.sql(step.sql)
    except PySparkException as error:
        complaint = read_complaint(error, tuple(views))
        place = problems.place_of(path)
        line = None if place is None or complaint.line is None else place.text_line + complaint.line - 1
        problems.add(path, complaint.text, line=line)
        return None
    named = "the statement" if step.name is None else f"step {step.name!r}"
    place = problems.place_of(path)
    told = f"{named} is a command ({command} …), which would take effect at once: a query (SELECT …) is meant"
    problems.add(path, told, line=None if place is None else place.text_line)
    return None
