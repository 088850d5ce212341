"""Declared pipelines in a real Spark against a real node: sources, steps, sinks, bad rows, restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from penstock.cli.failure import CommandError
from penstock.pipeline.declared.state import PipelineState
from penstock.pipeline.declared.status import FAILED, FINISHED
from support.node_process import NodeProcess
from support.spark.declared_scene import PipelineScene, send
from support.spark.topics import create, group_offsets, read_all, read_settled

TEN = "2026-11-15T10:00:00Z"
ORDERS = "order_id STRING NOT NULL, customer STRING, amount DOUBLE, at TIMESTAMP"


@pytest.fixture
def scene(spark: Any, spark_node: NodeProcess, tmp_path: Path) -> PipelineScene:
    return PipelineScene(spark, spark_node.kafka, tmp_path)


def values(kafka: str, topic: str, count: int) -> list[Any]:
    return [json.loads(message.value() or b"null") for message in read_settled(kafka, topic, count)]


def order(
    number: int, *, customer: str = "c0", amount: float = 1.0, at: str = "2026-11-15T10:00:00Z"
) -> dict[str, Any]:
    return {"order_id": f"o{number}", "customer": customer, "amount": amount, "at": at}


def test_two_streams_are_joined_and_summed_by_the_minute_and_go_on_after_a_restart(
    scene: PipelineScene, topic: str
) -> None:
    kafka, orders, people, out = scene.kafka, f"{topic}-o", f"{topic}-p", f"{topic}-out"
    create(kafka, orders, 2)
    create(kafka, people, 1)
    text = f"""
        pipelines:
          {topic}:
            sources:
              orders:
                topic: {orders}
                schema: {ORDERS}
                watermark: {{column: at, delay: 0 seconds}}
              people:
                topic: {people}
                schema: customer STRING, country STRING, since TIMESTAMP
                watermark: {{column: since, delay: 0 seconds}}
            steps:
              - name: joined
                sql: |
                  SELECT orders.amount, orders.at, people.country
                  FROM orders JOIN people ON orders.customer = people.customer
              - sql: |
                  SELECT window.start AS minute, country, sum(amount) AS revenue, count(*) AS orders
                  FROM joined GROUP BY window(at, '1 minute'), country
            sink: {{topic: {out}, key: country, partitions: 1}}
            on_bad_row: drop
    """
    send(kafka, people, [{"customer": "c0", "country": "DE", "since": "2026-11-15T09:00:00Z"}])
    send(kafka, orders, [order(number, amount=number) for number in range(5)], key="order_id")
    status = scene.run(text)[topic]
    assert (status.state, status.rows_in, status.bad_rows) == (FINISHED, 6, 0), status.last_error
    # Nothing is over yet: no row has told a later time.
    assert read_all(kafka, out) == []
    late = {"customer": "c9", "country": "FR", "since": "2026-11-15T11:00:00Z"}
    send(kafka, people, [late])
    send(kafka, orders, [order(7, amount=100), order(8, customer="c9", at="2026-11-15T11:30:00Z")], key="order_id")
    status = scene.run(text)[topic]
    assert status.state == FINISHED, status.last_error
    # The first run's rows are in its state: they are not read again, and not lost.
    assert values(kafka, out, 1) == [
        {"minute": "2026-11-15T10:00:00.000Z", "country": "DE", "revenue": 110.0, "orders": 6}
    ]
    assert [message.key() for message in read_all(kafka, out)] == [b"DE"]
    assert sum(group_offsets(kafka, f"penstock-spark-{topic}", orders, 2)) == 7
    assert status.lag == 0


def test_bad_rows_become_dead_letters_that_say_why_and_from_where(scene: PipelineScene, topic: str) -> None:
    kafka, out, dead = scene.kafka, f"{topic}-out", f"{topic}-dead"
    create(kafka, topic, 1)
    bad: list[Any] = [
        b"{oh",
        {"order_id": "o8", "amount": "many"},
        {"amount": 3.0},
        {"order_id": "o9", "amount": -1.0},
        b"\xff\xfe",
        b"",
        # Spark's parser would read the first of them and pass over the rest.
        b'{"order_id": "o7", "amount": 1.0}\n{"order_id": "o6", "amount": 1.0}',
        b'{"order_id": "o7", "more": {"amount": 1.0}}, {"order_id": "o6"}',
        b'{"order_id": "o7", "amount": 1.0} and so on',
    ]
    nested = json.dumps(order(1) | {"more": [{"a": "}{"}, {"b": {}}]}).encode() + b" \n"
    send(kafka, topic, [order(0), *bad, None, nested])
    text = f"""
        pipelines:
          {topic}:
            sources:
              orders: {{topic: {topic}, schema: '{ORDERS}', expect: {{amount is positive: amount > 0}}}}
            sql: SELECT order_id, amount, _offset FROM orders
            sink: {{topic: {out}, value: [order_id, _offset]}}
            dead_letter_topic: {dead}
    """
    status = scene.run(text)[topic]
    assert (status.state, status.rows_out, status.bad_rows) == (FINISHED, 2, 9), status.last_error
    assert values(kafka, out, 2) == [{"order_id": "o0", "_offset": 0}, {"order_id": "o1", "_offset": 11}]
    letters = read_settled(kafka, dead, 9)
    told = [dict(letter.headers() or ()) for letter in letters]
    assert [letter.value() for letter in letters] == [
        value if isinstance(value, bytes) else json.dumps(value).encode() for value in bad
    ]
    assert [int(headers["penstock-origin-offset"]) for headers in told] == list(range(1, 10))
    assert {headers["penstock-origin-topic"] for headers in told} == {topic.encode()}
    assert {headers["penstock-dead-letter-reason"] for headers in told} == {b"bad-row"}
    assert [headers["penstock-stage"].decode() for headers in told] == [
        "orders: parse", "orders: parse", "orders: order_id is null", "orders: expect amount is positive",
        *["orders: parse"] * 5,
    ]  # fmt: skip
    texts = [headers["penstock-dead-letter-text"].decode() for headers in told]
    assert texts[0].startswith("no JSON: ")
    assert texts[1:4] == [
        "field 'amount' is \"many\", double is meant",
        "order_id is null",
        "not as expected: amount is positive",
    ]
    assert texts[4:6] == ["no UTF-8 at byte 0", "no JSON: the value is empty"]
    assert all(text.startswith("no JSON: Extra data") for text in texts[6:])
    # Nothing comes twice.
    status = scene.run(text)[topic]
    assert (status.rows_in, status.bad_rows) == (0, 0)
    assert len(read_all(kafka, dead)) == 9


def test_a_bad_row_ends_the_pipeline_or_is_left_out(scene: PipelineScene, topic: str) -> None:
    kafka = scene.kafka
    create(kafka, topic, 1)
    send(kafka, topic, [order(0), b"{oh", order(1)])
    text = f"""
        x-base: &base
          sources: {{orders: {{topic: {topic}, schema: '{ORDERS}'}}}}
          sql: SELECT order_id FROM orders
        pipelines:
          fails: {{<<: *base, on_bad_row: fail, sink: {{topic: {topic}-fails}}}}
          drops: {{<<: *base, on_bad_row: drop, sink: {{topic: {topic}-drops}}}}
    """
    statuses = scene.run(text)
    assert statuses["drops"].state == FINISHED
    assert values(kafka, f"{topic}-drops", 2) == [{"order_id": "o0"}, {"order_id": "o1"}]
    failed = statuses["fails"]
    assert failed.state == FAILED
    assert failed.last_error == (
        f"bad row in source 'orders', at offset 1 of partition 0 of topic {topic!r}: no JSON: Expecting property name "
        "enclosed in double quotes: line 1 column 2 (char 1): {oh"
    )
    assert "raise_error" in Path(failed.log_file).read_text() or "USER_RAISED" in Path(failed.log_file).read_text()
    assert read_all(kafka, f"{topic}-fails") == []


def test_every_sink_gets_every_row_once(scene: PipelineScene, topic: str) -> None:
    from penstock.pipeline.table.writer import read_table

    kafka, directory = scene.kafka, scene.directory
    create(kafka, topic, 1)
    send(kafka, topic, [order(number, customer=f"c{number % 2}") for number in range(4)])
    text = f"""
        x-base: &base
          sources: {{orders: {{topic: {topic}, schema: '{ORDERS}'}}}}
          on_bad_row: drop
        x-count: &count
          <<: *base
          sql: SELECT customer, count(*) AS orders FROM orders GROUP BY customer
        pipelines:
          table: {{<<: *base, sink: {{delta: out/table, partition_by: [customer]}}}}
          files: {{<<: *base, sink: {{parquet: out/files}}}}
          shown: {{<<: *base, sink: {{console: 3}}}}
          updated: {{<<: *count, sink: {{topic: {topic}-updated, mode: update, key: customer, partitions: 1}}}}
          whole: {{<<: *count, sink: {{topic: {topic}-whole, mode: complete, value: orders, partitions: 1}}}}
          replaced: {{<<: *count, sink: {{delta: out/counts, mode: complete}}}}
    """
    first = scene.run(text)
    assert {status.state for status in first.values()} == {FINISHED}, [each.last_error for each in first.values()]
    ((_, rows),) = scene.view.shown
    assert [row["order_id"] for row in rows] == ["o0", "o1", "o2"]
    send(kafka, topic, [order(4, customer="c1")])
    second = scene.run(text, "table", "updated", "replaced")
    assert {status.state for status in second.values()} == {FINISHED}, [each.last_error for each in second.values()]
    spark = scene.spark
    table, files = read_table(spark, str(directory / "out/table")), spark.read.parquet(str(directory / "out/files"))
    assert sorted(row.order_id for row in table.collect()) == ["o0", "o1", "o2", "o3", "o4"]
    assert sorted(row.order_id for row in files.collect()) == ["o0", "o1", "o2", "o3"]
    counts = read_table(spark, str(directory / "out/counts")).collect()
    assert sorted((row.customer, row.orders) for row in counts) == [("c0", 2), ("c1", 3)]
    updated = values(kafka, f"{topic}-updated", 3)
    assert sorted(updated[:2], key=str) == [{"customer": "c0", "orders": 2}, {"customer": "c1", "orders": 2}]
    assert updated[2:] == [{"customer": "c1", "orders": 3}]
    assert values(kafka, f"{topic}-whole", 2) == [2, 2]
    # Spark would take the batches of a query that begins anew for those that are there, and write nothing.
    PipelineState(directory / "state", "files", None).reset()
    with pytest.raises(CommandError):
        scene.run(text, "files")
    assert any("out/files was written by another query" in sentence for sentence in scene.validate(text))


def test_tables_and_a_function_are_sources_and_a_step(scene: PipelineScene, topic: str) -> None:
    from deltalake import write_deltalake

    kafka, people = scene.kafka, f"{topic}-people"
    create(kafka, topic, 1)
    create(kafka, people, 1)
    send(kafka, topic, [order(number, customer=f"c{number}") for number in range(3)])
    send(
        kafka,
        people,
        [{"id": "c0", "name": "Old"}, {"id": "c1", "name": "Gone"}, {"id": "c0", "name": "Ann"}],
        key="id",
    )
    tombstone(kafka, people, "c1")
    (scene.directory / "rates.csv").write_text("customer,rate\nc0,2\nc2,3\n")
    scene.spark.createDataFrame([("c0", "DE"), ("c2", "FR")], "customer string, country string").write.parquet(
        str(scene.directory / "countries")
    )
    import pyarrow as pa

    write_deltalake(str(scene.directory / "limits"), pa.table({"customer": ["c0", "c2"], "most": [5, 6]}))
    (scene.directory / f"rules_{topic.replace('-', '_')}.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def _shout(text): return text.upper()\n"
        "def apply(spark, frames):\n"
        "    assert set(frames) == {'orders', 'people', 'rates', 'countries', 'limits', 'joined'}\n"
        "    return frames['joined'].withColumn('country', F.udf(_shout)('country'))\n"
    )
    text = f"""
        pipelines:
          {topic}:
            sources:
              orders: {{topic: {topic}, schema: '{ORDERS}'}}
              people: {{topic: {people}, schema: 'id STRING, name STRING', as_table: true}}
              rates: {{csv: rates.csv}}
              countries: {{parquet: countries}}
              limits: {{delta: limits}}
            steps:
              - name: joined
                sql: |
                  SELECT order_id, amount * rate AS amount, lower(country) AS country, most, name
                  FROM orders JOIN rates USING (customer) JOIN countries USING (customer) JOIN limits USING (customer)
                  LEFT JOIN people ON orders.customer = people.id
              - python: rules_{topic.replace("-", "_")}:apply
            sink: {{topic: {topic}-out, partitions: 1}}
            on_bad_row: drop
    """
    assert scene.run(text)[topic].state == FINISHED
    assert sorted(values(kafka, f"{topic}-out", 2), key=str) == [
        {"order_id": "o0", "amount": 2.0, "country": "DE", "most": 5, "name": "Ann"},
        {"order_id": "o2", "amount": 3.0, "country": "FR", "most": 6, "name": None},
    ]


def test_a_topic_as_a_table_is_read_anew_though_spark_asks_for_its_parts_once(
    spark_node: NodeProcess, topic: str
) -> None:
    from penstock.pipeline.declared.topic_table import TopicTableReader
    from penstock.pipeline.source.options import parse_options

    kafka = spark_node.kafka
    create(kafka, topic, 2)
    options = {"kafka.bootstrap.servers": kafka, "subscribe": topic}
    reader = TopicTableReader(parse_options(options, is_streaming=False))
    (part,) = reader.partitions()

    def read() -> list[bytes]:
        return sorted(value for batch in reader.read(part) for value in batch.column("value").to_pylist())

    assert read() == []
    send(kafka, topic, [b"first", b"second"])
    assert read() == [b"first", b"second"]
    send(kafka, topic, [b"third"])
    assert read() == [b"first", b"second", b"third"]


def tombstone(kafka: str, topic: str, key: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, None, key)
    assert producer.flush(30) == 0


def test_columns_found_in_a_sample_stay_while_the_checkpoint_does(scene: PipelineScene, topic: str) -> None:
    kafka = scene.kafka
    create(kafka, topic, 1)
    send(kafka, topic, [{"id": 1, "at": "2026-11-15T10:00:00Z"}, b"{oh", {"id": 2, "tags": ["a"]}])
    text = f"""
        pipelines:
          {topic}:
            sources: {{rows: {{topic: {topic}}}}}
            sink: {{topic: {topic}-out, partitions: 1}}
            on_bad_row: drop
    """
    assert scene.run(text)[topic].state == FINISHED
    assert set(PipelineState(scene.directory / "state", topic, None).read().topic_ids) == {topic}
    (found,) = scene.view.named("schema found")
    assert found["columns"] == "`at` timestamp, `id` bigint, `tags` array<string>"
    # These would be other columns; the running pipeline keeps to its own.
    send(kafka, topic, [{"id": 3, "more": True}] * 600)
    assert scene.run(text)[topic].state == FINISHED
    assert len(scene.view.named("schema found")) == 1
    written = values(kafka, f"{topic}-out", 602)
    assert written[:2] == [
        {"at": "2026-11-15T10:00:00.000Z", "id": 1, "tags": None},
        {"at": None, "id": 2, "tags": ["a"]},
    ]
    assert written[-1] == {"at": None, "id": 3, "tags": None}
