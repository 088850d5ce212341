"""Whether a pipeline's result can be written: its columns, its mode, and what Spark would say at the query's start."""

from __future__ import annotations

from typing import Any

from penstock.pipeline.declared.build import Built
from penstock.pipeline.declared.errors import read_complaint
from penstock.pipeline.declared.problems import Path as Where
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.sinks.contract import Place, SinkContract


def check_result(built: Built, place: Place, problems: Problems) -> None:
    path: Where = ("pipelines", built.name, "sink")
    sink: SinkContract = built.pipeline.sink
    sink.check_columns(types_of(built.result), path, problems)
    names = [field.name.lower() for field in built.result.schema.fields]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        problems.add(path, f"the result has two columns {repeated[0]!r}: one needs another name")
    _check_streaming(built, path, problems)
    sink.check_place(built.spark, place, path, problems)


def types_of(frame: Any) -> dict[str, str]:
    """Spark's names of them, by column."""
    return {field.name: field.dataType.simpleString() for field in frame.schema.fields}


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
