"""What a pipeline file must keep to beyond its shape; needs neither a node nor Spark.

Each function looks at one part and adds what is wrong. None of them stops at the first.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.domain.queue.definition import DEAD_LETTER_SUFFIX
from penstock.domain.topic_rules import check_name
from penstock.pipeline.declared.document import (
    Document,
    Format,
    Framing,
    OnBadRow,
    Pipeline,
    PythonStep,
    TopicSource,
)
from penstock.pipeline.declared.paths import normal
from penstock.pipeline.declared.problems import Path, Problems, check_filled
from penstock.pipeline.declared.times import AVAILABLE_NOW, EARLIEST, LATEST, duration_ms, moment_ms

# Behind the pipeline's name and its checkpoint: those of the query that writes its dead letters.
DEAD_LETTERS: Final = "-dead-letters"
PIPELINE_NAME_CHARACTERS_MAX: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VIEW_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_DURATION_MEANT: Final = "a duration such as '10 seconds' or '1h 30m' is meant"


def dead_letter_topic(name: str, pipeline: Pipeline) -> str:
    """As a queue names it: the default goes by the pipeline, because several may read one topic."""
    return pipeline.dead_letter_topic or f"{name}{DEAD_LETTER_SUFFIX}"


def check_document(document: Document, problems: Problems) -> None:
    if not document.pipelines:
        problems.add(("pipelines",), "there is none")
    for name, pipeline in document.pipelines.items():
        _check_pipeline(name, pipeline, ("pipelines", name), problems)
    _check_apart(document, problems)


def _check_apart(document: Document, problems: Problems) -> None:
    """What two pipelines cannot share: checkpoints, names of queries, and Spark's list of files in a directory."""
    checkpoints: dict[str, str] = {}
    directories: dict[str, str] = {}
    for name, pipeline in document.pipelines.items():
        path: Path = ("pipelines", name)
        has_letters = pipeline.on_bad_row is OnBadRow.DEAD_LETTER
        if has_letters and f"{name}{DEAD_LETTERS}" in document.pipelines:
            told = f"{name!r} has a query of this name, which writes its dead letters"
            problems.add(("pipelines", f"{name}{DEAD_LETTERS}"), told)
        if pipeline.checkpoint:
            given = normal(pipeline.checkpoint)
            for checkpoint in [given] + ([f"{given}{DEAD_LETTERS}"] if has_letters else []):
                other = checkpoints.setdefault(checkpoint, name)
                if other != name:
                    told = f"{other!r} has the same: each pipeline needs a checkpoint of its own"
                    problems.add((*path, "checkpoint"), told)
        if (directory := pipeline.sink.claims.directory) is not None:
            other = directories.setdefault(normal(directory), name)
            if other != name:
                told = f"{other!r} writes there: of two queries with one directory Spark takes the batches for the same"
                problems.add((*path, "sink", pipeline.sink.KEYS[0]), told)


def _check_pipeline(name: str, pipeline: Pipeline, path: Path, problems: Problems) -> None:
    if not _NAME.fullmatch(name) or len(name) > PIPELINE_NAME_CHARACTERS_MAX:
        told = f"the name is made of letters, digits, '.', '_' and '-', at most {PIPELINE_NAME_CHARACTERS_MAX}"
        problems.add(path, told)
    _check_sources(pipeline, path, problems)
    _check_steps(pipeline, path, problems)
    pipeline.sink.check(_topics_of(pipeline), (*path, "sink"), problems)
    _check_dead_letters(name, pipeline, path, problems)
    if pipeline.trigger != AVAILABLE_NOW and duration_ms(pipeline.trigger) is None:
        problems.add((*path, "trigger"), f"{pipeline.trigger!r}: `{AVAILABLE_NOW}` or {_DURATION_MEANT}")
    if pipeline.checkpoint is not None and not pipeline.checkpoint.strip("./ "):
        problems.add((*path, "checkpoint"), "a directory of its own is meant")
    if pipeline.restarts_max < 0:
        problems.add((*path, "restarts_max"), "cannot be below 0")


# ------------------------------------------------------------------ sources


def _check_sources(pipeline: Pipeline, path: Path, problems: Problems) -> None:
    sources = pipeline.sources.values()
    if not any(isinstance(source, TopicSource) and not source.as_table for source in sources):
        told = "at least one must be a topic, and not `as_table`: a pipeline goes on as messages come"
        problems.add((*path, "sources"), told)
    seen: dict[str, str] = {}
    for name, source in pipeline.sources.items():
        here = (*path, "sources", name)
        _check_view_name(name, seen, here, problems)
        if isinstance(source, TopicSource):
            _check_topic_source(source, here, problems)
        else:
            check_filled(source.path, (*here, source.kind), problems)
        check_filled(source.schema, (*here, "schema"), problems)


def _check_view_name(name: str, seen: dict[str, str], path: Path, problems: Problems) -> None:
    """Spark does not tell apart `Orders` and `orders`."""
    if not _VIEW_NAME.fullmatch(name):
        problems.add(path, f"{name!r} is not a name for SQL: letters, digits and '_', not first a digit")
    other = seen.get(name.lower())
    if other is not None:
        problems.add(path, f"{name!r} is taken" + (f" (by {other!r})" if other != name else ""))
    seen[name.lower()] = name


