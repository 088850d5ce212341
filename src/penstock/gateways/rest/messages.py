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

from penstock.broker.publisher import Outgoing
from penstock.codec.batch.records import Record
from penstock.codec.http.fields import COUNT_MAX, NUMBER_MAX, Base64, Body, MomentMs
from penstock.codec.http.schedules import CronRequest, DelayMs, Moment, due_ms_of
from penstock.domain.schedule.headers import BadDelivery, due_of
from penstock.gateways.http.problem import bad_request

WAIT_MS_MAX: Final = 60_000
LEASE_MS_MAX: Final = 12 * 3_600_000
TTL_MS_MAX: Final = 10 * 365 * 86_400_000
PRIORITY_HEADER: Final = "penstock-priority"
TTL_HEADER: Final = "penstock-ttl-ms"

# How a receipt looks; only what does can be one of somebody else's.
RECEIPT_TEXT: Final = "^[A-Za-z0-9_-]{55}$"

Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)]
LeaseMs = Annotated[int, Meta(ge=1, le=LEASE_MS_MAX)]
# A pattern that is only told, because the code that reads it checks it anyway.
ReceiptText = Annotated[str, Meta(extra_json_schema={"pattern": RECEIPT_TEXT})]
Receipts = Annotated[list[ReceiptText], Meta(min_length=1, max_length=COUNT_MAX)]


class NewMessage(Body, frozen=True):
    """Text, or any other JSON, or bytes as base64. Without a value: a tombstone."""

    value: Any = None
    value_base64: Base64 | None = None
    key: str | None = None
    key_base64: Base64 | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    # 0 to 9, the highest first; 4 is that of messages that say nothing.
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    # Not delivered by queues after so long.
    ttl_ms: Annotated[int, Meta(ge=1, le=TTL_MS_MAX)] | None = None
    # Not before so long from now, or that time; with both the later.
    delay_ms: DelayMs | None = None
    deliver_at: Moment | None = None
    partition: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | None = None
    timestamp_ms: MomentMs | None = None


class PublishRequest(Body, frozen=True):
    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=COUNT_MAX)]


class PublishedMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str = ""
    partition: int = -1
    # Of a message that is delayed there is none yet,
    offset: int = -1
    # but the time when it will be there.
    due_ms: int | None = None
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


def outgoing_of(message: NewMessage, now_ms: int, *, has_delivery_headers: bool) -> Outgoing:
    """`has_delivery_headers`: the topic's producers may delay messages by headers. By fields everybody can."""
    record = _record_of(message, now_ms)
    due_ms = due_ms_of(now_ms, message.delay_ms, message.deliver_at) or 0
    if has_delivery_headers and record.headers:
        told = due_of(record.headers, now_ms)
        if isinstance(told, BadDelivery):
            raise bad_request(f"header {told.header}: {told.detail}")
        due_ms = max(due_ms, told or 0)
    return Outgoing(record, message.partition, due_ms if due_ms > now_ms else None)


def _record_of(message: NewMessage, now_ms: int) -> Record:
    headers: list[tuple[str, bytes | None]] = [(name, text.encode()) for name, text in message.headers.items()]
    if message.priority is not None:
        headers.append((PRIORITY_HEADER, str(message.priority).encode()))
    if message.ttl_ms is not None:
        headers.append((TTL_HEADER, str(message.ttl_ms).encode()))
    return Record(
        value=value_of(message),
        key=key_of(message),
        timestamp_ms=now_ms if message.timestamp_ms is None else message.timestamp_ms,
        headers=tuple(headers),
    )


def value_of(message: NewMessage | CronRequest) -> bytes | None:
    if message.value_base64 is not None or message.value is None or isinstance(message.value, str):
        return _bytes_of("value", message.value, message.value_base64)
    try:
        return msgspec.json.encode(message.value)
    except RecursionError:
        # What could just be read may be too deep to be written, where the stack is a little higher.
        raise bad_request("the body cannot be used: value is nested too deeply") from None


def key_of(message: NewMessage | CronRequest) -> bytes | None:
    return _bytes_of("key", message.key, message.key_base64)


def _bytes_of(what: str, text: str | None, encoded: str | None) -> bytes | None:
    if encoded is None:
        return None if text is None else text.encode()
    if text is not None:
        raise bad_request(f"{what} and {what}_base64 are both there: one of them is meant")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"{what}_base64 is not base64") from None
