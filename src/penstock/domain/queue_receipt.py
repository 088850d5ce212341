"""Receipts and message ids, as opaque texts that any door can hand out and any node can read.

A receipt names a delivery of a message: topic id, partition, offset, the delivery's number, and a checksum of the
group, so that it is of no use at another queue of the same topic. A message id names the message's first place. Both
carry the topic's id, so that a topic made again under an old name knows none of them.
"""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final
from zlib import crc32

import msgspec

_RECEIPT: Final = struct.Struct(">BI16siqq")
_RECEIPT_MARK: Final = 0xD1
_MESSAGE: Final = struct.Struct(">B16siq")
_MESSAGE_MARK: Final = 0xD2


class Receipt(msgspec.Struct, frozen=True):
    group: str
    topic_id: bytes
    partition: int
    offset: int
    number: int


class MessageId(msgspec.Struct, frozen=True):
    topic_id: bytes
    partition: int
    offset: int


def write_receipt(receipt: Receipt) -> str:
    check = crc32(receipt.group.encode())
    return _to_text(
        _RECEIPT.pack(_RECEIPT_MARK, check, receipt.topic_id, receipt.partition, receipt.offset, receipt.number)
    )


def read_receipt(text: str, *, group: str) -> Receipt | None:
    """None: not one of ours, or of another group."""
    packed = _from_text(text, _RECEIPT.size)
    if packed is None or packed[0] != _RECEIPT_MARK:
        return None
    _mark, check, topic_id, partition, offset, number = _RECEIPT.unpack(packed)
    return Receipt(group, topic_id, partition, offset, number) if check == crc32(group.encode()) else None


def write_message_id(message_id: MessageId) -> str:
    return _to_text(_MESSAGE.pack(_MESSAGE_MARK, message_id.topic_id, message_id.partition, message_id.offset))


def read_message_id(text: str) -> MessageId | None:
    """None: not one of ours."""
    packed = _from_text(text, _MESSAGE.size)
    if packed is None or packed[0] != _MESSAGE_MARK:
        return None
    return MessageId(*_MESSAGE.unpack(packed)[1:])


def _to_text(packed: bytes) -> str:
    return urlsafe_b64encode(packed).decode().rstrip("=")


def _from_text(text: str, size: int) -> bytes | None:
    # Looked at before it is decoded: receipts come from anybody.
    if len(text) != (size * 8 + 5) // 6 or not text.isascii():
        return None
    try:
        packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return None
    # Other texts decode to the same bytes (their last bits are not used); only the one that we write is the name.
    return packed if len(packed) == size and _to_text(packed) == text else None
