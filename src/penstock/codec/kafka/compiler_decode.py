"""Turns a message's declaration into one straight-line function that decodes one version of it.

The whole message, nested parts included, becomes a single function over local variables: a call per nested
part would cost more than reading it. A run of fixed-size fields, together with the length that follows it, is
one `unpack_from`.

Why hostile bytes can do no harm:
- `position` only grows. A slice past the end comes out short instead of failing, so strings are not checked
  one by one: the function ends by comparing `position` with the end of the frame, and a message that overran
  is refused.
- A count is compared with the bytes that remain before anything is read or reserved, so time and memory are
  bounded by the frame. Since an element of three bytes becomes an object of sixty, the elements of a request
  are also counted over all its arrays, up to what `bounds` says of its API, before any of them is read.
- Every read past the end that is not a slice raises, and `decode` turns that into a `Malformed`.

The same text makes a generator that yields every `STEP_ELEMENTS`: for requests of which the whole would take too long
at once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator
from typing import Any, Final, cast

from penstock.codec.kafka import primitives
from penstock.codec.kafka.bounds import BOUNDS
from penstock.codec.kafka.schema import (
    Array,
    Blob,
    BytesLike,
    Field,
    Message,
    Nested,
    Request,
    Scalar,
    Text,
    plain_fields,
    tagged_fields,
)
from penstock.codec.kafka.schema import fields_of as all_fields
from penstock.codec.kafka.source_text import SourceText

# Responses come from a broker that the client chose: the frame alone bounds them.
RESPONSE_ELEMENTS_MAX: Final = 1 << 31
# Elements between two yields: some hundred microseconds, so that whoever looks at the clock then is never far off.
STEP_ELEMENTS: Final = 100

Decoder = Callable[[BytesLike, int], Any]
StepDecoder = Callable[[BytesLike, int], Generator[None, None, Any]]


def compile_decoder(message_class: type[Message], version: int, *, is_flexible: bool) -> Decoder:
    source = decoder_source(message_class, version, is_flexible=is_flexible)
    return cast(Decoder, source.build(f"decode {message_class.__name__} v{version}"))


def compile_step_decoder(message_class: type[Message], version: int, *, is_flexible: bool) -> StepDecoder:
    source = decoder_source(message_class, version, is_flexible=is_flexible, in_steps=True)
    return cast(StepDecoder, source.build(f"decode {message_class.__name__} v{version} in steps"))


def decoder_source(
    message_class: type[Message], version: int, *, is_flexible: bool, in_steps: bool = False
) -> SourceText:
    elements_max = RESPONSE_ELEMENTS_MAX
    if issubclass(message_class, Request):
        elements_max = BOUNDS[message_class.api_key].elements_max
    writer = _DecoderWriter(version, is_flexible=is_flexible, elements_max=elements_max, in_steps=in_steps)
    source = writer.source
    with source.block("def run(data, position):"):
        if in_steps:
            source.begin_steps(STEP_ELEMENTS)
        source.line("end = len(data)")
        source.line("elements = 0")
        result = writer.read_message(message_class)
        # Kafka reads what it needs of a request and overlooks what stands behind it, and clients rely on that:
        # librdkafka leaves three bytes behind Metadata and an empty section behind AlterUserScramCredentials,
        # segmentio/kafka-go one byte behind DescribeAcls. Responses are for our own client, and end where they end.
        has_loose_end = issubclass(message_class, Request)
        with source.block("if position > end:" if has_loose_end else "if position != end:"):
            source.line("refuse_end(position, end)")
        source.line(f"return {result}")
    return source


def bytes_min(kind: Scalar | Text | Blob | Nested, version: int, *, is_flexible: bool) -> int:
    """The fewest bytes that a value can take: what bounds an array's length by what remains of the frame."""
    if isinstance(kind, Scalar):
        return kind.size_bytes
    if isinstance(kind, Text):
        return 1 if is_flexible else 2
    if isinstance(kind, Blob):
        return 1 if is_flexible else 4
    total = 1 if is_flexible else 0
    for field in plain_fields(kind.message_class, version):
        if isinstance(field.kind, Array):
            total += 1 if is_flexible else 4
        elif isinstance(field.kind, Nested) and version in field.nullable:
            total += 1
        else:
            total += bytes_min(field.kind, version, is_flexible=is_flexible)
    # A part without fields would make an array of any length fit into nothing.
    return max(total, 1)


