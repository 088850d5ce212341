"""The language in which the messages of Kafka's protocol are declared.

A message is a frozen struct; each field's type says how it travels, and markers say from which version on:

    class ProduceRequest(Request):
        api_key = 0
        valid_versions = "0-13"
        flexible_versions = "9+"

        transactional_id: Annotated[String | None, Versions("3+")] = None
        acks: Int16 = 0
        timeout_ms: Int32 = 0
        topic_data: Sequence[TopicProduceData] = ()

Rules:
- Every field has a default, which is what a reader sees in versions that lack the field.
- `| None` makes a field nullable in all its versions, `Nullable("5+")` in some of them.
- `Tagged(0, "12+")` puts the field into the tagged section of those versions; it is sent only if it differs
  from its default.
- A nested struct may be used by its own API's module only: its version is the version of the message around
  it.
- Nothing here is looked at until a message is first decoded or encoded: importing 80 messages must stay
  cheap.
"""

from __future__ import annotations

import re
import types
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

BytesLike: TypeAlias = bytes | bytearray | memoryview

NO_UUID: Final = bytes(16)
VERSION_NONE: Final = -1
NO_TAG: Final = -1
VERSION_LAST: Final = 0x7FFF
# Fields behind tags from here on are ours, and travel between nodes only. Kafka counts from 0 and has come to 3.
PRIVATE_TAGS_FROM: Final = 10_000


# --- How a value travels -----------------------------------------------------------------------------------


class Scalar(msgspec.Struct, frozen=True):
    """A value of fixed size, by its character in a `struct` format."""

    format: str
    size_bytes: int


class Text(msgspec.Struct, frozen=True):
    """UTF-8 behind its length."""


class Blob(msgspec.Struct, frozen=True):
    """Bytes behind their length; `is_records`: record batches, handed on as a view and never copied."""

    is_records: bool = False


class Nested(msgspec.Struct, frozen=True):
    message_class: type[Message]


class Array(msgspec.Struct, frozen=True):
    element: Scalar | Text | Blob | Nested


Kind: TypeAlias = Scalar | Text | Blob | Nested | Array

Bool = Annotated[bool, Scalar("?", 1)]
Int8 = Annotated[int, Scalar("b", 1)]
Int16 = Annotated[int, Scalar("h", 2)]
Uint16 = Annotated[int, Scalar("H", 2)]
Int32 = Annotated[int, Scalar("i", 4)]
Int64 = Annotated[int, Scalar("q", 8)]
Float64 = Annotated[float, Scalar("d", 8)]
# Sixteen raw bytes: a topic id is compared, stored and used as a key far more often than read by a person.
Uuid = Annotated[bytes, Scalar("16s", 16)]
String = Annotated[str, Text()]
Bytes = Annotated[bytes, Blob()]
Records = Annotated[BytesLike, Blob(is_records=True)]
# A view when decoded; a reply may also give the ranges it read, which are then sent one after another.
RecordsParts = Annotated[BytesLike | list[BytesLike], Blob(is_records=True)]


# --- Which versions ----------------------------------------------------------------------------------------


