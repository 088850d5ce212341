"""The records inside a batch, one by one.

The log path never comes here: it moves whole batches. This is for what must look inside (the command line's
client, dead letters, look-up by time) and for what has records and needs a batch. `columns` does the same for many
at once.

    record      size varint, attributes int8, timestamp delta varlong, offset delta varint,
                key, value, header count varint, headers
    key, value  size varint (-1: null), bytes
    header      size varint, key in UTF-8, then its value like a value

Whatever the bytes are, reading ends with records or with a `BatchProblem`, and takes no more memory than
`decompressed_bytes_max` and the records themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.codec.batch.compression import Codec, CompressionError, compress, decompress
from penstock.codec.batch.header import (
    ATTRIBUTE_CONTROL,
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
    pack_header,
    read_header,
)
from penstock.codec.batch.varint import ONE_BYTE_VALUES, VarintError, encode_varint, read_varint

Headers = tuple[tuple[str, bytes | None], ...]

# Seven fields of at least one byte each: a count that asks for more records than fit is refused at once.
RECORD_BYTES_MIN: Final = 7
HEADER_ENTRY_BYTES_MIN: Final = 2
# Batches are at most about 1 MB on the wire by default; text that expands a hundredfold is still legitimate.
DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024

# Sums of a base and a delta then fit 64 bits. In milliseconds this is a hundred million years.
BASE_MAX: Final = 1 << 62
DELTA_MAX: Final = 1 << 62

_NULL: Final = encode_varint(-1)
# Sizes and deltas that nearly all records have: looking them up is five times faster than encoding them.
_SMALL_COUNT: Final = 1024
_SMALL: Final = tuple(encode_varint(number) for number in range(_SMALL_COUNT))
_NAME_CHARACTERS_MAX: Final = 64
_KNOWN_CODECS: Final = frozenset(Codec)


class _DamagedRecordError(Exception):
    """Leaves the parser's loop; `parse_records` makes a `BatchProblem` of it."""


class Record(msgspec.Struct, frozen=True):
    """A record that has no place in a log yet."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = NO_TIMESTAMP
    headers: Headers = ()
    # None: one after the record before it. Larger leaves a hole, as compaction does.
    offset_delta: int | None = None


class StoredRecord(msgspec.Struct, frozen=True):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def build_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    last_offset_delta: int | None = None,
) -> bytearray:
    """`last_offset_delta` is for batches that end in holes, down to those without any record."""
    base_timestamp = records[0].timestamp_ms if records else NO_TIMESTAMP
    parts: list[bytes] = []
    next_delta = 0
    for record in records:
        delta = next_delta if record.offset_delta is None else record.offset_delta
        assert delta >= next_delta, f"offset delta {delta} after {next_delta - 1}"
        parts.append(_encode_record(record, record.timestamp_ms - base_timestamp, delta))
        next_delta = delta + 1
    last_delta = max(next_delta - 1, 0) if last_offset_delta is None else last_offset_delta
    assert last_delta >= next_delta - 1, f"last offset delta {last_delta}, but a record has {next_delta - 1}"
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        checksum=0,
        attributes=batch_attributes(codec, is_transactional=is_transactional, is_control=is_control),
        last_offset_delta=last_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max((record.timestamp_ms for record in records), default=NO_TIMESTAMP),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return seal_batch(header, b"".join(parts))


def batch_attributes(codec: Codec, *, is_transactional: bool, is_control: bool) -> int:
    transactional = ATTRIBUTE_TRANSACTIONAL if is_transactional else 0
    return codec | transactional | (ATTRIBUTE_CONTROL if is_control else 0)


def seal_batch(header: BatchHeader, payload: bytes | memoryview, level: int | None = None) -> bytearray:
    """A whole batch: plain records compressed as the attributes say, with length and checksum."""
    if header.codec != Codec.NONE:
        payload = compress(Codec(header.codec), payload, level)
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES + len(payload)
    batch = bytearray(pack_header(msgspec.structs.replace(header, length=length)))
    batch += payload
    batch[17:21] = crc32c(memoryview(batch)[CHECKSUM_START:]).to_bytes(4, "big")
    return batch


def _encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    key, value = record.key, record.value
    body = b"".join(
        (
            b"\x00",
            _SMALL[timestamp_delta] if 0 <= timestamp_delta < _SMALL_COUNT else encode_varint(timestamp_delta),
            _SMALL[offset_delta] if offset_delta < _SMALL_COUNT else encode_varint(offset_delta),
            _NULL if key is None else _sized(key),
            _NULL if value is None else _sized(value),
            encode_headers(record.headers) if record.headers else b"\x00",
        )
    )
    return _sized(body)


def _sized(field: bytes) -> bytes:
    size = len(field)
    return (_SMALL[size] if size < _SMALL_COUNT else encode_varint(size)) + field


@lru_cache(maxsize=1024)
def _short_name(name: str) -> bytes:
    """The same few names stand on every record."""
    return _sized(name.encode())


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The header count and the headers: the tail of a record."""
    if not headers:
        return b"\x00"
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        # Long ones are not remembered: they could be anybody's.
        parts.append(_short_name(name) if len(name) <= _NAME_CHARACTERS_MAX else _sized(name.encode()))
        parts.append(_NULL if value is None else _sized(value))
    return b"".join(parts)


