"""Each format of a topic comes out as columns, and what is none of it as a bad row."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

pytest.importorskip("pyspark.sql", reason="the extra `spark` is not installed")

from penstock.pipeline.declared.status import FINISHED
from support.node_process import NodeProcess
from support.spark.declared_scene import PipelineScene, send
from support.spark.protobuf_shop import descriptor_set, protobuf_order
from support.spark.topics import create, read_settled

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}


def avro(identifier: str) -> bytes:
    row = {
        "id": identifier,
        "amount": 1.5,
        "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "counts": {"a": 1},
        "price": Decimal("12.34"),
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), row)
    return stream.getvalue()


def test_every_format_comes_out_as_columns(spark: Any, spark_node: NodeProcess, tmp_path: Path, topic: str) -> None:
    scene, kafka = PipelineScene(spark, spark_node.kafka, tmp_path), spark_node.kafka
    topic = f"{topic[:8]}-{topic[-8:]}"
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "shop.desc").write_bytes(descriptor_set())
    sent = {
        "avro": [avro("a"), b"\xff"],
        "proto": [protobuf_order(), b"\xff\xff"],
        "csv": ["1;x;2026-11-15", "y;x;2026-11-15"],
        "text": ["plain", b"\xff"],
        "bytes": [b"\x00\xff"],
    }
    for name, values in sent.items():
        create(kafka, f"{topic}-{name}", 1)
        send(kafka, f"{topic}-{name}", values)
    text = f"""
        x-dropping: &dropping {{on_bad_row: drop}}
        pipelines:
          {topic}-a:
            sources: {{o: {{topic: {topic}-avro, format: avro, schema_file: order.avsc}}}}
            sink: {{topic: {topic}-avro-out, value: [id, amount, at, counts, price]}}
          {topic}-p:
            <<: *dropping
            sources: {{o: {{topic: {topic}-proto, format: protobuf, schema_file: shop.desc, message: shop.Order}}}}
            sql: SELECT id, large, tags, ship.city, counts, at, extract(SECOND FROM took) AS took, note FROM o
            sink: {{topic: {topic}-proto-out}}
          {topic}-c:
            <<: *dropping
            sources: {{o: {{topic: {topic}-csv, format: csv, schema: 'n INT, s STRING, d DATE', options: {{sep: ;}}}}}}
            sink: {{topic: {topic}-csv-out}}
          {topic}-t:
            <<: *dropping
            sources: {{o: {{topic: {topic}-text, format: text, headers: true}}}}
            sink: {{topic: {topic}-text-out}}
          {topic}-b:
            sources: {{o: {{topic: {topic}-bytes, format: binary, key_format: binary}}}}
            sink: {{topic: {topic}-bytes-out, value: value}}
    """
    statuses = scene.run(text)
    assert {status.state for status in statuses.values()} == {FINISHED}, [each.last_error for each in statuses.values()]

    def out(name: str) -> bytes:
        (message,) = read_settled(kafka, f"{topic}-{name}-out", 1)
        return message.value() or b""

    assert json.loads(out("avro")) == {
        "id": "a", "amount": 1.5, "at": "1970-01-01T00:00:01.000Z", "counts": {"a": 1}, "price": 12.34,
    }  # fmt: skip
    assert json.loads(out("proto")) == {
        "id": "o1", "large": 18446744073709551615, "tags": ["a", "b"], "city": "Ulm", "counts": {"x": 1},
        "at": "1970-01-01T00:00:10.000Z", "took": 3.0, "note": None,
    }  # fmt: skip
    assert json.loads(out("csv")) == {"n": 1, "s": "x", "d": "2026-11-15"}
    assert (out("text"), out("bytes")) == (b"plain", b"\x00\xff")
    (letter,) = read_settled(kafka, f"{topic}-a-dlq", 1)
    assert (letter.value(), statuses[f"{topic}-a"].bad_rows) == (b"\xff", 1)
    assert dict(letter.headers() or ())["penstock-dead-letter-text"].startswith(b"no such Avro record")
