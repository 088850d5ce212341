"""Avro values: one record each, without a file around them, by a schema that is given.

Spark's own `from_avro` needs a JAR; fastavro comes by pip. Types become what Spark's would: enums are strings, fixed is
binary, a union is one type that may be null. Other unions and schemas that contain themselves have no columns.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.pipeline.declared.decoding import SchemaError, UnreadableError, without_frame

_PRIMITIVES: Final = {
    "string": "string",
    "bytes": "binary",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "null": "void",
}
_LOGICAL: Final = {"date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp"}
_KEPT: Final = frozenset({*_LOGICAL, "decimal"})


class AvroDecoder(msgspec.Struct, frozen=True):
    schema_text: str
    is_framed: bool = False

    def columns(self) -> str:
        schema = self._schema()
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise SchemaError("the Avro schema must be a record: its fields are the columns")
        return _fields(schema, {}, ())

    def open(self) -> Callable[[bytes], dict[str, Any]]:
        import fastavro

        parsed = fastavro.parse_schema(_plain(self._schema()))

        def decode(value: bytes) -> dict[str, Any]:
            stream = io.BytesIO(without_frame(value) if self.is_framed else value)
            try:
                row = fastavro.schemaless_reader(stream, parsed, None)
            # What fastavro raises on bytes that are no such record depends on where they stop making sense.
            except (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
                raise UnreadableError(f"no such Avro record: {type(error).__name__}: {error}") from error
            left = len(stream.getbuffer()) - stream.tell()
            if left:
                raise UnreadableError(f"{left} bytes are left behind the Avro record")
            assert isinstance(row, dict)
            return row

        return decode

    def _schema(self) -> Any:
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType

        try:
            schema = json.loads(self.schema_text)
            fastavro.parse_schema(schema)
        except (ValueError, SchemaParseException, UnknownType, KeyError, TypeError) as error:
            raise SchemaError(f"no Avro schema: {error}") from error
        return schema


def _plain(schema: Any) -> Any:
    """Without the logical types that have no column type of their own: a UUID stays a text, a time its number."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: _plain(part) for name, part in schema.items() if name not in ("default", "aliases", "doc")}
    if kept.get("logicalType") not in _KEPT:
        kept.pop("logicalType", None)
    return kept


# ------------------------------------------------------------------ types


def _fields(record: dict[str, Any], names: dict[str, Any], inside: tuple[str, ...], separator: str = " ") -> str:
    name = str(record.get("name", ""))
    if name in inside:
        raise SchemaError(f"the Avro record {name!r} contains itself, which no columns can")
    names[name] = record
    if record.get("namespace"):
        names[f"{record['namespace']}.{name}"] = record
    columns = [
        f"`{field['name']}`{separator}{_type(field['type'], names, (*inside, name))}" for field in record["fields"]
    ]
    return ", ".join(columns)


def _type(schema: Any, names: dict[str, Any], inside: tuple[str, ...]) -> str:
    if isinstance(schema, list):
        left = [part for part in schema if part != "null"]
        if len(left) != 1:
            told = ", ".join(str(part if isinstance(part, str) else part.get("type")) for part in schema)
            raise SchemaError(f"a union of {told} has no column type: one type and null have")
        return _type(left[0], names, inside)
    if isinstance(schema, str):
        return _PRIMITIVES[schema] if schema in _PRIMITIVES else _named(schema, names, inside)
    kind = schema["type"]
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']}, {schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if kind == "record":
        return f"struct<{_fields(schema, names, inside, ': ')}>"
    if kind in ("enum", "fixed"):
        names[str(schema.get("name"))] = schema
        return "string" if kind == "enum" else "binary"
    if kind == "array":
        return f"array<{_type(schema['items'], names, inside)}>"
    if kind == "map":
        return f"map<string, {_type(schema['values'], names, inside)}>"
    return _type(kind, names, inside)


def _named(name: str, names: dict[str, Any], inside: tuple[str, ...]) -> str:
    found = names.get(name) or names.get(name.rpartition(".")[2])
    if found is None:
        raise SchemaError(f"the Avro schema does not say what {name!r} is")
    return _type(found, names, inside)
