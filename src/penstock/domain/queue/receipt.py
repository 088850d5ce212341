"""Receipts and message ids, as opaque texts that any door can hand out and any node can read.

A receipt names a delivery of a message: topic id, partition, offset, the delivery's number, and a checksum of the
group, so that it is of no use at another queue of the same topic. A message id names the message's first place. Both
carry the topic's id, so that a topic made again under an old name knows none of them.
"""

from __future__ import annotations

import binascii
import struct
from functools import lru_cache
from typing import Final
from zlib import crc32

import msgspec

_RECEIPT: Final = struct.Struct(">BI16siqq")
_RECEIPT_MARK: Final = 0xD1
_MESSAGE: Final = struct.Struct(">B16siq")
_MESSAGE_MARK: Final = 0xD2
_SCHEDULED_MARK: Final = 0xD3
# What the receipts of a partition share fills whole groups of three bytes but for one byte, what its message ids share
# fills them exactly: as text it is the same for all of them.
_RECEIPT_HEAD_BYTES: Final = 24
_RECEIPT_HEAD_CHARACTERS: Final = 32
_RECEIPT_TAIL: Final = struct.Struct(">Bqq")
_RECEIPT_TAIL_CHARACTERS: Final = 23
_MESSAGE_HEAD: Final = struct.Struct(">B16si")
_OFFSET: Final = struct.Struct(">q")
_OFFSET_CHARACTERS: Final = 11
# Queues whose receipts are written or read at one time; more cost a little more.
_QUEUES_REMEMBERED: Final = 1_024
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


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


class ReceiptWriter:
    """The receipts and message ids of one delivery: a hundred of them for little more than the price of ten."""

    __slots__ = ("_message_head", "_number", "_partition_byte", "_receipt_head")

    def __init__(self, group: str, topic_id: bytes, partition: int, number: int) -> None:
        self._receipt_head, self._message_head = _heads(group, topic_id, partition)
        self._partition_byte = partition & 0xFF
        self._number = number

    def receipt(self, offset: int) -> str:
        return self._receipt_head + _tail_of(_RECEIPT_TAIL.pack(self._partition_byte, offset, self._number)).decode()

    def message_id(self, offset: int) -> str:
        text = binascii.b2a_base64(_OFFSET.pack(offset), newline=False).translate(_TO_URL)
        return self._message_head + text[:_OFFSET_CHARACTERS].decode()


@lru_cache(_QUEUES_REMEMBERED)
def _heads(group: str, topic_id: bytes, partition: int) -> tuple[str, str]:
    """What the receipts and the message ids of a partition's queue begin with."""
    packed = _RECEIPT.pack(_RECEIPT_MARK, crc32(group.encode()), topic_id, partition, 0, 0)
    return _to_text(packed[:_RECEIPT_HEAD_BYTES]), _to_text(_MESSAGE_HEAD.pack(_MESSAGE_MARK, topic_id, partition))


class ReceiptReader:
    """Many receipts of one group: what one shares with the one before it is not read again."""

    __slots__ = ("_first", "_group", "_head", "_partition_byte")

    def __init__(self, group: str) -> None:
        self._group = group
        self._head = ""
        self._partition_byte = 0
        self._first: Receipt | None = None

    def read(self, text: str) -> Receipt | None:
        """As `read_receipt`."""
        first = self._first
        if first is None or not text.startswith(self._head):
            return self._read_whole(text)
        tail = text[_RECEIPT_HEAD_CHARACTERS:].encode(errors="replace")
        try:
            packed = binascii.a2b_base64(tail.translate(_FROM_URL) + b"=")
        except binascii.Error:
            return None
        # Only the text that we write is the name: whatever else decodes to the same bytes is not.
        if len(packed) != _RECEIPT_TAIL.size or _tail_of(packed) != tail:
            return None
        partition_byte, offset, number = _RECEIPT_TAIL.unpack(packed)
        if partition_byte != self._partition_byte:
            return self._read_whole(text)
        return Receipt(self._group, first.topic_id, first.partition, offset, number)

    def _read_whole(self, text: str) -> Receipt | None:
        receipt = read_receipt(text, group=self._group)
        if receipt is not None:
            self._first = receipt
            self._head = text[:_RECEIPT_HEAD_CHARACTERS]
            self._partition_byte = receipt.partition & 0xFF
        return receipt


@lru_cache(_QUEUES_REMEMBERED)
def receipt_reader(group: str) -> ReceiptReader:
    """For one request after the other: nearly all receipts of a group begin as the one before them did."""
    return ReceiptReader(group)


def _tail_of(packed: bytes) -> bytes:
    return binascii.b2a_base64(packed, newline=False).translate(_TO_URL)[:_RECEIPT_TAIL_CHARACTERS]


def write_scheduled_id(message_id: MessageId) -> str:
    """Of a message that was delayed: its first place is an offset of the schedule's log, not of the topic's."""
    return _to_text(_MESSAGE.pack(_SCHEDULED_MARK, message_id.topic_id, message_id.partition, message_id.offset))


class ScheduledIdWriter:
    """The same for many messages of a partition."""

    __slots__ = ("_head",)

    def __init__(self, topic_id: bytes, partition: int) -> None:
        self._head = _to_text(_MESSAGE_HEAD.pack(_SCHEDULED_MARK, topic_id, partition))

    def write(self, origin: int) -> str:
        text = binascii.b2a_base64(_OFFSET.pack(origin), newline=False).translate(_TO_URL)
        return self._head + text[:_OFFSET_CHARACTERS].decode()


def read_scheduled_id(text: str) -> MessageId | None:
    """None: not one of ours, or of a message that was not delayed."""
    packed = _from_text(text, _MESSAGE.size)
    if packed is None or packed[0] != _SCHEDULED_MARK:
        return None
    return MessageId(*_MESSAGE.unpack(packed)[1:])


def _to_text(packed: bytes) -> str:
    return binascii.b2a_base64(packed, newline=False).translate(_TO_URL).rstrip(b"=").decode()


def _from_text(text: str, size: int) -> bytes | None:
    # Looked at before it is decoded: receipts come from anybody.
    if len(text) != (size * 8 + 5) // 6 or not text.isascii():
        return None
    try:
        packed = binascii.a2b_base64((text + "=" * (-len(text) % 4)).encode().translate(_FROM_URL))
    except binascii.Error:
        return None
    # Other texts decode to the same bytes (their last bits are not used); only the one that we write is the name.
    return packed if len(packed) == size and _to_text(packed) == text else None