class VersionRange(msgspec.Struct, frozen=True):
    """The versions `first` to `last`, both included."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


NO_VERSIONS: Final = VersionRange(0, VERSION_NONE)
ALL_VERSIONS: Final = VersionRange(0, VERSION_LAST)


@cache
def version_range(text: str) -> VersionRange:
    """`"3+"`, `"0-12"`, `"4"` or `"none"`."""
    if text == "none":
        return NO_VERSIONS
    match = re.fullmatch(r"(\d+)(\+|-(\d+))?", text)
    assert match is not None, f"not a range of versions: {text!r}"
    first = int(match[1])
    if match[2] is None:
        return VersionRange(first, first)
    return VersionRange(first, VERSION_LAST if match[3] is None else int(match[3]))


class Versions(msgspec.Struct, frozen=True):
    """The versions that have the field. Unmarked: all."""

    text: str


class Nullable(msgspec.Struct, frozen=True):
    """The versions in which the field may be null. Unmarked, a field of type `| None` may be null in all."""

    text: str


class Tagged(msgspec.Struct, frozen=True):
    """The versions in which the field travels behind its tag, if at all; also its `Versions` if unmarked."""

    tag: int
    text: str


# --- Messages ----------------------------------------------------------------------------------------------


class Message(msgspec.Struct, frozen=True, gc=False):
    """A part of a message. Messages hold no cycles, so the collector need not look at them."""


class Body(Message, frozen=True, gc=False):
    """A whole request or response."""

    api_key: ClassVar[int]
    valid_versions: ClassVar[str]
    flexible_versions: ClassVar[str]


class Request(Body, frozen=True, gc=False):
    pass


class Response(Body, frozen=True, gc=False):
    pass


class Field(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    versions: VersionRange
    nullable: VersionRange
    tag: int
    tagged: VersionRange
    default: Any

    def is_plain(self, version: int) -> bool:
        """In this version the field stands in its place, not behind a tag."""
        return version in self.versions and version not in self.tagged

    def is_tagged(self, version: int) -> bool:
        return version in self.versions and version in self.tagged

    @property
    def is_private(self) -> bool:
        """Ours, in a message of Kafka's."""
        return self.tag >= PRIVATE_TAGS_FROM


@cache
def fields_of(message_class: type[Message]) -> tuple[Field, ...]:
    """The declaration, read once."""
    hints = get_type_hints(message_class, include_extras=True)
    return tuple(
        _read_field(declared.name, hints[declared.name], declared.default)
        for declared in msgspec.structs.fields(message_class)
    )


def plain_fields(message_class: type[Message], version: int) -> list[Field]:
    return [field for field in fields_of(message_class) if field.is_plain(version)]


def tagged_fields(message_class: type[Message], version: int) -> list[Field]:
    """In the order of their tags, which is the order on the wire."""
    found = [field for field in fields_of(message_class) if field.is_tagged(version)]
    return sorted(found, key=lambda field: field.tag)


def _read_field(name: str, hint: Any, default: Any) -> Field:
    assert default is not msgspec.NODEFAULT, f"field {name} has no default"
    markers: dict[type, Any] = {}
    if get_origin(hint) is Annotated:
        hint, *metadata = get_args(hint)
        for marker in metadata:
            if isinstance(marker, Versions | Nullable | Tagged):
                markers[type(marker)] = marker
            else:
                # `Annotated` flattens: a scalar's own marker arrives beside ours.
                hint = Annotated[hint, marker]
    hint, is_optional = _strip_none(hint)
    tagged = _marked(markers, Tagged, unmarked=NO_VERSIONS)
    return Field(
        name=name,
        kind=_read_kind(hint),
        versions=_marked(markers, Versions, unmarked=tagged if Tagged in markers else ALL_VERSIONS),
        nullable=_marked(markers, Nullable, unmarked=ALL_VERSIONS) if is_optional else NO_VERSIONS,
        tag=markers[Tagged].tag if Tagged in markers else NO_TAG,
        tagged=tagged,
        default=default,
    )


def _marked(markers: dict[type, Any], marker: type, *, unmarked: VersionRange) -> VersionRange:
    return version_range(markers[marker].text) if marker in markers else unmarked


def _strip_none(hint: Any) -> tuple[Any, bool]:
    # A kind's own hint may be a union too (`Records`), but it is wrapped in `Annotated` and not seen here.
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    members = [member for member in get_args(hint) if member is not type(None)]
    assert len(members) == 1, f"not a field's type: {hint}"
    return members[0], True


def _read_kind(hint: Any) -> Kind:
    if get_origin(hint) is Annotated:
        kind = get_args(hint)[1]
        assert isinstance(kind, Scalar | Text | Blob)
        return kind
    if get_origin(hint) is Sequence:
        element = _read_kind(get_args(hint)[0])
        assert not isinstance(element, Array), "Kafka has no arrays of arrays"
        return Array(element)
    assert isinstance(hint, type)
    assert issubclass(hint, Message), f"not a field's type: {hint}"
    return Nested(hint)
