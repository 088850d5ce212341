"""What a pipeline file must keep to beyond its shape: each rule, and the sentence that tells it."""

from __future__ import annotations

import pytest

from penstock.pipeline.declared.checks import check_document
from penstock.pipeline.declared.document import TopicSource
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.reader import read_document
from penstock.pipeline.declared.times import duration_ms, moment_ms

SOURCES = "sources: {a: {topic: t}}"
SINK = "sink: {console: 5}"


def told(*lines: str, name: str = "p") -> list[str]:
    text = f"pipelines:\n  {name}:\n" + "".join(f"    {line}\n" for line in lines)
    problems = Problems()
    document = read_document(text, {}, problems)
    assert document is not None, [problem.sentence("") for problem in problems.found]
    check_document(document, problems)
    return [f"{problem.path.removeprefix('pipelines.')}: {problem.text}" for problem in problems.in_order()]


def test_a_plain_pipeline_is_in_order() -> None:
    assert told(SOURCES, SINK) == []


def test_a_file_without_pipelines_is_told() -> None:
    problems = Problems()
    document = read_document("pipelines: {}\n", {}, problems)
    assert document is not None
    check_document(document, problems)
    assert [problem.sentence("f") for problem in problems.found] == ["f:1: pipelines: there is none"]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{topic: ' , '}", "p.sources.a.topic: names no topic"),
        ("{topic: 'a b'}", "p.sources.a.topic: the topic name 'a b' is illegal: only ASCII letters, digits, '.', '_' "
                           "and '-' are allowed"),
        ("{topic: t, format: avro}", "p.sources.a: format avro needs `schema_file`, the Avro schema (.avsc)"),
        ("{topic: t, format: protobuf, schema_file: f}", "p.sources.a: format protobuf needs `message`, the name of "
                                                         "the message with its package"),
        ("{topic: t, schema_file: f}", "p.sources.a.schema_file: format json has none: `schema` gives its columns"),
        ("{topic: t, format: text, schema: a INT}", "p.sources.a.schema: format text takes none: it has the one "
                                                    "column `value`"),
        ("{topic: t, format: avro, schema_file: f, schema: a INT}",
         "p.sources.a.schema: format avro takes none: its columns are those of `schema_file`"),
        ("{topic: t, message: M}", "p.sources.a.message: is for format protobuf"),
        ("{topic: t, format: text, options: {a: b}}", "p.sources.a.options: are for the formats json and csv"),
        ("{topic: t, framing: confluent}", "p.sources.a.framing: is for the formats avro and protobuf"),
        ("{topic: t, watermark: {column: c, delay: soon}}",
         "p.sources.a.watermark.delay: 'soon': a duration such as '10 seconds' or '1h 30m' is meant"),
        ("{topic: t, starting: tomorrow}", "p.sources.a.starting: 'tomorrow': earliest, latest or a time such as "
                                           "2026-11-15T10:00:00Z is meant"),
        ("{topic: t, rows_per_batch_max: 0}", "p.sources.a.rows_per_batch_max: must be at least 1"),
        ("{parquet: x}", "p.sources: at least one must be a topic, and not `as_table`: a pipeline goes on as messages "
                         "come"),
        ("{topic: t, as_table: true}", "p.sources: at least one must be a topic, and not `as_table`: a pipeline goes "
                                       "on as messages come"),
    ],
)  # fmt: skip
def test_sources_that_cannot_be_are_told(source: str, sentence: str) -> None:
    assert told(f"sources: {{a: {source}}}", SINK) == [sentence]


def test_a_topic_as_a_table_has_no_watermark_and_no_start() -> None:
    table = "{topic: t, as_table: true, watermark: {column: c, delay: 1s}, rows_per_batch_max: 5, starting: latest}"
    assert told(f"sources: {{a: {{topic: t}}, b: {table}}}", "sql: SELECT 1", SINK) == [
        "p.sources.b.watermark: a topic read `as_table` is read as a whole: nothing of it comes late",
        "p.sources.b.rows_per_batch_max: a topic read `as_table` is read as a whole",
        "p.sources.b.starting: a topic read `as_table` is read as a whole",
    ]


def test_names_of_views_are_those_of_sql_and_each_its_own() -> None:
    assert told("sources: {my-orders: {topic: t}}", SINK) == [
        "p.sources.my-orders: 'my-orders' is not a name for SQL: letters, digits and '_', not first a digit"
    ]
    assert told("sources: {a: {topic: t}, A: {topic: u}}", "sql: SELECT 1", SINK) == [
        "p.sources.A: 'A' is taken (by 'a')"
    ]
    assert told(SOURCES, "steps: [{name: a, sql: SELECT 1}]", SINK) == ["p.steps[0].name: 'a' is taken"]


def test_steps_that_cannot_be_are_told() -> None:
    assert told("sources: {a: {topic: t}, b: {topic: u}}", SINK) == [
        "p: there are several sources: `sql`, `python` or `steps` must say what is written"
    ]
    assert told(SOURCES, "sql: SELECT 1", "python: 'm:f'", SINK) == [
        "p.python: only one of sql, python and steps can be given, 'sql' is already"
    ]
    assert told(SOURCES, "steps: [{sql: SELECT 1}, {sql: SELECT 2}]", SINK) == [
        "p.steps[0]: needs a `name`: only the last step is not read by another"
    ]
    assert told(SOURCES, "python: function", SINK) == ["p.python: 'function': `module:function` is meant"]
    assert told(SOURCES, "steps: [{python: a.b}]", SINK) == ["p.steps[0].python: 'a.b': `module:function` is meant"]


