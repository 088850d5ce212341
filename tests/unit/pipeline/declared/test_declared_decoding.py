"""Avro and Protobuf values into rows, and what cannot be one into an error beside its neighbours' rows."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

fastavro = pytest.importorskip("fastavro", reason="the extra `spark` is not installed")
pa = pytest.importorskip("pyarrow")

from penstock.pipeline.declared.avro import AvroDecoder  # noqa: E402
from penstock.pipeline.declared.decoding import SchemaError, UnreadableError, decode_batches  # noqa: E402
from penstock.pipeline.declared.protobuf import ProtobufDecoder  # noqa: E402
from support.spark.protobuf_shop import descriptor_set, protobuf_order  # noqa: E402

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": ["null", "double"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "ship", "type": {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}},
        {"name": "bill", "type": ["null", "shop.Place"]},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
ROW = {
    "id": "o1",
    "amount": 2.5,
    "price": Decimal("12.34"),
    "at": datetime(2026, 11, 15, 10, tzinfo=UTC),
    "day": date(2026, 11, 15),
    "kind": "OLD",
    "tags": ["a", "b"],
    "counts": {"x": 1},
    "ship": {"city": "Ulm"},
    "bill": None,
    "token": "6f1c9a4e-7d0b-4f0e-9f3a-0f6a3b1f0c11",
}


def avro_bytes(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def test_columns_of_an_avro_record_are_those_of_spark() -> None:
    assert AvroDecoder(json.dumps(ORDER)).columns() == (
        "`id` string, `amount` double, `price` decimal(10, 2), `at` timestamp, `day` date, `kind` string, "
        "`tags` array<string>, `counts` map<string, bigint>, `ship` struct<`city`: string>, "
        "`bill` struct<`city`: string>, `token` string"
    )


def test_an_avro_value_comes_out_as_it_was_written() -> None:
    decode = AvroDecoder(json.dumps(ORDER)).open()
    assert decode(avro_bytes(ORDER, ROW)) == ROW


def test_an_avro_value_that_is_none_says_why() -> None:
    decode = AvroDecoder(json.dumps(ORDER)).open()
    whole = avro_bytes(ORDER, ROW)
    with pytest.raises(UnreadableError, match="no such Avro record"):
        decode(whole[:-4])
    with pytest.raises(UnreadableError, match="2 bytes are left behind"):
        decode(whole + b"xx")
    with pytest.raises(UnreadableError, match="zero byte and the number of a schema"):
        AvroDecoder(json.dumps(ORDER), is_framed=True).open()(b"\x01\x00\x00\x00\x07" + whole)
    assert AvroDecoder(json.dumps(ORDER), is_framed=True).open()(b"\x00\x00\x00\x00\x07" + whole) == ROW


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "no Avro schema"),
        ('"string"', "must be a record"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b", "type": "nonsense"}]}', "no Avro schema"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b", "type": ["int", "string"]}]}',
         "a union of int, string has no column type"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b", "type": ["null", "a"]}]}', "contains itself"),
    ],
)  # fmt: skip
def test_an_avro_schema_that_makes_no_columns_says_why(schema: str, sentence: str) -> None:
    with pytest.raises(SchemaError, match=sentence):
        AvroDecoder(schema).columns()


# ------------------------------------------------------------------ Protobuf


def test_columns_of_a_protobuf_message_are_those_of_spark() -> None:
    assert ProtobufDecoder(descriptor_set(), "shop.Order").columns() == (
        "`id` string, `amount` double, `large` decimal(20, 0), `kind` string, `tags` array<string>, "
        "`ship` struct<`city`: string>, `counts` map<string, bigint>, `at` timestamp, "
        "`took` interval day to second, `note` string"
    )


def test_a_protobuf_value_comes_out_as_it_was_written() -> None:
    row = ProtobufDecoder(descriptor_set(), "shop.Order").open()(protobuf_order())
    assert row == {
        "id": "o1",
        "amount": 2.5,
        "large": Decimal(2**64 - 1),
        # Newer than this schema: its number is better than nothing.
        "kind": "7",
        "tags": ["a", "b"],
        "ship": {"city": "Ulm"},
        "counts": [("x", 1)],
        "at": 10_000_005,
        "took": 3_000_000,
        "note": None,
    }


def test_a_framed_protobuf_value_names_its_message_first() -> None:
    decode = ProtobufDecoder(descriptor_set(), "shop.Order", is_framed=True).open()
    first, third = b"\x00\x00\x00\x00\x01\x00", b"\x00\x00\x00\x00\x01\x04\x02\x00"
    assert decode(first + protobuf_order())["id"] == "o1"
    assert decode(third + protobuf_order())["id"] == "o1"
    with pytest.raises(UnreadableError, match="ends before its message begins"):
        decode(b"\x00\x00\x00\x00\x01\xff")


def test_a_protobuf_value_or_schema_that_is_none_says_why() -> None:
    with pytest.raises(UnreadableError, match=r"no shop\.Order"):
        ProtobufDecoder(descriptor_set(), "shop.Order").open()(b"\xff\xff")
    with pytest.raises(SchemaError, match=r"no message 'shop\.Ordr'; it has .*shop\.Order"):
        ProtobufDecoder(descriptor_set(), "shop.Ordr").columns()
    with pytest.raises(SchemaError, match="no descriptor set"):
        ProtobufDecoder(b"\xff\xff", "shop.Order").columns()
    with pytest.raises(SchemaError, match="contains itself"):
        ProtobufDecoder(descriptor_set(), "shop.Loop").columns()


# ------------------------------------------------------------------ batches


def test_a_bad_value_hinders_none_of_its_neighbours() -> None:
    schema = {"type": "record", "name": "a", "fields": [{"name": "n", "type": "long"}]}
    values = [
        avro_bytes(schema, {"n": 1}),
        b"\xff",
        None,
        avro_bytes(schema, {"n": 2**40}),
        avro_bytes(schema, {"n": 4}),
    ]
    batch = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": pa.array(range(5), pa.int64())})
    # Narrower than the schema: what does not fit its column is a bad row as well.
    row_type = pa.struct([("n", pa.int32())])
    (made,) = decode_batches(AvroDecoder(json.dumps(schema)), row_type, [batch])
    assert made.column("__row").to_pylist() == [{"n": 1}, None, None, None, {"n": 4}]
    errors = made.column("__error").to_pylist()
    assert (errors[0], errors[2], errors[4]) == (None, None, None)
    assert errors[1].startswith("no such Avro record")
    assert errors[3].startswith("does not fit its column")
    assert made.column("offset").to_pylist() == [0, 1, 2, 3, 4]
