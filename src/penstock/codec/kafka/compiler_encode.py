"""Turns a message's declaration into one straight-line function that encodes one version of it.

The function appends `pieces` that are joined once at the end: measured, that takes half the time of growing a
bytearray. Records are not joined: they go into `parts` as they are, between the joined pieces before and
after them, so that a fetched range is never copied on its way to the socket.

A value that does not fit its field (a number too large, a null where none is allowed) is our own mistake, not
a peer's, and raises.

The same text makes a generator that yields every `STEP_ELEMENTS`, for replies that may be long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, Final, cast

from penstock.codec.kafka import primitives
from penstock.codec.kafka.schema import (
    Array,
    Blob,
    BytesLike,
    Field,
    Message,
    Nested,
    Scalar,
    Text,
    plain_fields,
    tagged_fields,
)
from penstock.codec.kafka.source_text import SourceText

# (message, pieces not yet joined, parts that are done)
Encoder = Callable[[Any, list[bytes], list[BytesLike]], None]
StepEncoder = Callable[[Any, list[bytes], list[BytesLike]], Generator[None, None, None]]

# Elements between two yields: some hundred microseconds, so that whoever looks at the clock then is never far off.
STEP_ELEMENTS: Final = 100


def compile_encoder(message_class: type[Message], version: int, *, is_flexible: bool) -> Encoder:
    source = encoder_source(message_class, version, is_flexible=is_flexible)
    return cast(Encoder, source.build(f"encode {message_class.__name__} v{version}"))


def compile_step_encoder(message_class: type[Message], version: int, *, is_flexible: bool) -> StepEncoder:
    source = encoder_source(message_class, version, is_flexible=is_flexible, in_steps=True)
    return cast(StepEncoder, source.build(f"encode {message_class.__name__} v{version} in steps"))


def encoder_source(
    message_class: type[Message], version: int, *, is_flexible: bool, in_steps: bool = False
) -> SourceText:
    writer = _EncoderWriter(version, is_flexible=is_flexible, in_steps=in_steps)
    with writer.source.block("def run(message, pieces, parts):"):
        if in_steps:
            writer.source.begin_steps(STEP_ELEMENTS)
        writer.source.line("write = pieces.append")
        writer.write_message(message_class, "message")
    return writer.source


class _EncoderWriter:
    def __init__(self, version: int, *, is_flexible: bool, in_steps: bool) -> None:
        self._version = version
        self._is_flexible = is_flexible
        self._in_steps = in_steps
        # The name of the function that takes the next piece: a tagged field's pieces are collected apart.
        self._write = "write"
        self.source = SourceText(
            {
                "join": b"".join,
                "pack": struct.pack,
                "write_varint": primitives.write_varint,
                "VARINTS": primitives.VARINTS,
            }
        )

    def write_message(self, message_class: type[Message], owner: str) -> None:
        """Writes every field of the message in the variable `owner`."""
        for field in plain_fields(message_class, self._version):
            self._write_field(field, f"{owner}.{field.name}")
        if self._is_flexible:
            fields = tagged_fields(message_class, self._version)
            if fields:
                self._write_tags(fields, owner)
            else:
                self.source.want("x", "")
        self._flush()

    def _write_field(self, field: Field, value: str) -> None:
        is_nullable = self._version in field.nullable
        if isinstance(field.kind, Scalar):
            self.source.want(field.kind.format, value)
            return
        name = self.source.name(field.name)
        match field.kind:
            case Text():
                self._write_sized(name, value, "h", is_nullable, encoded=".encode()")
            case Blob(is_records):
                if is_records:
                    self._write_records(name, value, is_nullable)
                else:
                    self._write_sized(name, value, "i", is_nullable)
            case Nested(message_class):
                self._write_nested(name, value, message_class, is_nullable)
            case Array(element):
                self._write_array(name, value, element, is_nullable)

    def _write_sized(
        self, name: str, value: str, length_character: str, is_nullable: bool, *, encoded: str = ""
    ) -> None:
        """A string or bytes; `encoded` is what turns the one into the other."""
        source = self.source
        pending = source.run.copy()
        source.run.clear()
        source.line(f"{name} = {value}")
        if is_nullable:
            with source.block(f"if {name} is None:"):
                source.line(f"{name} = b''")
                source.line(f"{name}_length = -1")
            with source.block("else:"):
                self._measure(name, encoded)
        else:
            self._measure(name, encoded)
        source.run.extend(pending)
        self._write_length(f"{name}_length", length_character)
        source.line(f"{self._write}({name})")

    def _measure(self, name: str, encoded: str) -> None:
        if encoded:
            self.source.line(f"{name} = {name}{encoded}")
        self.source.line(f"{name}_length = len({name})")

    def _write_length(self, length: str, character: str) -> None:
        """A length or count, -1 for null, behind what the run holds. Ends the run."""
        source = self.source
        if not self._is_flexible:
            source.want(character, length)
            self._flush()
            return
        self._flush()
        source.line(f"{self._write}(VARINTS[{length} + 1] if {length} < 127 else write_varint({length} + 1))")

    def _write_records(self, name: str, value: str, is_nullable: bool) -> None:
        source = self.source
        assert self._write == "write", "records behind a tag would have to be copied"
        self._flush()
        source.line(f"{name} = {value}")
        if is_nullable:
            with source.block(f"if {name} is None:"):
                source.line(f"{name} = ()")
                source.line(f"{name}_length = -1")
            opening = "elif"
        else:
            opening = "if"
        with source.block(f"{opening} type({name}) is list:"):
            source.line(f"{name}_length = sum(map(len, {name}))")
        with source.block("else:"):
            source.line(f"{name}_length = len({name})")
            source.line(f"{name} = ({name},)")
        self._write_length(f"{name}_length", "i")
        with source.block(f"if {name}_length > 0:"):
            source.line("parts.append(join(pieces))")
            source.line("pieces.clear()")
            source.line(f"parts.extend({name})")

    def _write_nested(self, name: str, value: str, message_class: type[Message], is_nullable: bool) -> None:
        source = self.source
        self._flush()
        source.line(f"{name} = {value}")
        if not is_nullable:
            self.write_message(message_class, name)
            return
        with source.block(f"if {name} is None:"):
            source.line(f"{self._write}(b'\\xff')")
        with source.block("else:"):
            source.line(f"{self._write}(b'\\x01')")
            self.write_message(message_class, name)

    def _write_array(self, name: str, value: str, element: Scalar | Text | Blob | Nested, is_nullable: bool) -> None:
        source = self.source
        pending = source.run.copy()
        source.run.clear()
        source.line(f"{name} = {value}")
        if is_nullable:
            with source.block(f"if {name} is None:"):
                source.line(f"{name} = ()")
                source.line(f"{name}_length = -1")
            with source.block("else:"):
                source.line(f"{name}_length = len({name})")
        else:
            source.line(f"{name}_length = len({name})")
        source.run.extend(pending)
        self._write_length(f"{name}_length", "i")
        self._write_elements(name, element)

    def _write_elements(self, name: str, element: Scalar | Text | Blob | Nested) -> None:
        source = self.source
        if isinstance(element, Scalar):
            if element.format == "16s":
                # `struct` has no repeat count for these.
                source.line(f"{self._write}(join({name}))")
                return
            with source.block(f"if {name}_length > 0:"):
                source.line(f"{self._write}(pack(f'>{{{name}_length}}{element.format}', *{name}))")
            return
        item = f"{name}_item"
        with source.block(f"for {item} in {name}:"):
            match element:
                case Text():
                    self._write_sized(f"{item}_value", item, "h", False, encoded=".encode()")
                case Blob():
                    self._write_sized(f"{item}_value", item, "i", False)
                case Nested(message_class):
                    self.write_message(message_class, item)
            if self._in_steps:
                source.step(STEP_ELEMENTS)

    def _write_tags(self, fields: list[Field], owner: str) -> None:
        """The tagged section: a zero byte unless some field differs from its default."""
        source = self.source
        self._flush()
        section = source.name("section")
        source.line(f"{section} = None")
        for field in fields:
            value = source.name(field.name)
            source.line(f"{value} = {owner}.{field.name}")
            with source.block(f"if {self._differs(field, value)}:"):
                with source.block(f"if {section} is None:"):
                    source.line(f"{section} = []")
                self._write_tag(field, value, section)
        with source.block(f"if {section} is None:"):
            source.line(f"{self._write}(b'\\0')")
        with source.block("else:"):
            source.line(f"{self._write}(write_varint(len({section})))")
            source.line(f"{self._write}(join({section}))")

    def _write_tag(self, field: Field, value: str, section: str) -> None:
        """One tagged field: its value is joined apart, because its size comes first."""
        source = self.source
        pieces, content = source.name("pieces"), source.name("content")
        outer = self._write
        self._write = source.name("write")
        source.line(f"{pieces} = []")
        source.line(f"{self._write} = {pieces}.append")
        self._write_field(field, value)
        self._flush()
        self._write = outer
        source.line(f"{content} = join({pieces})")
        tag = primitives.write_varint(field.tag)
        source.line(f"{section}.append({tag!r} + write_varint(len({content})) + {content})")

    def _differs(self, field: Field, value: str) -> str:
        if field.default is None:
            return f"{value} is not None"
        if isinstance(field.kind, Array):
            # Any sequence may be given, and an empty list does not equal an empty tuple.
            assert field.default == ()
            return f"{value} is None or len({value})" if self._version in field.nullable else f"len({value})"
        default = self.source.constant("default", field.default)
        return f"{value} is not {default} and {value} != {default}"

    def _flush(self) -> None:
        source = self.source
        if not source.run:
            return
        layout, values = source.take_run()
        if not values:
            source.line(f"{self._write}({bytes(layout.size)!r})")
            return
        packer = source.name("pack")
        source.namespace[packer] = layout.pack
        source.line(f"{self._write}({packer}({', '.join(values)}))")
