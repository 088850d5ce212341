"""Where a pipeline's rows go: the columns that a sink takes, and the query that writes them.

topic     exactly once: staged, then one transaction with a fence (docs/spark.md)
delta     exactly once: one Delta commit a batch, which names the batch
parquet   exactly once for those who read by Spark: its file sink keeps a list of what counts
console   shown, nothing kept
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.pipeline.declared.build import Built
from penstock.pipeline.declared.document import ConsoleSink, DeltaSink, Mode, ParquetSink, TopicSink
from penstock.pipeline.declared.errors import read_complaint
from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems, suggestion
from penstock.pipeline.declared.progress import OBSERVED
from penstock.pipeline.declared.sources import locate
from penstock.pipeline.declared.times import AVAILABLE_NOW, duration_ms
from penstock.pipeline.sink.options import QUERY_ID_PROPERTY
from penstock.pipeline.source.options import OptionError
from penstock.pipeline.sql import quoted
from penstock.pipeline.table.options import FORMAT as TABLE_FORMAT
from penstock.pipeline.table.options import TableOptions, check_table_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

# Called with the rows of a batch and its number.
ShowRows = Callable[[list[dict[str, Any]], int, list[str]], None]

_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
_BYTES: Final = frozenset({"string", "binary"})


# ------------------------------------------------------------------ columns


def check_sink(built: Built, problems: Problems) -> None:
    """Columns that the sink names, and whether Spark can run such a query in such a mode."""
    types = {field.name: field.dataType.simpleString() for field in built.result.schema.fields}
    path: Where = ("pipelines", built.name, "sink")
    sink = built.pipeline.sink
    for key, column in _named_columns(sink):
        if column not in types:
            problems.add((*path, key), f"the result has no column {column!r}{suggestion(column, types)}{_has(types)}")
    if isinstance(sink, TopicSink) and sink.headers in types and types[sink.headers] != _HEADERS_TYPE:
        problems.add((*path, "headers"), f"column {sink.headers!r} is {types[sink.headers]}, {_HEADERS_TYPE} is meant")
    if isinstance(sink, DeltaSink):
        try:
            check_table_columns(types, TableOptions(sink.delta))
        except OptionError as error:
            problems.add(path, str(error))
    names = [field.name.lower() for field in built.result.schema.fields]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        problems.add(path, f"the result has two columns {repeated[0]!r}: one needs another name")
    if isinstance(sink, ParquetSink) and set(types) <= set(sink.partition_by):
        problems.add((*path, "partition_by"), "one column at least must be left for the files")
    _check_streaming(built, path, problems)


def _warn_of_endless_joins(built: Built, problems: Problems) -> None:
    """Spark runs them, until their state is too large for it."""
    streams = [plan.source for plan in built.plans.values() if not plan.source.as_table]
    if all(source.watermark is not None for source in streams):
        return
    if _joins_streams(built.result._jdf.queryExecution().analyzed()):  # noqa: SLF001  plans have no door of their own
        told = "streams are joined, and not each source has a `watermark`: Spark keeps all of their rows for ever"
        problems.add(("pipelines", built.name), told, is_warning=True)


def _joins_streams(plan: Any) -> bool:
    children = plan.children()
    parts = [children.apply(number) for number in range(children.size())]
    if plan.nodeName() == "Join" and all(part.isStreaming() for part in parts):
        return True
    return any(_joins_streams(part) for part in parts if part.isStreaming())


def check_directory(built: Built, checkpoint: str, directory: Path, problems: Problems) -> None:
    """Spark's list of files in a Parquet directory goes by the numbers of batches. To a query that begins anew, those
    of its predecessor are its own: it would write nothing until it has more of them."""
    from py4j.protocol import Py4JError

    sink = built.pipeline.sink
    if not isinstance(sink, ParquetSink):
        return
    where: Where = ("pipelines", built.name, "sink", "parquet")
    path = locate(sink.parquet, directory)
    try:
        is_taken = _is_there(built, f"{path}/_spark_metadata") and not _is_there(built, f"{checkpoint}/metadata")
    except Py4JError as error:
        problems.add(where, f"{path} cannot be looked at: {read_complaint(error).text}")
        return
    if is_taken:
        problems.add(where, f"{path} was written by another query, whose batches Spark would take for these: remove it")


def _is_there(built: Built, path: str) -> bool:
    spark: Any = built.spark
    there = spark._jvm.org.apache.hadoop.fs.Path(path)  # noqa: SLF001  Spark's files have no other door
    return bool(there.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(there))  # noqa: SLF001


def _has(types: dict[str, str]) -> str:
    return f" (it has {', '.join(types)})"


def _named_columns(sink: Any) -> list[tuple[str, str]]:
    named: list[tuple[str, str]] = []
    if isinstance(sink, TopicSink):
        values = sink.value if isinstance(sink.value, list) else [] if sink.value is None else [sink.value]
        named += [] if sink.key is None else [("key", sink.key)]
        named += [] if sink.headers is None else [("headers", sink.headers)]
        named += [("value", column) for column in values]
    elif isinstance(sink, DeltaSink | ParquetSink):
        named += [("partition_by", column) for column in sink.partition_by]
    return named


def _check_streaming(built: Built, path: Where, problems: Problems) -> None:
    """What Spark would say at the start of the query: an aggregate without a watermark in mode append…"""
    from pyspark.errors import PySparkException

    if not built.result.isStreaming:
        problems.add(path, "the result comes of tables alone: no step reads a topic")
        return
    jvm: Any = built.spark._jvm  # noqa: SLF001  the check has no door of its own
    _warn_of_endless_joins(built, problems)
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, built.pipeline.sink.mode.capitalize())()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(built.result._jdf.queryExecution().analyzed(), mode)  # noqa: SLF001
    except PySparkException as error:
        told = read_complaint(error).text
        problems.add((*path, "mode") if "output mode" in told.lower() else path, told)


def shape(built: Built) -> DataFrame:
    """The result as the sink takes it."""
    sink = built.pipeline.sink
    frame: DataFrame = built.result
    if not isinstance(sink, TopicSink):
        return frame
    types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    columns = [f"{_value(sink, types)} AS value"]
    if sink.key is not None:
        columns.append(f"{_as_bytes(sink.key, types)} AS key")
    if sink.headers is not None:
        columns.append(f"{quoted(sink.headers)} AS headers")
    return frame.selectExpr(*columns)


def _value(sink: TopicSink, types: dict[str, str]) -> str:
    if isinstance(sink.value, str):
        return _as_bytes(sink.value, types)
    apart = {sink.key, sink.headers}
    columns = sink.value or [name for name in types if not name.startswith("_")] or list(types)
    left = [name for name in columns if name not in apart]
    # Text or bytes as they came need no document around them.
    if sink.value is None and left == ["value"] and types["value"] in _BYTES:
        return "`value`"
    fields = ", ".join(quoted(name) for name in columns)
    return f"to_json(struct({fields}), map('ignoreNullFields', 'false'))"


def _as_bytes(column: str, types: dict[str, str]) -> str:
    return quoted(column) if types[column] in _BYTES else f"string({quoted(column)})"


# ------------------------------------------------------------------ queries


def start_query(
    built: Built,
    *,
    bootstrap: str,
    checkpoint: str,
    directory: Path,
    show: ShowRows,
    is_once: bool,
) -> StreamingQuery:
    trigger = AVAILABLE_NOW if is_once else built.pipeline.trigger
    rows = observed(shape(built)).writeStream.queryName(built.name).outputMode(built.pipeline.sink.mode.value)
    writer: Any = with_trigger(rows, trigger).option("checkpointLocation", checkpoint)
    # It needs Spark to be there already at its import.
    from penstock.pipeline.declared.topic_table import active

    with active(built.spark):
        query: StreamingQuery = _to_sink(writer, built, bootstrap, directory, show).start()
    return query


def _to_sink(writer: Any, built: Built, bootstrap: str, directory: Path, show: ShowRows) -> Any:
    sink = built.pipeline.sink
    if isinstance(sink, TopicSink):
        return _to_topic(writer, sink, bootstrap)
    if isinstance(sink, ConsoleSink):
        return _to_console(writer, sink, show)
    if isinstance(sink, ParquetSink):
        writer = writer.format("parquet").option("path", locate(sink.parquet, directory))
        return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer
    from penstock.pipeline.declared.topic_table import register_once
    from penstock.pipeline.table.writer import TableSink

    register_once(built.spark, TableSink)
    writer = writer.format(TABLE_FORMAT).option("path", locate(sink.delta, directory))
    return writer.option("partitionBy", ",".join(sink.partition_by)) if sink.partition_by else writer


def observed(rows: DataFrame) -> DataFrame:
    """Its batches say how many rows they wrote."""
    from pyspark.sql import functions as sql

    return rows.observe(OBSERVED, sql.count(sql.lit(1)).alias("rows"))


def with_trigger(writer: Any, trigger: str) -> Any:
    if trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{duration_ms(trigger)} milliseconds")


def _to_topic(writer: Any, sink: TopicSink, bootstrap: str) -> Any:
    options = {"kafka.bootstrap.servers": bootstrap, "topic": sink.topic, "kafka.compression.type": sink.compression}
    if sink.mode is not Mode.UPDATE:
        return writer.format("penstock").options(**options)

    # Spark has no update mode for Python's sinks. The number of the batch and the query's id, which outlives restarts,
    # make a repetition write nothing.
    def write(batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
        if not query_id:
            # Another text in its place would be shared by all queries: each would take the others' batches for its own.
            raise OptionError("Spark does not tell the query's id: nothing was written, for it could be written twice")
        numbered = {**options, "queryId": query_id, "batchId": str(batch_id)}
        batch.write.format("penstock").options(**numbered).mode("append").save()

    return writer.foreachBatch(write)


def _to_console(writer: Any, sink: ConsoleSink, show: ShowRows) -> Any:
    def write(batch: DataFrame, batch_id: int) -> None:
        rows = [row.asDict(recursive=True) for row in batch.limit(sink.console).collect()]
        show(rows, batch_id, batch.columns)

    return writer.foreachBatch(write)
