"""SQS messages as records of a topic and back, so that Kafka clients and SQS clients see the same message.

    body                the value, as UTF-8
    attributes          headers of the same names; one header tells the types of those that are no strings
    message group id    the key
    deduplication id    a header, and so is what else belongs to the message

What a Kafka producer wrote is received like any other: a value that is no text comes as base64 and says so.
"""

from __future__ import annotations

import base64
import json
from typing import Final

from penstock.codec.batch.records import Record, StoredRecord
from penstock.codec.sqs.messages import AttributeValue, Blob
from penstock.domain.queue.deduplication import DEDUPLICATION_HEADER

TYPES_HEADER: Final = "penstock-sqs-types"
TRACE_HEADER: Final = "penstock-sqs-trace"
ENCODING_ATTRIBUTE: Final = "penstock-encoding"
_OWN_PREFIXES: Final = ("penstock-", "__dlq.errors.")
TRACE_ATTRIBUTE: Final = "AWSTraceHeader"


def to_record(
    body: str,
    attributes: dict[str, AttributeValue],
    *,
    now_ms: int,
    group: str | None,
    deduplication: str | None,
    trace: str | None,
) -> Record:
    headers: list[tuple[str, bytes | None]] = []
    types: dict[str, str] = {}
    for name, value in attributes.items():
        is_binary = value.data_type.partition(".")[0] == "Binary"
        data = bytes(value.binary_value or b"") if is_binary else (value.string_value or "").encode()
        headers.append((name, data))
        if value.data_type != "String":
            types[name] = value.data_type
    if types:
        headers.append((TYPES_HEADER, json.dumps(types, separators=(",", ":")).encode()))
    if deduplication is not None:
        headers.append((DEDUPLICATION_HEADER, deduplication.encode()))
    if trace is not None:
        headers.append((TRACE_HEADER, trace.encode()))
    return Record(
        value=body.encode(), key=None if group is None else group.encode(), timestamp_ms=now_ms, headers=tuple(headers)
    )


def body_of(record: StoredRecord) -> tuple[str, bool]:
    """The text, and whether it is the base64 of something that is none."""
    if record.value is None:
        return "", False
    try:
        return record.value.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(record.value).decode(), True


def attributes_of(record: StoredRecord, *, is_encoded: bool) -> dict[str, AttributeValue]:
    types = _types_of(record)
    found: dict[str, AttributeValue] = {}
    for name, value in record.headers:
        if name.startswith(_OWN_PREFIXES):
            continue
        data_type = types.get(name, "String")
        if data_type.partition(".")[0] == "Binary":
            found[name] = AttributeValue(data_type=data_type, binary_value=Blob(value or b""))
            continue
        try:
            found[name] = AttributeValue(data_type=data_type, string_value=(value or b"").decode())
        except UnicodeDecodeError:
            found[name] = AttributeValue(data_type="Binary", binary_value=Blob(value or b""))
    if is_encoded:
        found[ENCODING_ATTRIBUTE] = AttributeValue(data_type="String", string_value="base64")
    return found


def sequence_number(place: int) -> str:
    """AWS's have twenty digits, too."""
    return f"{place:020d}"


def header_text(record: StoredRecord, name: str) -> str | None:
    for known, value in record.headers:
        if known == name and value is not None:
            return value.decode(errors="replace")
    return None


def _types_of(record: StoredRecord) -> dict[str, str]:
    text = header_text(record, TYPES_HEADER)
    if text is None:
        return {}
    try:
        types = json.loads(text)
    except (ValueError, RecursionError):  # any Kafka producer can write this header
        return {}
    return {str(name): str(value) for name, value in types.items()} if isinstance(types, dict) else {}