def _check_topic_source(source: TopicSource, path: Path, problems: Problems) -> None:
    if not source.topics:
        problems.add((*path, "topic"), "names no topic")
    for topic in source.topics:
        if told := check_name(topic):
            problems.add((*path, "topic"), told)
    _check_format(source, path, problems)
    if source.watermark is not None and duration_ms(source.watermark.delay) is None:
        problems.add((*path, "watermark", "delay"), f"{source.watermark.delay!r}: {_DURATION_MEANT}")
    if source.starting not in (EARLIEST, LATEST) and moment_ms(source.starting) is None:
        told = f"{source.starting!r}: {EARLIEST}, {LATEST} or a time such as 2026-11-15T10:00:00Z is meant"
        problems.add((*path, "starting"), told)
    if source.rows_per_batch_max is not None and source.rows_per_batch_max < 1:
        problems.add((*path, "rows_per_batch_max"), "must be at least 1")
    if source.as_table:
        _check_as_table(source, path, problems)


def _check_as_table(source: TopicSource, path: Path, problems: Problems) -> None:
    told = "a topic read `as_table` is read as a whole"
    if source.watermark is not None:
        problems.add((*path, "watermark"), f"{told}: nothing of it comes late")
    if source.rows_per_batch_max is not None:
        problems.add((*path, "rows_per_batch_max"), told)
    if source.starting != EARLIEST:
        problems.add((*path, "starting"), told)


def _check_format(source: TopicSource, path: Path, problems: Problems) -> None:
    kind = source.format
    is_described = kind in (Format.AVRO, Format.PROTOBUF)
    if is_described and source.schema_file is None:
        what = "Avro schema (.avsc)" if kind is Format.AVRO else "descriptor set (protoc --descriptor_set_out)"
        problems.add(path, f"format {kind} needs `schema_file`, the {what}")
    if not is_described and source.schema_file is not None:
        problems.add((*path, "schema_file"), f"format {kind} has none: `schema` gives its columns")
    if source.schema is not None and kind not in (Format.JSON, Format.CSV):
        because = "its columns are those of `schema_file`" if is_described else "it has the one column `value`"
        problems.add((*path, "schema"), f"format {kind} takes none: {because}")
    if kind is Format.PROTOBUF and source.message is None:
        problems.add(path, "format protobuf needs `message`, the name of the message with its package")
    if kind is not Format.PROTOBUF and source.message is not None:
        problems.add((*path, "message"), "is for format protobuf")
    if source.options and kind not in (Format.JSON, Format.CSV):
        problems.add((*path, "options"), "are for the formats json and csv")
    if source.framing is not Framing.NONE and not is_described:
        problems.add((*path, "framing"), "is for the formats avro and protobuf")


# ------------------------------------------------------------------ steps


def _check_steps(pipeline: Pipeline, path: Path, problems: Problems) -> None:
    given = [name for name in ("sql", "python", "steps") if getattr(pipeline, name)]
    if len(given) > 1:
        problems.add((*path, given[1]), f"only one of sql, python and steps can be given, {given[0]!r} is already")
    if not given and len(pipeline.sources) > 1:
        problems.add(path, "there are several sources: `sql`, `python` or `steps` must say what is written")
    check_filled(pipeline.sql, (*path, "sql"), problems)
    if pipeline.python is not None:
        _check_function(pipeline.python, (*path, "python"), problems)
    seen = {name.lower(): name for name in pipeline.sources}
    for number, step in enumerate(pipeline.steps):
        here = (*path, "steps", number)
        if step.name is not None:
            _check_view_name(step.name, seen, (*here, "name"), problems)
        elif number + 1 < len(pipeline.steps):
            problems.add(here, "needs a `name`: only the last step is not read by another")
        if isinstance(step, PythonStep):
            _check_function(step.python, (*here, "python"), problems)
        else:
            check_filled(step.sql, (*here, "sql"), problems)


def _check_function(text: str, path: Path, problems: Problems) -> None:
    if not _FUNCTION.fullmatch(text):
        problems.add(path, f"{text!r}: `module:function` is meant")


# ------------------------------------------------------------------ dead letters


def _check_dead_letters(name: str, pipeline: Pipeline, path: Path, problems: Problems) -> None:
    here = (*path, "dead_letter_topic")
    if pipeline.on_bad_row is not OnBadRow.DEAD_LETTER:
        if pipeline.dead_letter_topic is not None:
            problems.add(here, f"is for `on_bad_row: {OnBadRow.DEAD_LETTER}`, and `{pipeline.on_bad_row}` is given")
        return
    topic = dead_letter_topic(name, pipeline)
    if pipeline.dead_letter_topic is not None and (told := check_name(topic)):
        problems.add(here, told)
    if pipeline.sink.claims.topic == topic:
        problems.add(here, f"the pipeline writes its result to {topic!r}")
    if topic in _topics_of(pipeline):
        problems.add(here, f"the pipeline reads {topic!r}: it would read its own dead letters")


def _topics_of(pipeline: Pipeline) -> dict[str, str]:
    """The source by each topic."""
    return {
        topic: name
        for name, source in pipeline.sources.items()
        if isinstance(source, TopicSource)
        for topic in source.topics
    }
