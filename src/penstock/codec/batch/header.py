"""The header of a record batch v2, seen in place.

A batch is the unit of everything on the log path: it is checked, patched, stored, indexed and sent as it came. Its
records are looked at once, when a client's batch is taken (`check`). On disk and on the wire it is the same
bytes:

     0  base offset         int64   ours: patched at append, outside the checksum
     8  length              int32   of what follows
    12  leader epoch        int32   ours: patched at append, outside the checksum
    16  magic               int8    2
    17  checksum            uint32  CRC-32C of byte 21 to the end
    21  attributes          int16   bits 0-2 codec, 3 log-append time, 4 transactional, 5 control, 6 delete horizon
    23  last offset delta   int32
    27  base timestamp      int64
    35  max timestamp       int64
    43  producer id         int64   -1: not idempotent
    51  producer epoch      int16
    53  base sequence       int32
    57  record count        int32
    61  records

Offsets inside a stored batch may have holes (compaction, delayed records): `record_count` counts records,
`last_offset_delta + 1` counts offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.base.checksum import crc32c

HEADER_BYTES: Final = 61
# Bytes that stand before what `length` counts.
LENGTH_PREFIX_BYTES: Final = 12
CHECKSUM_START: Final = 21
_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES

MAGIC: Final = 2
ATTRIBUTE_CODEC_MASK: Final = 0b111
ATTRIBUTE_LOG_APPEND_TIME: Final = 0b1000
ATTRIBUTE_TRANSACTIONAL: Final = 0b1_0000
ATTRIBUTE_CONTROL: Final = 0b10_0000
ATTRIBUTE_DELETE_HORIZON: Final = 0b100_0000
# Set by whoever stores a batch, never by who sends it: the checksum is another one then.
_ATTRIBUTES_OF_STORED: Final = ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_DELETE_HORIZON

NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
# Base offset, then the length as it is, then the leader epoch.
_PLACE = struct.Struct(">qii")
_CHECKSUM = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
assert _HEADER.size == HEADER_BYTES

BatchBytes = bytes | bytearray | memoryview


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & ATTRIBUTE_CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def has_log_append_time(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_LOG_APPEND_TIME)

    @property
    def checksum_as_sent(self) -> int | None:
        """None: the batch was dated here, or records were left out of it."""
        is_changed = self.attributes & _ATTRIBUTES_OF_STORED or self.record_count <= self.last_offset_delta
        return None if is_changed else self.checksum

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id >= 0


class BatchProblem(msgspec.Struct, frozen=True):
    """Why some bytes are not a batch that may be stored or served."""

    reason: str
    # The bytes end before the batch does: at the end of a log this is a torn write, elsewhere it is damage.
    is_truncated: bool = False


def read_header(data: BatchBytes, position: int = 0) -> BatchHeader | BatchProblem:
    """Structure only: what is returned can be stepped over, but its checksum was not looked at."""
    if len(data) - position < HEADER_BYTES:
        return BatchProblem(f"{len(data) - position} bytes are less than a batch header", is_truncated=True)
    header = BatchHeader(*_HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        return BatchProblem(f"magic is {header.magic}, expected {MAGIC}")
    if header.length < _LENGTH_MIN:
        return BatchProblem(f"length {header.length} is less than a header needs")
    if header.last_offset_delta < 0 or header.record_count < 0:
        return BatchProblem(f"last offset delta {header.last_offset_delta}, record count {header.record_count}")
    return header


def check_batch(data: BatchBytes, position: int = 0) -> BatchHeader | BatchProblem:
    """Structure and checksum: what is returned is what its producer sent."""
    view = data if type(data) is memoryview else memoryview(data)
    available = len(view) - position
    # One test and no call for the batch that is as it should be: every produced batch passes here.
    if available >= HEADER_BYTES:
        fields = _HEADER.unpack_from(view, position)
        length = fields[1]
        if (
            _LENGTH_MIN <= length <= available - LENGTH_PREFIX_BYTES
            and fields[3] == MAGIC
            and fields[6] >= 0
            and fields[12] >= 0
            and crc32c(view[position + CHECKSUM_START : position + LENGTH_PREFIX_BYTES + length]) == fields[4]
        ):
            return BatchHeader(*fields)
    return _problem_of(view, position)


def _problem_of(view: memoryview, position: int) -> BatchProblem:
    header = read_header(view, position)
    if isinstance(header, BatchProblem):
        return header
    end = position + header.size_bytes
    if end > len(view):
        missing = end - len(view)
        return BatchProblem(f"batch of {header.size_bytes} bytes lacks its last {missing}", is_truncated=True)
    actual = crc32c(view[position + CHECKSUM_START : end])
    return BatchProblem(f"checksum is {actual:#010x}, expected {header.checksum:#010x}")


def walk_headers(data: BatchBytes, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch with its position; ends quietly before the first that is not whole or not a batch."""
    end = len(data)
    while True:
        header = read_header(data, position)
        if isinstance(header, BatchProblem) or position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


def patch(
    data: bytearray | memoryview, position: int, header: BatchHeader, *, base_offset: int, leader_epoch: int
) -> BatchHeader:
    """Places the batch in a log; the header as it is then. Both fields lie outside the checksum."""
    _PLACE.pack_into(data, position, base_offset, header.length, leader_epoch)
    return BatchHeader(
        base_offset, header.length, leader_epoch, header.magic, header.checksum, header.attributes,
        header.last_offset_delta, header.base_timestamp, header.max_timestamp, header.producer_id,
        header.producer_epoch, header.base_sequence, header.record_count,
    )  # fmt: skip


def patch_log_append_time(data: bytearray | memoryview, position: int, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Dates every record of the batch with the broker's time and renews the checksum; the header as it is then."""
    attributes = header.attributes | ATTRIBUTE_LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(data, position + CHECKSUM_START, attributes)
    _MAX_TIMESTAMP.pack_into(data, position + 35, now_ms)
    checksum = crc32c(memoryview(data)[position + CHECKSUM_START : position + header.size_bytes])
    _CHECKSUM.pack_into(data, position + 17, checksum)
    return msgspec.structs.replace(header, attributes=attributes, max_timestamp=now_ms, checksum=checksum)


def pack_header(header: BatchHeader) -> bytes:
    return _HEADER.pack(
        header.base_offset, header.length, header.leader_epoch, header.magic, header.checksum, header.attributes,
        header.last_offset_delta, header.base_timestamp, header.max_timestamp, header.producer_id,
        header.producer_epoch, header.base_sequence, header.record_count,
    )  # fmt: skip
