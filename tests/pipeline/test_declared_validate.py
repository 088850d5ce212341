"""`validate` tells everything that is wrong without running anything: topics, columns, SQL, functions, sinks, modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from support.node_process import NodeProcess
from support.spark.declared_scene import PipelineScene, send
from support.spark.topics import create

WRONG = """
pipelines:
  no_topic:
    sources: {{a: {{topic: {orders}x, schema: id INT}}}}
    sink: {{console: 5}}
  no_columns:
    sources:
      a:
        topic: {orders}
        schema: |
          id INT,
          name STRNG
    sink: {{console: 5}}
  taken_name:
    sources: {{a: {{topic: {orders}, schema: '_key STRING'}}}}
    sink: {{console: 5}}
  no_mark:
    sources: {{a: {{topic: {orders}, schema: 'at STRING', watermark: {{column: at, delay: 1s}}}}}}
    sink: {{console: 5}}
  no_such_mark:
    sources: {{a: {{topic: {orders}, schema: 'at TIMESTAMP', watermark: {{column: att, delay: 1s}}}}}}
    sink: {{console: 5}}
  wrong_sql:
    sources: {{a: {{topic: {orders}, schema: 'id INT, amount DOUBLE'}}}}
    steps:
      - name: first
        sql: |
          SELECT id,
                 amuont
          FROM a
    sink: {{console: 5}}
  wrong_view:
    sources: {{orders: {{topic: {orders}, schema: 'id INT'}}}}
    sql: SELECT * FROM ordrs
    sink: {{console: 5}}
  wrong_expect:
    sources: {{a: {{topic: {orders}, schema: 'id INT', expect: {{good: idd > 0}}}}}}
    sink: {{console: 5}}
  wrong_key:
    sources: {{a: {{topic: {orders}, schema: 'id INT, name STRING'}}}}
    sink: {{topic: {orders}-out, key: nmae, headers: name}}
  wrong_mode:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}}}
    sql: SELECT id, count(*) AS n FROM a GROUP BY id
    sink: {{console: 5}}
  wrong_table:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}, b: {{delta: nowhere}}}}
    sql: SELECT * FROM a
    sink: {{console: 5}}
  wrong_files:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}, b: {{parquet: nowhere}}}}
    sql: SELECT * FROM a
    sink: {{console: 5}}
  wrong_function:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}}}
    python: wrong_rules:aply
    sink: {{console: 5}}
  wrong_answer:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}}}
    python: wrong_rules:apply
    sink: {{console: 5}}
  wrong_module:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}}}
    python: no_such_rules:apply
    sink: {{console: 5}}
  wrong_exit:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}}}
    python: wrong_rules:leave
    sink: {{console: 5}}
  taken_case:
    sources: {{a: {{topic: {orders}, schema: '_KEY STRING, _Headers INT', headers: true}}}}
    sink: {{console: 5}}
  no_column_left:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}}}
    sql: SELECT id FROM a
    sink: {{parquet: somewhere, partition_by: [id]}}
  endless_join:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}, b: {{topic: {empty}, schema: 'id INT'}}}}
    sql: SELECT a.id FROM a JOIN b ON a.id = b.id
    sink: {{console: 5}}
  wrong_schema_file:
    sources: {{a: {{topic: {orders}, format: avro, schema_file: nowhere.avsc}}}}
    sink: {{console: 5}}
  nothing_to_infer:
    sources: {{a: {{topic: {empty}}}}}
    sink: {{console: 5}}
  no_stream:
    sources: {{a: {{topic: {orders}, schema: 'id INT'}}, b: {{csv: some.csv}}}}
    sql: SELECT * FROM b
    sink: {{console: 5}}
