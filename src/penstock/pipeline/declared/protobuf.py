"""Protobuf values: one message each, by a descriptor set (`protoc --descriptor_set_out=F --include_imports`).

Types become what Spark's own `from_protobuf` makes of them, which needs a JAR: enums are strings, uint64 is
decimal(20, 0), Timestamp and Duration are timestamp and interval; Google's wrappers are values that may be null. A
field that was not set is null where Protobuf can tell, else its default.

Protobuf cannot tell every foreign value from one of its own: bytes that happen to be well-formed are a message with
unknown fields. Conditions (`expect`) find those.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.pipeline.declared.decoding import SchemaError, UnreadableError, without_frame

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message

# By the numbers of FieldDescriptor.TYPE_*.
_TYPES: Final = {
    1: "double", 2: "float", 3: "bigint", 4: "decimal(20, 0)", 5: "int", 6: "decimal(20, 0)", 7: "bigint",
    8: "boolean", 9: "string", 12: "binary", 13: "bigint", 14: "string", 15: "int", 16: "bigint", 17: "int",
    18: "bigint",
}  # fmt: skip
_ENUM: Final = 14
_UNSIGNED_LONG: Final = frozenset({4, 6})
_MESSAGE: Final = frozenset({10, 11})
_GOOGLE: Final = "google.protobuf."
_WRAPPERS: Final = frozenset(
    f"{_GOOGLE}{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_NANOSECONDS_PER_MICROSECOND: Final = 1_000
_MICROSECONDS_PER_SECOND: Final = 1_000_000


class ProtobufDecoder(msgspec.Struct, frozen=True):
    descriptor_set: bytes
    message: str
    is_framed: bool = False

    def columns(self) -> str:
        return _fields(_find(self.descriptor_set, self.message), ())

    def open(self) -> Callable[[bytes], dict[str, Any]]:
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        descriptor = _find(self.descriptor_set, self.message)
        make = GetMessageClass(descriptor)
        read = _reader(descriptor)

        def decode(value: bytes) -> dict[str, Any]:
            body = _without_index(without_frame(value)) if self.is_framed else value
            try:
                return read(make.FromString(body))
            except DecodeError as error:
                raise UnreadableError(f"no {self.message}: {error}") from error

        return decode


def _without_index(body: bytes) -> bytes:
    """Which message of its file it is: a count and numbers, each a zigzag varint; a single 0 is the first."""
    count, position = _varint(body, 0)
    for _ in range(count):
        _, position = _varint(body, position)
    return body[position:]


def _varint(body: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(body) and shift < 35:
        byte = body[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1, position
        shift += 7
    raise UnreadableError("the value ends before its message begins")


@lru_cache(maxsize=16)
def _find(descriptor_set: bytes, name: str) -> Descriptor:
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
    except DecodeError as error:
        raise SchemaError(f"no descriptor set (protoc --descriptor_set_out=… --include_imports): {error}") from error
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except TypeError as error:
        told = " ".join(str(error).split())
        raise SchemaError(f"the descriptor set is not whole (--include_imports?): {told}") from error
    except KeyError as error:
        known = sorted(f"{file.package}.{each.name}".strip(".") for file in files.file for each in file.message_type)
        told = ", ".join(each for each in known if not each.startswith(_GOOGLE)) or "none"
        raise SchemaError(f"the descriptor set has no message {name!r}; it has {told}") from error


# ------------------------------------------------------------------ types


def _fields(descriptor: Descriptor, inside: tuple[str, ...], separator: str = " ") -> str:
    if descriptor.full_name in inside:
        raise SchemaError(f"the message {descriptor.full_name!r} contains itself, which no columns can")
    here = (*inside, descriptor.full_name)
    return ", ".join(f"`{field.name}`{separator}{_type(field, here)}" for field in descriptor.fields)


def _type(field: FieldDescriptor, inside: tuple[str, ...]) -> str:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return f"map<{_single_type(entry['key'], inside)}, {_single_type(entry['value'], inside)}>"
    single = _single_type(field, inside)
    return f"array<{single}>" if field.is_repeated else single


def _single_type(field: FieldDescriptor, inside: tuple[str, ...]) -> str:
    if field.type not in _MESSAGE:
        return _TYPES[field.type]
    name = field.message_type.full_name
    if name == f"{_GOOGLE}Timestamp":
        return "timestamp"
    if name == f"{_GOOGLE}Duration":
        return "interval day to second"
    if name in _WRAPPERS:
        return _TYPES[field.message_type.fields_by_name["value"].type]
    return f"struct<{_fields(field.message_type, inside, ': ')}>"


def _is_map(field: FieldDescriptor) -> bool:
    return field.type in _MESSAGE and field.message_type.GetOptions().map_entry


# ------------------------------------------------------------------ values


def _reader(descriptor: Descriptor) -> Callable[[Message], dict[str, Any]]:
    getters = [(field.name, _getter(field)) for field in descriptor.fields]

    def read(message: Message) -> dict[str, Any]:
        return {name: get(message) for name, get in getters}

    return read


def _getter(field: FieldDescriptor) -> Callable[[Message], Any]:
    name = field.name
    if _is_map(field):
        values = field.message_type.fields_by_name["value"]
        convert = _converter(values)
        # By key: iterating over a map of messages hands out its keys alone.
        return lambda message: [(key, convert(getattr(message, name)[key])) for key in sorted(getattr(message, name))]
    convert = _converter(field)
    if field.is_repeated:
        return lambda message: [convert(value) for value in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _converter(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.type == _ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        # A number that this schema does not know yet is kept as it is.
        return lambda number: names.get(number, str(number))
    if field.type in _UNSIGNED_LONG:
        from decimal import Decimal

        return Decimal
    if field.type not in _MESSAGE:
        return lambda value: value
    kind = field.message_type.full_name
    if kind in (f"{_GOOGLE}Timestamp", f"{_GOOGLE}Duration"):
        return _microseconds
    if kind in _WRAPPERS:
        inner = _converter(field.message_type.fields_by_name["value"])
        return lambda wrapper: inner(wrapper.value)
    return _reader(field.message_type)


def _microseconds(value: Any) -> int:
    """Arrow takes them for a timestamp and a duration alike."""
    return int(value.seconds) * _MICROSECONDS_PER_SECOND + int(value.nanos) // _NANOSECONDS_PER_MICROSECOND
