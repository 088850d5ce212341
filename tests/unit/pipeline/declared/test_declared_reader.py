"""A pipeline file is read whole: every mistake is told with its line and what was probably meant."""

from __future__ import annotations

from penstock.pipeline.declared.document import (
    Document,
    Format,
    OnBadRow,
    PythonStep,
    Restart,
    SqlStep,
    TableSource,
    TopicSource,
)
from penstock.pipeline.declared.problems import Problems
from penstock.pipeline.declared.reader import read_document
from penstock.pipeline.declared.sinks.console import ConsoleSink
from penstock.pipeline.declared.sinks.contract import Mode
from penstock.pipeline.declared.sinks.delta import DeltaSink
from penstock.pipeline.declared.sinks.parquet import ParquetSink
from penstock.pipeline.declared.sinks.topic import TopicSink

WHOLE = """
bootstrap: ${BROKER:-10.0.0.1:9092}
state_directory: state
x-base: &base
  topic: orders
  schema: id STRING
spark:
  master: local[2]
  conf: {spark.driver.memory: 1g, spark.sql.shuffle.partitions: 4}
pipelines:
  one:
    description: First.
    sources:
      orders:
        <<: *base
        format: csv
        watermark: {column: at, delay: 10 minutes}
        expect: {positive: amount > 0}
        options: {sep: ";"}
        rows_per_batch_max: 1_000
        headers: yes
      people: {parquet: people.parquet}
      rates: {delta: s3://bucket/rates}
    steps:
      - name: first
        sql: |
          SELECT *
          FROM orders
      - python: rules:apply
    sink:
      topic: result
      key: id
      value: [id, amount]
      mode: update
      partitions: 3
    trigger: 10 seconds
    on_bad_row: drop
    restart: on-failure
    restarts_max: 3
  two:
    sources: {raw: {topic: "a, b", format: binary}}
    sink: {delta: out/table, partition_by: [day]}
  three:
    sources: {raw: {topic: raw, format: text}}
    sink: {parquet: out/files}
  four:
    sources: {raw: {topic: raw}}
    sink: {console: 20}
"""


def read(text: str, environment: dict[str, str] | None = None) -> tuple[Document | None, list[str]]:
    problems = Problems()
    document = read_document(text, environment or {}, problems)
    return document, [problem.sentence("f.yaml") for problem in problems.in_order()]


def told(text: str, environment: dict[str, str] | None = None) -> list[str]:
    document, sentences = read(text, environment)
    assert document is None
    return sentences


def pipeline(body: str) -> str:
    """A file whose pipeline has these lines, from line 3 on."""
    return "pipelines:\n  p:\n" + "".join(f"    {line}\n" for line in body.strip().splitlines())


def test_every_key_comes_out_as_it_was_written() -> None:
    document, sentences = read(WHOLE)
    assert sentences == []
    assert document is not None
    assert document.bootstrap == "10.0.0.1:9092"
    assert document.spark.conf == {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "4"}
    one = document.pipelines["one"]
    orders = one.sources["orders"]
    assert isinstance(orders, TopicSource)
    assert (orders.topic, orders.schema, orders.format) == ("orders", "id STRING", Format.CSV)
    assert orders.watermark is not None
    assert (orders.watermark.column, orders.watermark.delay) == ("at", "10 minutes")
    assert (orders.expect, orders.options) == ({"positive": "amount > 0"}, {"sep": ";"})
    assert (orders.rows_per_batch_max, orders.headers) == (1000, True)
    people, rates = one.sources["people"], one.sources["rates"]
    assert isinstance(people, TableSource)
    assert isinstance(rates, TableSource)
    assert (people.kind, people.path, rates.kind, rates.path) == (
        "parquet", "people.parquet", "delta", "s3://bucket/rates",
    )  # fmt: skip
    assert one.all_steps == [SqlStep(sql="SELECT *\nFROM orders\n", name="first"), PythonStep(python="rules:apply")]
    assert one.sink == TopicSink(topic="result", key="id", value=["id", "amount"], mode=Mode.UPDATE, partitions=3)
    assert (one.trigger, one.on_bad_row, one.restart, one.restarts_max) == (
        "10 seconds", OnBadRow.DROP, Restart.ON_FAILURE, 3,
    )  # fmt: skip
    raw = document.pipelines["two"].sources["raw"]
    assert isinstance(raw, TopicSource)
    assert raw.topics == ("a", "b")
    assert document.pipelines["two"].sink == DeltaSink(delta="out/table", partition_by=["day"])
    assert document.pipelines["three"].sink == ParquetSink(parquet="out/files")
    assert document.pipelines["four"].sink == ConsoleSink(console=20)