"""


@pytest.fixture
def scene(spark: Any, spark_node: NodeProcess, tmp_path: Path) -> PipelineScene:
    return PipelineScene(spark, spark_node.kafka, tmp_path)


def test_everything_that_is_wrong_is_told_at_once(scene: PipelineScene, topic: str) -> None:
    orders, empty = topic, f"{topic}-empty"
    for name in (orders, empty):
        create(scene.kafka, name, 1)
    rules = "def apply(spark, frames):\n    return 5\n\n\ndef leave(spark, frames):\n    raise SystemExit(3)\n"
    (scene.directory / "wrong_rules.py").write_text(rules)
    (scene.directory / "some.csv").write_text("id\n1\n")
    found = scene.validate(WRONG.format(orders=orders, empty=empty))
    # By pipeline: where, and how it begins.
    told = {sentence.split("pipelines.")[1].split(": ", 1)[0]: sentence for sentence in found}
    lines = {path: sentence.removeprefix(":").partition(":")[0] for path, sentence in told.items()}
    texts = {path: sentence.split(": ", 2)[-1] for path, sentence in told.items()}

    assert texts["no_topic.sources.a.topic"] == f"topic '{orders}x' does not exist; did you mean '{orders}'?"
    assert texts["no_columns.sources.a.schema"].endswith('Unsupported data type "STRNG"')
    assert lines["no_columns.sources.a.schema"] == "14"
    assert "a field cannot be called '_key'" in texts["taken_name.sources.a.schema"]
    assert texts["no_mark.sources.a.watermark.column"] == "column 'at' is string, a TIMESTAMP is meant"
    assert texts["no_such_mark.sources.a.watermark.column"] == "there is no column 'att'; did you mean 'at'?"
    assert "`amuont` cannot be resolved" in texts["wrong_sql.steps[0].sql"]
    assert lines["wrong_sql.steps[0].sql"] == "31"
    assert texts["wrong_view.sql"] == "there is no source or step 'ordrs'; did you mean 'orders'?"
    assert "`idd` cannot be resolved" in texts["wrong_expect.sources.a.expect"]
    assert texts["wrong_key.sink.key"].startswith("the result has no column 'nmae'; did you mean 'name'?")
    assert "array<struct<key:string,value:binary>> is meant" in texts["wrong_key.sink.headers"]
    assert "watermark" in texts["wrong_mode.sink.mode"]
    assert texts["wrong_table.sources.b.delta"].endswith("nowhere is not a Delta table")
    assert "nowhere" in texts["wrong_files.sources.b"]
    assert texts["wrong_function.python"] == "module 'wrong_rules' has no function 'aply'; did you mean 'apply'?"
    assert texts["wrong_answer.python"] == "wrong_rules:apply returned int, a DataFrame is meant"
    assert texts["wrong_exit.python"] == "wrong_rules:leave raised SystemExit: 3"
    assert sum("taken_case.sources.a.schema: a field cannot be called" in sentence for sentence in found) == 2
    assert texts["no_column_left.sink.partition_by"] == "one column at least must be left for the files"
    assert "warning: pipelines.endless_join: streams are joined, and not each source" in told["endless_join"]
    assert texts["wrong_module.python"].startswith("module 'no_such_rules' cannot be imported: ModuleNotFoundError")
    assert texts["wrong_schema_file.sources.a.schema_file"].endswith("nowhere.avsc: No such file or directory")
    assert "has no message to find one in" in texts["nothing_to_infer.sources.a"]
    assert texts["no_stream.sink"] == "the result comes of tables alone: no step reads a topic"
    assert f"topic '{orders}-out' does not exist yet and will be created" in told["wrong_key.sink.topic"]
    assert ": warning: " in told["wrong_key.sink.topic"]
    assert len(found) == 25


def test_without_a_node_schemas_and_sql_are_checked_all_the_same(scene: PipelineScene, topic: str) -> None:
    text = """
        pipelines:
          good:
            sources: {a: {topic: nowhere, schema: 'id INT'}}
            sql: SELECT id FROM a
            sink: {topic: out, key: id}
          bad:
            sources: {a: {topic: nowhere, schema: 'id INT'}}
            sql: SELECT idd FROM a
            sink: {topic: out}
          unknown:
            sources: {a: {topic: nowhere}}
            sink: {topic: out}
    """
    first, second = scene.validate(text, is_offline=True)
    assert "`idd` cannot be resolved" in first
    assert second.endswith("without a node none can be found in the topic: not checked")


def test_a_topic_that_another_pipeline_writes_need_not_be_there(scene: PipelineScene, topic: str) -> None:
    create(scene.kafka, topic, 1)
    send(scene.kafka, topic, ["x"])
    text = f"""
        pipelines:
          first:
            sources: {{a: {{topic: {topic}, format: text}}}}
            sink: {{topic: {topic}-between}}
          second:
            sources: {{a: {{topic: {topic}-between, format: text}}}}
            sink: {{console: 5}}
    """
    (only,) = scene.validate(text)
    assert "will be created" in only
