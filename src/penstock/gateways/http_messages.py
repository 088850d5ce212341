"""The bodies of the HTTP door. Names are those of the Kafka and SQS worlds; times and sizes carry their units.

A value travels as text where it is text and as base64 where it is not; a key likewise. To publish, `value` may be any
JSON: what is no text is stored as it is written.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from penstock.codec.records import Record
from penstock.gateways.http_problem import bad_request

COUNT_MAX: Final = 10_000
WAIT_MS_MAX: Final = 60_000
LEASE_MS_MAX: Final = 12 * 3_600_000
TTL_MS_MAX: Final = 10 * 365 * 86_400_000
PRIORITY_HEADER: Final = "penstock-priority"
TTL_HEADER: Final = "penstock-ttl-ms"

# The end of the year 9999.
MOMENT_MS_MAX: Final = 253_402_300_799_999
# Far more than anybody means, and exact in every JSON reader.
NUMBER_MAX: Final = (1 << 53) - 1
# How a receipt looks; only what does can be one of somebody else's.
RECEIPT_TEXT: Final = "^[A-Za-z0-9_-]{55}$"
TOPIC_TEXT: Final = "^[A-Za-z0-9._-]+$"
_BASE64_TEXT: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
LeaseMs = Annotated[int, Meta(ge=1, le=LEASE_MS_MAX)]
MomentMs = Annotated[int, Meta(ge=0, le=MOMENT_MS_MAX)]
# Patterns that are only told, because the code that reads these checks them anyway.
ReceiptText = Annotated[str, Meta(extra_json_schema={"pattern": RECEIPT_TEXT})]
Base64 = Annotated[str, Meta(extra_json_schema={"pattern": _BASE64_TEXT, "contentEncoding": "base64"})]
Receipts = Annotated[list[ReceiptText], Meta(min_length=1, max_length=COUNT_MAX)]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A misspelt field is an error, not a silence."""


class NewMessage(Body, frozen=True):
    """Text, or any other JSON, or bytes as base64. Without a value: a tombstone."""

    value: Any = None
    value_base64: Base64 | None = None
    key: str | None = None
    key_base64: Base64 | None = None
    headers: dict[str, str] = {}
    # 0 to 9, the highest first; 4 is that of messages that say nothing.
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    # Not delivered by queues after so long.
    ttl_ms: Annotated[int, Meta(ge=1, le=TTL_MS_MAX)] | None = None
    partition: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | None = None
    timestamp_ms: MomentMs | None = None


class PublishRequest(Body, frozen=True):
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=COUNT_MAX)]


class PublishedMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str = ""
    partition: int = -1
    offset: int = -1
    # Why this one was refused; the others are stored.
    error: str | None = None


class PublishReply(msgspec.Struct, frozen=True):
    messages: list[PublishedMessage]


class ReceiveRequest(Body, frozen=True):
    count: Count = 1
    # How long to wait for the first message.
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0
    # How long the messages are ours; the queue's own setting if it is left out.
    lease_ms: LeaseMs | None = None
    consumer: Annotated[str, Meta(max_length=255)] = "http"


class DeliveredMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    receipt: str
    partition: int
    offset: int
    timestamp_ms: int
    delivery_count: int
    lease_until_ms: int
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] = {}


class ReceiveReply(msgspec.Struct, frozen=True, omit_defaults=True):
    messages: list[DeliveredMessage]
    # Why there are not more: paused, queue-full, consumer-full, keys-full.
    limit: str = "none"


class AckRequest(Body, frozen=True):
    receipts: Receipts


class NackRequest(Body, frozen=True):
    receipts: Receipts
    # When it may be delivered again; left out: as the queue's back-off says.
    delay_ms: Annotated[int, Meta(ge=0, le=LEASE_MS_MAX)] | None = None
    # Not again: to the dead letters.
    reject: bool = False
    # Why, for whoever reads the dead letter.
    error: Annotated[str, Meta(max_length=1024)] = ""


class ExtendRequest(Body, frozen=True):
    receipts: Receipts
    # From now on.
    lease_ms: LeaseMs | None = None


class SettledReceipt(msgspec.Struct, frozen=True, omit_defaults=True):
    receipt: str
    # not-held: the lease ran out and somebody else has it. finished: it was settled before.
    outcome: Literal["done", "not-held", "finished", "failed"]
    error: str | None = None


class SettleReply(msgspec.Struct, frozen=True):
    results: list[SettledReceipt]


class SeenMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    partition: int
    offset: int
    timestamp_ms: int
    state: Literal["ready", "leased", "waiting", "blocked", "dying"]
    delivery_count: int = 0
    consumer: str = ""
    until_ms: int = 0
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] = {}


class PeekReply(msgspec.Struct, frozen=True):
    messages: list[SeenMessage]


def record_of(message: NewMessage, now_ms: int) -> Record:
    headers: list[tuple[str, bytes | None]] = [(name, text.encode()) for name, text in message.headers.items()]
    if message.priority is not None:
        headers.append((PRIORITY_HEADER, str(message.priority).encode()))
    if message.ttl_ms is not None:
        headers.append((TTL_HEADER, str(message.ttl_ms).encode()))
    return Record(
        value=_value_of(message),
        key=_bytes_of("key", message.key, message.key_base64),
        timestamp_ms=now_ms if message.timestamp_ms is None else message.timestamp_ms,
        headers=tuple(headers),
    )


def _value_of(message: NewMessage) -> bytes | None:
    if message.value_base64 is not None or message.value is None or isinstance(message.value, str):
        return _bytes_of("value", message.value, message.value_base64)
    return msgspec.json.encode(message.value)


def _bytes_of(what: str, text: str | None, encoded: str | None) -> bytes | None:
    if encoded is None:
        return None if text is None else text.encode()
    if text is not None:
        raise bad_request(f"{what} and {what}_base64 are both there: one of them is meant")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"{what}_base64 is not base64") from None


def text_or_base64(data: bytes | None) -> tuple[str | None, str | None]:
    """As the two fields of a body: text where it is text, else base64, neither for nothing."""
    if data is None:
        return None, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def readable_headers(headers: tuple[tuple[str, bytes | None], ...]) -> dict[str, str]:
    """The last of a name counts, as for everybody who asks for one. Bytes that are no text are shown as they can be."""
    return {name: (value or b"").decode(errors="backslashreplace") for name, value in headers}
