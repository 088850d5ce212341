"""Names that are anybody's, and statements that are no queries: neither may do more than stand where it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from confluent_kafka.admin import AdminClient

from penstock.cli.failure import CommandError
from penstock.pipeline.declared.sources import struct_of, write_columns
from penstock.pipeline.declared.status import FINISHED
from penstock.pipeline.sql import command_of
from support.node_process import NodeProcess
from support.spark.declared_scene import PipelineScene, send
from support.spark.topics import create, read_settled

QUERIES = [
    "SELECT 1",
    "-- first\nSELECT ';' AS a; -- last;\n",
    "WITH x AS (SELECT 1 AS a) SELECT a FROM x;;",
    "VALUES (1)",
    "(SELECT 1) UNION ALL (SELECT 2) /* ; */",
    "FROM a |> WHERE id > 1",
]
COMMANDS = [
    "CREATE TABLE made_by_a_check AS SELECT 1 AS a",
    "CREATE OR REPLACE TEMP VIEW a AS SELECT 1",
    "DROP VIEW a",
    "/* not a query */ INSERT INTO a SELECT 1",
    "WITH x AS (SELECT 1) INSERT INTO a SELECT * FROM x",
    "FROM a -- ;\n INSERT INTO b SELECT id INSERT INTO c SELECT id",
    "CACHE TABLE a",
    "SET spark.sql.shuffle.partitions=7;",
    "EXECUTE IMMEDIATE 'DROP VIEW a'",
    "BEGIN SELECT 1; END",
    "EXPLAIN SELECT 1",
    "SHOW TABLES",
]


@pytest.fixture
def scene(spark: Any, spark_node: NodeProcess, tmp_path: Path) -> PipelineScene:
    return PipelineScene(spark, spark_node.kafka, tmp_path)


def test_a_command_is_told_from_a_query_without_being_run(spark: Any) -> None:
    assert [command_of(spark, statement) for statement in QUERIES] == [None] * len(QUERIES)
    words = [
        "CREATE",
        "CREATE",
        "DROP",
        "INSERT",
        "WITH",
        "FROM",
        "CACHE",
        "SET",
        "EXECUTE",
        "BEGIN",
        "EXPLAIN",
        "SHOW",
    ]
    assert [command_of(spark, statement) for statement in COMMANDS] == words


def test_a_step_that_is_a_command_is_refused_and_nothing_is_done(scene: PipelineScene, topic: str) -> None:
    create(scene.kafka, topic, 1)
    made = scene.directory / "made"
    text = f"""
        pipelines:
          commanded:
            sources: {{a: {{topic: {topic}, schema: id INT}}}}
            steps:
              - name: first
                sql: |
                  CREATE TABLE made_by_a_check USING parquet LOCATION '{made}' AS SELECT 1 AS a
              - sql: SELECT * FROM a
            sink: {{topic: {topic}-out}}
    """
    complaint = (
        ":10: pipelines.commanded.steps[0].sql: step 'first' is a command (CREATE …), which would take effect at once: "
        "a query (SELECT …) is meant"
    )
    assert complaint in scene.validate(text)
    with pytest.raises(CommandError, match="1 problem"):
        scene.run(text)
    assert not made.exists()
    # What a pipeline writes is made when it starts, not when it turns out that it cannot.
    assert f"{topic}-out" not in AdminClient({"bootstrap.servers": scene.kafka}).list_topics(timeout=10).topics


def test_names_may_hold_what_sql_uses_for_itself(scene: PipelineScene, topic: str) -> None:
    kafka, out, dead = scene.kafka, f"{topic}-out", f"{topic}-dead"
    create(kafka, topic, 1)
    names = {"a`b": "a``b", "it's": "it's", "x.y": "x.y", "back\\slash": "back\\slash"}
    schema = ", ".join(f"`{escaped}` STRING NOT NULL" for escaped in names.values())
    good = dict.fromkeys(names, "v") | {"at": "2026-11-15T10:00:00Z", "in`ner": {"d`eep": 1}}
    without = [{key: value for key, value in good.items() if key != name} for name in names]
    send(kafka, topic, [good, *without, good | {"it's": "wrong"}, good | {"it's": "worse"}])
    source = {
        "topic": topic,
        "schema": f"{schema}, `at` TIMESTAMP, `in``ner` STRUCT<`d``eep`: INT>",
        "expect": {"it's \\ `right`": "`it's` <> 'wrong' -- a remark", "say \"no' --": "`it's` != 'worse'"},
        "watermark": {"column": "at", "delay": "1 minute"},
    }
    pipeline = {
        "sources": {"a": source},
        "sql": "SELECT `a``b`, `x.y`, `it's`, `in``ner`, `in``ner`.`d``eep` AS `d``eep` FROM a",
        "sink": {"topic": out, "key": "a`b", "value": ["x.y", "it's", "in`ner", "d`eep"]},
        "dead_letter_topic": dead,
    }
    # JSON is YAML.
    status = scene.run("pipelines: " + json.dumps({topic: pipeline}))[topic]
    assert (status.state, status.rows_out, status.bad_rows) == (FINISHED, 1, 6), status.last_error
    (message,) = read_settled(kafka, out, 1)
    assert message.key() == b"v"
    assert json.loads(message.value()) == {"x.y": "v", "it's": "v", "in`ner": {"d`eep": 1}, "d`eep": 1}
    stages = [dict(letter.headers())["penstock-stage"].decode() for letter in read_settled(kafka, dead, 6)]
    assert stages == [
        "a: a`b is null",
        "a: it's is null",
        "a: x.y is null",
        "a: back\\slash is null",
        "a: expect it's \\ `right`",
        "a: expect say \"no' --",
    ]


def test_columns_found_in_a_sample_may_be_called_anything(spark: Any) -> None:
    rows = spark.sparkContext.parallelize([json.dumps({"a`b": 1, "c d": {"e`": [{"f`g": "x", "``": None}]}})], 1)
    schema = spark.read.json(rows).schema
    assert struct_of(write_columns(schema)) == schema