def test_all_mistakes_are_told_at_once_with_lines_and_suggestions() -> None:
    assert told("""
pipelines:
  revenue:
    sources:
      orders:
        topic: orders
        shcema: a INT
        format: jso
      customers: {parqet: x}
      both: {parquet: x, csv: y}
      none:
    sink: {topic: [a], kye: a}
    on_bad_row: deadletter
    restarts_max: many
  other: 3
  third:
    sources: {}
""") == [
        "f.yaml:7: pipelines.revenue.sources.orders.shcema: not known here; did you mean 'schema'?",
        "f.yaml:8: pipelines.revenue.sources.orders.format: 'jso' is none of json, avro, protobuf, csv, text, binary; "
        "did you mean 'json'?",
        "f.yaml:9: pipelines.revenue.sources.customers: one of topic, parquet, csv, delta must be given; "
        "did you mean 'parquet'?",
        "f.yaml:10: pipelines.revenue.sources.both: only one of topic, parquet, csv, delta can be given, "
        "not parquet and csv",
        "f.yaml:11: pipelines.revenue.sources.none: is empty, a mapping (`name: value`) is meant",
        "f.yaml:12: pipelines.revenue.sink.topic: a list, a text is meant",
        "f.yaml:12: pipelines.revenue.sink.kye: not known here; did you mean 'key'?",
        "f.yaml:13: pipelines.revenue.on_bad_row: 'deadletter' is none of fail, dead_letter, drop; "
        "did you mean 'dead_letter'?",
        "f.yaml:14: pipelines.revenue.restarts_max: 'many', a whole number is meant",
        "f.yaml:15: pipelines.other: '3', a mapping (`name: value`) is meant",
        "f.yaml:17: pipelines.third: `sink` is missing",
    ]  # fmt: skip


def test_a_key_that_is_like_none_is_told_with_all_that_are_known() -> None:
    (sentence,) = told("pipelines: {}\nzzz: 1\n")
    assert sentence == "f.yaml:2: zzz: not known here; known are pipelines, bootstrap, state_directory, spark"


def test_a_file_that_is_no_yaml_is_told_with_its_line() -> None:
    (sentence,) = told("pipelines:\n  a: [1,\n  b: 2\n")
    assert sentence == (
        "f.yaml:4: no YAML: expected ',' or ']', but got '<stream end>' (while parsing a flow sequence from line 2 on)"
    )
    (sentence,) = told("pipelines:\n\ta: 1\n")
    assert sentence == "f.yaml:2: no YAML: the line begins with a tab, spaces are meant"


def test_an_empty_file_says_what_is_meant() -> None:
    assert told("") == ["f.yaml: the file is empty: `pipelines:` is meant"]
    assert told("- a\n") == ["f.yaml:1: a list, a mapping (`name: value`) is meant"]


def test_what_is_looked_at_twice_is_told_once() -> None:
    text = "pipelines: {a: {sources: {x: {topic: t, topic: u}}, sink: {console: 5}}}"
    assert told(text) == ["f.yaml:1: pipelines.a.sources.x.topic: stands here twice"]


def test_a_key_that_stands_twice_is_told() -> None:
    sentences = told(pipeline("sources: {a: {topic: a}}\nsink: {console: 5}\nsink: {console: 6}"))
    assert sentences == ["f.yaml:5: pipelines.p.sink: stands here twice"]


def test_a_variable_that_is_not_set_is_told() -> None:
    body = pipeline("sources: {a: {topic: '${TOPIC}'}}\nsink: {topic: 'x-${TOPIC:-none}-$${kept}'}")
    assert told(body) == [
        "f.yaml:3: pipelines.p.sources.a.topic: the variable TOPIC is not set; "
        "${TOPIC:-default} gives one that is used then"
    ]
    document, _ = read(body, {"TOPIC": "orders"})
    assert document is not None
    assert document.pipelines["p"].sink == TopicSink(topic="x-orders-${kept}")


def test_an_anchor_that_contains_itself_is_no_endless_tree() -> None:
    sentences = told("pipelines:\n  p: &p\n    sources: {a: {topic: a}}\n    sink: *p\n")
    assert len(sentences) == 1
    document, sentences = read("x-loop: &a {<<: *a}\npipelines: {}\n")
    assert document is None or sentences == []


def test_lines_of_a_block_begin_on_the_next_line() -> None:
    problems = Problems()
    read_document(pipeline("sources: {a: {topic: a}}\nsql: |\n  SELECT 1\nsink: {console: 5}"), {}, problems)
    block = problems.places["pipelines", "p", "sql"]
    assert (block.line, block.text_line) == (4, 5)
    assert problems.place_of(("pipelines", "p", "sql", "far", "below")) == block


def test_numbers_and_truths_are_texts_where_a_text_is_meant() -> None:
    document, _ = read(pipeline("sources: {a: {topic: 2024, options: {multiLine: true}}}\nsink: {console: 5}"))
    assert document is not None
    source = document.pipelines["p"].sources["a"]
    assert isinstance(source, TopicSource)
    assert (source.topic, source.options) == ("2024", {"multiLine": "true"})