def read_records(
    batch: BatchBytes, position: int = 0, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[StoredRecord] | BatchProblem:
    """Every record of the batch at `position`. The checksum is the caller's matter (`check_batch`)."""
    header = read_header(batch, position)
    if isinstance(header, BatchProblem):
        return header
    payload = read_payload(batch, position, header, decompressed_bytes_max=decompressed_bytes_max)
    if isinstance(payload, BatchProblem):
        return payload
    return parse_records(header, payload)


def read_payload(
    batch: BatchBytes,
    position: int,
    header: BatchHeader,
    *,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> bytes | memoryview | BatchProblem:
    """The records' bytes in plain. The header's numbers are possible ones then; no record was looked at."""
    end = position + header.size_bytes
    if end > len(batch):
        missing = end - len(batch)
        return BatchProblem(f"batch of {header.size_bytes} bytes lacks its last {missing}", is_truncated=True)
    payload: bytes | memoryview = memoryview(batch)[position + HEADER_BYTES : end]
    if header.codec != Codec.NONE and not (header.record_count == 0 and len(payload) == 0):
        if header.codec not in _KNOWN_CODECS:
            return BatchProblem(f"codec {header.codec} is unknown")
        try:
            payload = decompress(Codec(header.codec), payload, bytes_max=decompressed_bytes_max)
        except CompressionError as error:
            return BatchProblem(str(error))
    if abs(header.base_offset) > BASE_MAX or abs(header.base_timestamp) > BASE_MAX:
        return BatchProblem(f"base offset {header.base_offset}, base timestamp {header.base_timestamp}")
    if header.record_count * RECORD_BYTES_MIN > len(payload):
        return BatchProblem(f"{len(payload)} bytes cannot hold {header.record_count} records")
    return payload


def parse_records(header: BatchHeader, payload: bytes | memoryview) -> list[StoredRecord] | BatchProblem:
    """The records in a payload from `read_payload`."""
    try:
        # Slices of bytes are keys and values as they are; slices of a view would have to be copied one by one.
        records, position = _parse_all(header, bytes(payload))
    except IndexError:
        return BatchProblem(f"a record goes on past the {len(payload)} bytes of its batch")
    except (VarintError, _DamagedRecordError) as error:
        return BatchProblem(str(error))
    if position != len(payload):
        return BatchProblem(f"{header.record_count} records end at byte {position} of {len(payload)}")
    return records


def parse_record(header: BatchHeader, payload: bytes, position: int) -> StoredRecord | BatchProblem:
    """The one record that begins there. IndexError, VarintError: none does."""
    size, position = read_varint(payload, position)
    end = position + size
    timestamp_delta, position = read_varint(payload, position + 1)
    offset_delta, position = read_varint(payload, position)
    try:
        key, position = _read_field(payload, position)
        value, position = _read_field(payload, position)
        headers, position = _read_headers(payload, position) if payload[position] else ((), position + 1)
    except _DamagedRecordError as error:
        return BatchProblem(str(error))
    if position != end:
        return BatchProblem(f"a record says that it ends at byte {end}, its fields end at {position}")
    timestamp = header.max_timestamp if header.has_log_append_time else header.base_timestamp + timestamp_delta
    return StoredRecord(header.base_offset + offset_delta, timestamp, key, value, headers)


def _parse_all(header: BatchHeader, payload: bytes) -> tuple[list[StoredRecord], int]:
    """The records and the position after them. A varint of one byte is read in line: nearly all are."""
    base_offset, last_offset_delta, base_timestamp = (
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
    )
    fixed_timestamp = header.max_timestamp if header.has_log_append_time else None
    records: list[StoredRecord] = []
    position = 0
    for _ in range(header.record_count):
        size, position = read_varint(payload, position)
        end = position + size
        # The attributes byte has no meaning yet.
        if payload[position + 1] < 0x80:
            timestamp_delta = ONE_BYTE_VALUES[payload[position + 1]]
            position += 2
        else:
            timestamp_delta, position = read_varint(payload, position + 1)
        if payload[position] < 0x80:
            offset_delta = ONE_BYTE_VALUES[payload[position]]
            position += 1
        else:
            offset_delta, position = read_varint(payload, position)
        key, position = _read_field(payload, position)
        value, position = _read_field(payload, position)
        headers: Headers = ()
        if payload[position] == 0:
            position += 1
        else:
            headers, position = _read_headers(payload, position)
        if position != end:
            raise _DamagedRecordError(f"a record says that it ends at byte {end}, its fields end at {position}")
        if not 0 <= offset_delta <= last_offset_delta or not -DELTA_MAX <= timestamp_delta <= DELTA_MAX:
            raise _DamagedRecordError(
                f"offset delta {offset_delta} (at most {last_offset_delta}), timestamp delta {timestamp_delta}"
            )
        timestamp = base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp
        records.append(StoredRecord(base_offset + offset_delta, timestamp, key, value, headers))
    return records, position


def _read_field(payload: bytes, position: int) -> tuple[bytes | None, int]:
    """A key, a value or a header's part. What goes past the end comes back short, its end past the end."""
    size = payload[position]
    if size < 0x80:
        size = ONE_BYTE_VALUES[size]
        position += 1
    else:
        size, position = read_varint(payload, position)
    if size < 0:
        if size != -1:
            raise _DamagedRecordError(f"field of {size} bytes before byte {position}")
        return None, position
    end = position + size
    return payload[position:end], end


def _read_headers(payload: bytes, position: int) -> tuple[Headers, int]:
    count, position = read_varint(payload, position)
    if count < 0 or count * HEADER_ENTRY_BYTES_MIN > len(payload) - position:
        raise _DamagedRecordError(f"{count} headers at byte {position}, {len(payload) - position} bytes are left")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_field(payload, position)
        if name is None:
            raise _DamagedRecordError(f"header without a key before byte {position}")
        value, position = _read_field(payload, position)
        # As Java does: a key in another encoding must not make the whole batch unreadable.
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), position