@pytest.mark.parametrize(
    ("sink", "sentence"),
    [
        ("{topic: t}", "p.sink.topic: the pipeline reads this topic as 'a': it would feed on what it writes"),
        ("{topic: 'a b'}", "p.sink.topic: the topic name 'a b' is illegal: only ASCII letters, digits, '.', '_' and "
                           "'-' are allowed"),
        ("{topic: o, partitions: 0}", "p.sink.partitions: must be at least 1"),
        ("{topic: o, value: []}", "p.sink.value: names no column"),
        ("{topic: o, compression: rar}", "p.sink.compression: 'rar' is none of none, gzip, snappy, lz4, zstd"),
        ("{delta: d, mode: update}", "p.sink.mode: a Delta table takes `append`, or `complete`, which replaces it; "
                                     "`update` is for topics"),
        ("{console: 0}", "p.sink.console: how many rows of each batch are shown: at least 1"),
    ],
)  # fmt: skip
def test_sinks_that_cannot_be_are_told(sink: str, sentence: str) -> None:
    assert told(SOURCES, f"sink: {sink}") == [sentence]


def test_dead_letters_go_where_nobody_reads_them_again() -> None:
    assert told(SOURCES, "dead_letter_topic: t", SINK) == [
        "p.dead_letter_topic: the pipeline reads 't': it would read its own dead letters"
    ]
    assert told("sources: {a: {topic: p-dlq}}", SINK) == [
        "p.dead_letter_topic: the pipeline reads 'p-dlq': it would read its own dead letters"
    ]
    assert told(SOURCES, "sink: {topic: p-dlq}") == ["p.dead_letter_topic: the pipeline writes its result to 'p-dlq'"]
    assert told(SOURCES, "on_bad_row: drop", "dead_letter_topic: x", SINK) == [
        "p.dead_letter_topic: is for `on_bad_row: dead_letter`, and `drop` is given"
    ]


def test_triggers_restarts_and_names_are_looked_at() -> None:
    assert told(SOURCES, "trigger: often", "restarts_max: -1", SINK) == [
        "p.trigger: 'often': `available_now` or a duration such as '10 seconds' or '1h 30m' is meant",
        "p.restarts_max: cannot be below 0",
    ]
    assert told(SOURCES, SINK, name="'a b'") == [
        "a b: the name is made of letters, digits, '.', '_' and '-', at most 100"
    ]


def told_together(**pipelines: str) -> list[str]:
    text = "".join(f"  {name.replace('_', '-')}: {body}\n" for name, body in pipelines.items())
    problems = Problems()
    document = read_document(f"pipelines:\n{text}", {}, problems)
    assert document is not None
    check_document(document, problems)
    return [problem.sentence("f") for problem in problems.found]


@pytest.mark.parametrize("other", ["c", "./c/", "x/../c", "c-dead-letters"])
def test_two_pipelines_have_two_checkpoints(other: str) -> None:
    body = "{{sources: {{a: {{topic: t}}}}, sink: {{console: 5}}, checkpoint: {}}}"
    assert told_together(a=body.format("c"), b=body.format(other)) == [
        "f:3: pipelines.b.checkpoint: 'a' has the same: each pipeline needs a checkpoint of its own"
    ]


def test_two_pipelines_have_two_names_for_their_dead_letters_and_two_directories_of_files() -> None:
    body = "{sources: {a: {topic: t}}, sink: {parquet: out}}"
    assert told_together(a=body, a_dead_letters="{sources: {a: {topic: t}}, sink: {parquet: ./out/}}") == [
        "f:3: pipelines.a-dead-letters: 'a' has a query of this name, which writes its dead letters",
        "f:3: pipelines.a-dead-letters.sink.parquet: 'a' writes there: of two queries with one directory Spark takes "
        "the batches for the same",
    ]


def test_what_a_variable_left_empty_is_told() -> None:
    assert told("sources: {a: {topic: t, schema: ' '}, b: {csv: ''}}", "sql: ''", "sink: {parquet: ''}") == [
        "p.sources.a.schema: is empty",
        "p.sources.b.csv: is empty",
        "p: there are several sources: `sql`, `python` or `steps` must say what is written",
        "p.sql: is empty",
        "p.sink.parquet: is empty",
    ]
    assert told(SOURCES, "steps: [{sql: ''}]", "sink: {delta: ''}", "checkpoint: ./") == [
        "p.steps[0].sql: is empty",
        "p.sink.delta: is empty",
        "p.checkpoint: a directory of its own is meant",
    ]


def test_a_topic_that_is_named_twice_is_read_once() -> None:
    assert TopicSource(topic="b, a ,b,").topics == ("b", "a")


def test_durations_and_moments() -> None:
    assert [duration_ms(text) for text in ("10 seconds", "1h 30m", "250ms", "2 Days")] == [
        10_000, 5_400_000, 250, 172_800_000,
    ]  # fmt: skip
    assert [duration_ms(text) for text in ("", "10", "ten seconds", "5 fortnights", "-1s")] == [None] * 5
    assert moment_ms("1970-01-01T00:00:01Z") == moment_ms("1970-01-01T00:00:01") == moment_ms("1000") == 1_000
    assert moment_ms("now") is None
