"""A record as a line of output: plain, by template, or as a JSON object.

Everything is bytes: with the plain text format a value goes out exactly as it came in, whatever its encoding.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.codec.batch.records import Headers, StoredRecord

NULL: Final = b"null"

RowFormatter = Callable[[int, StoredRecord], bytes]
_Field = Callable[[int, StoredRecord], bytes]


class RowShape(msgspec.Struct, frozen=True):
    key_format: str = "text"
    value_format: str = "text"
    is_json: bool = False
    has_key: bool = False
    has_headers: bool = False
    template: str | None = None


def row_formatter(topic: str, shape: RowShape) -> RowFormatter:
    """Turns (partition, record) into a line, its end included."""
    if shape.is_json:
        return _json_formatter(topic, shape)
    if shape.template is not None:
        return _template_formatter(topic, shape, shape.template)
    if not shape.has_key and not shape.has_headers and shape.value_format == "text":
        return lambda _, record: NULL + b"\n" if record.value is None else record.value + b"\n"
    template = ("%h\t" if shape.has_headers else "") + ("%k\t" if shape.has_key else "") + "%v\n"
    return _template_formatter(topic, shape, template)


def render_bytes(data: bytes | None, form: str) -> bytes:
    """A key or value for people."""
    if data is None:
        return NULL
    match form:
        case "hex":
            return binascii.hexlify(data)
        case "base64":
            return base64.b64encode(data)
        case "json":
            return msgspec.json.encode(_as_json_value(data))
        case _:
            return data


def json_value(data: bytes | None, form: str) -> object:
    """A key or value inside a JSON object. Text that is not UTF-8 shows its odd bytes as `\\xNN`."""
    if data is None:
        return None
    if form == "json":
        return _as_json_value(data)
    return render_bytes(data, form).decode(errors="backslashreplace")


def _as_json_value(data: bytes) -> object:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode(errors="backslashreplace")
    # As it stands: a number of 30 digits must not lose some of them on the way through us.
    return msgspec.Raw(data)


def _json_formatter(topic: str, shape: RowShape) -> RowFormatter:
    encoder = msgspec.json.Encoder()

    def format_row(partition: int, record: StoredRecord) -> bytes:
        line = encoder.encode({
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "key": json_value(record.key, shape.key_format),
            "value": json_value(record.value, shape.value_format),
            # A list, not an object: a name may come twice.
            "headers": [[name, json_value(value, "text")] for name, value in record.headers],
        })  # fmt: skip
        return line.replace(b"\n", b" ") + b"\n"

    return format_row


def _template_formatter(topic: str, shape: RowShape, template: str) -> RowFormatter:
    fields = _parse_template(topic, shape, template)

    def format_row(partition: int, record: StoredRecord) -> bytes:
        return b"".join([field if isinstance(field, bytes) else field(partition, record) for field in fields])

    return format_row


def _parse_template(topic: str, shape: RowShape, template: str) -> list[bytes | _Field]:
    known: dict[str, bytes | _Field] = {
        "k": lambda _, record: render_bytes(record.key, shape.key_format),
        "v": lambda _, record: render_bytes(record.value, shape.value_format),
        "h": lambda _, record: _render_headers(record.headers),
        "o": lambda _, record: b"%d" % record.offset,
        "p": lambda partition, _: b"%d" % partition,
        "t": lambda _, record: b"%d" % record.timestamp_ms,
        "T": lambda _, record: iso_time(record.timestamp_ms).encode(),
        "n": topic.encode(),
        "%": b"%",
    }
    escapes = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
    if not template.endswith(("\n", "\\n", "\\0")):
        template += "\n"
    fields: list[bytes | _Field] = []
    characters = iter(template)
    for character in characters:
        if character == "%":
            name = next(characters, "")
            if name not in known:
                raise CommandError(f"--format: %{name} is unknown", exit_code=EXIT_USAGE)
            fields.append(known[name])
        elif character == "\\":
            name = next(characters, "\\")
            fields.append(escapes.get(name, f"\\{name}".encode()))
        else:
            fields.append(character.encode(errors="surrogateescape"))
    return fields


def _render_headers(headers: Headers) -> bytes:
    return b",".join(name.encode() + b"=" + (NULL if value is None else value) for name, value in headers)


def iso_time(timestamp_ms: int) -> str:
    """`2026-11-15T10:00:00.000Z`; a timestamp that no calendar holds stays a number."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
