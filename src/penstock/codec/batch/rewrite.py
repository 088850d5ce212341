"""A stored batch with fewer records than it had, which is what compaction writes, or in another producer's name; a
batch in another codec than it came in.

The records that stay are copied as they stand, because offset and time in them are relative to the batch's own, which
do not change: neither does the number of offsets that the batch stands for. So a producer's sequence can still be read
off it, and no offset moves.

A batch that holds a deletion gets a *horizon*, the moment from which on the deletion may go. As in Kafka it takes the
place of the base timestamp, which an attribute says, so every record's time is written anew, relative to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import (
    ATTRIBUTE_CODEC_MASK,
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    CHECKSUM_START,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchBytes,
    BatchHeader,
    BatchProblem,
    read_header,
)
from penstock.codec.batch.records import read_payload, seal_batch
from penstock.codec.batch.varint import encode_varint, read_varint
from penstock.codec.batch.walk import parse_some, record_starts

NO_HORIZON: Final = -1
# Of one batch: its last offset delta is 32 bits.
BATCH_OFFSETS_MAX: Final = 2**31 - 1


_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57
# Base offset, last offset delta, record count: what tells whether there are holes.
_HOLES: Final = struct.Struct(">q15xi30xi")
# Base offset, length, leader epoch.
_PLACE: Final = struct.Struct(">qii")
_ATTRIBUTES: Final = struct.Struct(">h")
# Producer id, its epoch, the first sequence number.
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_CHECKSUM: Final = struct.Struct(">I")
_CHECKSUM_AT: Final = 17


def horizon_of(header: BatchHeader) -> int:
    """From when on deletions in the batch may go; -1: not decided yet."""
    return header.base_timestamp if header.attributes & ATTRIBUTE_DELETE_HORIZON else NO_HORIZON


def rebuild_batch(
    header: BatchHeader,
    records: Iterable[bytes | memoryview],
    *,
    record_count: int,
    newest_ms: int,
    horizon_ms: int = NO_HORIZON,
) -> bytearray:
    """The batch with only those records, in plain, as they stood in it; `newest_ms` is of them. A horizon is given to
    a batch that has none."""
    payload = b"".join(records)
    attributes, base_timestamp, max_timestamp = header.attributes, header.base_timestamp, header.max_timestamp
    if horizon_ms != NO_HORIZON:
        assert horizon_of(header) == NO_HORIZON, "a horizon never moves"
        attributes, base_timestamp = attributes | ATTRIBUTE_DELETE_HORIZON, horizon_ms
    if not header.has_log_append_time:
        max_timestamp = newest_ms
        if horizon_ms != NO_HORIZON:
            payload = _shift_times(payload, record_count, header.base_timestamp - horizon_ms)
    rebuilt = BatchHeader(
        header.base_offset, 0, header.leader_epoch, header.magic, 0, attributes,
        header.last_offset_delta, base_timestamp, max_timestamp, header.producer_id,
        header.producer_epoch, header.base_sequence, record_count,
    )  # fmt: skip
    return seal_batch(rebuilt, payload)


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without any record: whose it was, its offsets and its sequence."""
    emptied = msgspec.structs.replace(
        header,
        attributes=header.attributes & ~(ATTRIBUTE_CODEC_MASK | ATTRIBUTE_DELETE_HORIZON),
        base_timestamp=NO_TIMESTAMP,
        # Nothing in it is of that time any more: a search for the newest record must not come here.
        max_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    return seal_batch(emptied, b"")


def recode_batch(
    header: BatchHeader, payload: bytes | memoryview, *, codec: Codec, level: int | None = None
) -> bytearray:
    """The batch in another codec. Its plain records are as they were, and so is all that its header says of them."""
    attributes = header.attributes & ~ATTRIBUTE_CODEC_MASK | codec
    return seal_batch(msgspec.structs.replace(header, attributes=attributes), payload, level)


def filler_batch(*, base_offset: int, next_offset: int, leader_epoch: int) -> bytearray:
    """Stands for offsets whose records are gone: batches follow each other without a gap, also after compaction."""
    assert 0 < next_offset - base_offset <= BATCH_OFFSETS_MAX
    header = BatchHeader(
        base_offset=base_offset,
        length=HEADER_BYTES - LENGTH_PREFIX_BYTES,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        checksum=0,
        attributes=0,
        last_offset_delta=next_offset - base_offset - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return seal_batch(header, b"")


def sign_transactional(batch: bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
    """Makes one whole batch, in place, a part of this producer's transaction; its records are not looked at.

    Its place in the log that it came from goes, and its checksum is renewed.
    """
    header = header_of(batch)
    assert header.size_bytes == len(batch)
    assert not header.is_control
    _PLACE.pack_into(batch, 0, 0, header.length, -1)
    _ATTRIBUTES.pack_into(batch, CHECKSUM_START, header.attributes | ATTRIBUTE_TRANSACTIONAL)
    _PRODUCER.pack_into(batch, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _CHECKSUM.pack_into(batch, _CHECKSUM_AT, crc32c(memoryview(batch)[CHECKSUM_START:]))
    return batch


def has_nothing_from(batches: BatchBytes, offset: int) -> bool:
    """Whether the first of some batches, one that ends at or after `offset`, has no record from there on."""
    if not len(batches):
        return False
    base_offset, last_offset_delta, record_count = _HOLES.unpack_from(batches)
    if record_count == 0:
        return True
    # Nearly every reader begins with a batch, and nearly every batch has no hole. Compressed ones have to be opened.
    if base_offset >= offset or record_count > last_offset_delta:
        return False
    return _last_record_offset(batches) < offset


def _last_record_offset(batches: BatchBytes) -> int:
    """Of the first batch. The offset after it where the records cannot be read: that is for the reader to find out."""
    header = read_header(batches)
    assert isinstance(header, BatchHeader)
    payload = read_payload(batches, 0, header)
    if isinstance(payload, BatchProblem):
        return header.next_offset
    plain = bytes(payload)
    starts = record_starts(header, plain)
    last = (
        None if starts is None else parse_some(header, plain, starts, header.record_count - 1, header.record_count - 1)
    )
    return last[0].offset if isinstance(last, list) else header.next_offset


def skip_first_and_empty(batches: BatchBytes) -> tuple[memoryview, int]:
    """What follows the first batch and those without records behind it, and the offset after all of these."""
    rest = memoryview(batches)
    next_offset = -1
    while next_offset < 0 or (len(rest) > 0 and _COUNT.unpack_from(rest, _COUNT_AT)[0] == 0):
        header = read_header(rest)
        assert isinstance(header, BatchHeader)
        next_offset = header.next_offset
        rest = rest[header.size_bytes :]
    return rest, next_offset


def header_of(batch: bytearray | memoryview) -> BatchHeader:
    """Of a batch that was made or checked here."""
    header = read_header(batch)
    assert isinstance(header, BatchHeader)
    return header


def _shift_times(payload: bytes, record_count: int, shift_ms: int) -> bytes:
    """The records with times relative to a base that lies `shift_ms` earlier. They were read before: they are whole."""
    parts: list[bytes] = []
    position = 0
    for _ in range(record_count):
        size, start = read_varint(payload, position)
        delta, rest = read_varint(payload, start + 1)
        position = start + size
        body = payload[start : start + 1] + encode_varint(delta + shift_ms) + payload[rest:position]
        parts += (encode_varint(len(body)), body)
    return b"".join(parts)