def _label(target: str) -> str:
    """The field's own name, for a message to people."""
    return target.rstrip("0123456789").rstrip("_")


class _DecoderWriter:
    def __init__(self, version: int, *, is_flexible: bool, elements_max: int, in_steps: bool) -> None:
        self._version = version
        self._is_flexible = is_flexible
        self._elements_max = elements_max
        self._in_steps = in_steps
        self.source = SourceText(
            {
                "check_tags": primitives.check_tags,
                "finish_varint": primitives.finish_varint,
                "read_tag": primitives.read_tag,
                "refuse_count": primitives.refuse_count,
                "refuse_elements": primitives.refuse_elements,
                "refuse_end": primitives.refuse_end,
                "refuse_length": primitives.refuse_length,
                "skip_tags": primitives.skip_tags,
                "unpack_from": struct.unpack_from,
            }
        )

    def read_message(self, message_class: type[Message]) -> str:
        """Writes the reading of every field; returns the expression that makes the message."""
        values: dict[str, str] = {}
        for field in plain_fields(message_class, self._version):
            values[field.name] = self._read_field(field)
        if self._is_flexible:
            self._read_tags(tagged_fields(message_class, self._version), values)
        self._flush()
        return self._construction(message_class, values)

    def _construction(self, message_class: type[Message], values: dict[str, str]) -> str:
        # Positional arguments are the fast way to make a struct; what is not read at the end is defaulted.
        arguments: list[str] = []
        count = 0
        for field in all_fields(message_class):
            if field.name in values:
                arguments.append(values[field.name])
                count = len(arguments)
            else:
                arguments.append(self.source.constant("default", field.default))
        make = self.source.constant(message_class.__name__, message_class)
        return f"{make}({', '.join(arguments[:count])})"

    def _read_field(self, field: Field) -> str:
        target = self.source.name(field.name)
        is_nullable = self._version in field.nullable
        match field.kind:
            case Scalar(character, _):
                self.source.want(character, target)
            case Text():
                self._read_sized(target, "data[position:stop].tobytes().decode()", "h", is_nullable)
            case Blob(is_records):
                value = "data[position:stop]" if is_records else "data[position:stop].tobytes()"
                self._read_sized(target, value, "i", is_nullable)
            case Nested(message_class):
                return self._read_nested(target, message_class, is_nullable)
            case Array(element):
                self._read_array(target, element, is_nullable)
        return target

    def _read_sized(self, target: str, value: str, length_character: str, is_nullable: bool) -> None:
        """A string or bytes: `value` is the expression over `position` and `stop`."""
        source = self.source
        length = self._read_length(target, length_character)
        with source.block(f"if {length} >= 0:"):
            source.line(f"stop = position + {length}")
            source.line(f"{target} = {value}")
            source.line("position = stop")
        self._read_null(target, length, is_nullable)

    def _read_null(self, target: str, length: str, is_nullable: bool) -> None:
        source = self.source
        if is_nullable:
            with source.block(f"elif {length} == -1:"):
                source.line(f"{target} = None")
        with source.block("else:"):
            source.line(f"refuse_length({_label(target)!r}, {length})")

    def _read_length(self, target: str, character: str) -> str:
        """Writes the reading of a length or count; -1 is null. Ends the run."""
        length = f"{target}_length"
        source = self.source
        if not self._is_flexible:
            source.want(character, length)
            self._flush()
            return length
        # The first byte of a compact length joins the run; few lengths have a second one.
        source.want("B", length)
        self._flush()
        with source.block(f"if {length} > 127:"):
            source.line(f"{length}, position = finish_varint(data, position, {length})")
        source.line(f"{length} -= 1")
        return length

    def _read_nested(self, target: str, message_class: type[Message], is_nullable: bool) -> str:
        if not is_nullable:
            self._flush()
            self.source.line(f"{target} = {self.read_message(message_class)}")
            return target
        source = self.source
        source.want("b", f"{target}_mark")
        self._flush()
        with source.block(f"if {target}_mark < 0:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            source.line(f"{target} = {self.read_message(message_class)}")
        return target

    def _read_array(self, target: str, element: Scalar | Text | Blob | Nested, is_nullable: bool) -> None:
        source = self.source
        count = self._read_length(target, "i")
        element_bytes = bytes_min(element, self._version, is_flexible=self._is_flexible)
        with source.block(f"if {count} >= 0:"):
            with source.block(f"if {count} * {element_bytes} > end - position:"):
                source.line(f"refuse_count({count}, end - position)")
            self._count_elements(count)
            if isinstance(element, Scalar):
                self._read_scalars(target, element, count)
            else:
                self._read_elements(target, element, count)
        self._read_null(target, count, is_nullable)

    def _count_elements(self, count: str) -> None:
        source = self.source
        source.line(f"elements += {count}")
        with source.block(f"if elements > {self._elements_max}:"):
            source.line(f"refuse_elements({self._elements_max})")

    def _read_scalars(self, target: str, element: Scalar, count: str) -> None:
        source = self.source
        stop = f"position + {count} * {element.size_bytes}"
        if element.format == "16s":
            # `struct` has no repeat count for these.
            places = f"range(position, {stop}, 16)"
            source.line(f"{target} = tuple([data[place:place + 16].tobytes() for place in {places}])")
        else:
            source.line(f"{target} = unpack_from(f'>{{{count}}}{element.format}', data, position)")
        source.line(f"position = {stop}")

    def _read_elements(self, target: str, element: Text | Blob | Nested, count: str) -> None:
        source = self.source
        item = f"{target}_item"
        source.line(f"{target} = []")
        with source.block(f"for _ in range({count}):"):
            match element:
                case Text():
                    self._read_sized(item, "data[position:stop].tobytes().decode()", "h", False)
                case Blob():
                    self._read_sized(item, "data[position:stop].tobytes()", "i", False)
                case Nested(message_class):
                    item = self.read_message(message_class)
            source.line(f"{target}.append({item})")
            if self._in_steps:
                source.step(STEP_ELEMENTS)
        source.line(f"{target} = tuple({target})")

    def _read_tags(self, fields: list[Field], values: dict[str, str]) -> None:
        """A part's tagged section: mostly a single zero byte, which joins the run."""
        source = self.source
        count = source.name("tags")
        source.want("B", count)
        self._flush()
        if not fields:
            with source.block(f"if {count}:"):
                self._read_tag_count(count)
                source.line(f"position = skip_tags(data, position, {count})")
            return
        for field in fields:
            values[field.name] = source.name(field.name)
            source.line(f"{values[field.name]} = {source.constant('default', field.default)}")
        with source.block(f"if {count}:"):
            self._read_tag_count(count)
            source.line(f"check_tags({count})")
            tag, stop = source.name("tag"), source.name("tag_stop")
            source.line(f"{tag} = -1")
            with source.block(f"for _ in range({count}):"):
                source.line(f"{tag}, position, {stop} = read_tag(data, position, {tag})")
                self._read_known_tags(fields, values, tag, stop)

    def _read_tag_count(self, count: str) -> None:
        self.source.line(f"{count}, position = finish_varint(data, position, {count})")
        self._count_elements(count)

    def _read_known_tags(self, fields: list[Field], values: dict[str, str], tag: str, stop: str) -> None:
        source = self.source
        opening = "if"
        for field in fields:
            with source.block(f"{opening} {tag} == {field.tag}:"):
                value = self._read_field(field)
                self._flush()
                source.line(f"{values[field.name]} = {value}")
            opening = "elif"
        with source.block("else:"):
            source.line(f"position = {stop}")
        with source.block(f"if position != {stop}:"):
            source.line(f"refuse_end(position, {stop})")

    def _flush(self) -> None:
        source = self.source
        if not source.run:
            return
        layout, values = source.take_run()
        if layout.format == ">B":
            # A compact length on its own: indexing takes a third of the time of unpacking.
            source.line(f"{values[0]} = data[position]")
        else:
            unpack = source.name("unpack")
            source.namespace[unpack] = layout.unpack_from
            source.line(f"{', '.join(values)}, = {unpack}(data, position)")
        source.line(f"position += {layout.size}")
