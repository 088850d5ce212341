"""Columns into record batches, with no Python code run per record.

Every field of a record is a column of byte strings: varints from a table, the user's own keys and values. `zip` and
`join` put the fields of each record together, their lengths give the record sizes, and a second join makes the
records of a batch. (Measured against one bytes-format per record: a quarter faster, and one path for all shapes.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from operator import add
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import (
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
)
from penstock.codec.batch.records import Headers, batch_attributes, encode_headers, seal_batch
from penstock.codec.batch.varint import TABLE_COUNT, encode_varint, varint_table

if TYPE_CHECKING:
    import polars as pl

# Java's and librdkafka's limit for a request is 1 MB; a batch below it is accepted with default settings.
BATCH_BYTES_MAX: Final = 1_000_000
# Offset deltas then all come from the table; 16,384 tiny records are a large batch all the same.
BATCH_RECORDS_MAX: Final = TABLE_COUNT

# Sizes of a record, its key and its value at 5 bytes each, timestamp delta at 10, offset delta at 3, attributes,
# header count.
_OVERHEAD_BYTES_MAX: Final = 3 * 5 + 10 + 3 + 1 + 1
_SEQUENCE_MODULUS: Final = 1 << 31
_NULL: Final = encode_varint(-1)
_ATTRIBUTES: Final = b"\x00"
_NO_HEADERS: Final = b"\x00"

T = TypeVar("T")


class _Rows(msgspec.Struct):
    """Columns as lists of one length. None: no row has one."""

    keys: list[bytes | None] | None
    values: list[bytes | None]
    timestamps_ms: list[int]
    headers: list[bytes] | None

    def cut(self, start: int, end: int) -> _Rows:
        return _Rows(
            self.keys[start:end] if self.keys is not None else None,
            self.values[start:end],
            self.timestamps_ms[start:end],
            self.headers[start:end] if self.headers is not None else None,
        )


def build_batches_from_columns(
    keys: Sequence[bytes | None] | pl.Series | None,
    values: Sequence[bytes | None] | pl.Series,
    timestamps_ms: Sequence[int] | pl.Series | int = NO_TIMESTAMP,
    headers: Sequence[Headers] | pl.Series | None = None,
    *,
    codec: Codec = Codec.NONE,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
) -> list[bytearray]:
    """Batches of at most `batch_bytes_max` before compression; a record that is larger has one to itself.

    A single timestamp dates every record. Offsets and sequences go on from batch to batch.
    """
    all_rows = _gather_rows(keys, values, timestamps_ms, headers)
    batches: list[bytearray] = []
    for start, end in _split(_sizes(all_rows), batch_bytes_max):
        rows = all_rows.cut(start, end)
        header = BatchHeader(
            base_offset=base_offset + start,
            length=0,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            checksum=0,
            attributes=batch_attributes(codec, is_transactional=is_transactional, is_control=False),
            last_offset_delta=end - start - 1,
            base_timestamp=rows.timestamps_ms[0],
            max_timestamp=max(rows.timestamps_ms),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence_after(base_sequence, start),
            record_count=end - start,
        )
        batches.append(seal_batch(header, _encode_rows(rows)))
    return batches


def sequence_after(base_sequence: int, record_count: int) -> int:
    """A producer's sequence numbers start again at 0 after the largest int32."""
    return NO_SEQUENCE if base_sequence == NO_SEQUENCE else (base_sequence + record_count) % _SEQUENCE_MODULUS


def _gather_rows(
    keys: Sequence[bytes | None] | pl.Series | None,
    values: Sequence[bytes | None] | pl.Series,
    timestamps_ms: Sequence[int] | pl.Series | int,
    headers: Sequence[Headers] | pl.Series | None,
) -> _Rows:
    count = len(values)
    key_list = None if keys is None else _as_list(keys)
    timestamps = [timestamps_ms] * count if isinstance(timestamps_ms, int) else _as_list(timestamps_ms)
    # The same headers often stand on many records. Bounded, because they may as well be different on each.
    encode = lru_cache(maxsize=1024)(encode_headers)
    header_list = None if headers is None else list(map(encode, map(tuple, _header_rows(headers))))
    assert key_list is None or len(key_list) == count, f"{len(key_list)} keys for {count} values"
    assert len(timestamps) == count, f"{len(timestamps)} timestamps for {count} values"
    assert header_list is None or len(header_list) == count, f"{len(header_list)} headers for {count} values"
    return _Rows(key_list, _as_list(values), timestamps, header_list)


def _as_list(column: Sequence[T] | pl.Series) -> list[T]:
    if isinstance(column, list):
        return column
    if isinstance(column, Sequence):
        return list(column)
    listed: list[T] = column.to_list()
    return listed


def _header_rows(headers: Sequence[Headers] | pl.Series) -> Iterable[Sequence[tuple[str, bytes | None]]]:
    if isinstance(headers, Sequence):
        return headers
    # As `read_columns` gives them: lists of (key, value) structs, which Polars hands out as dictionaries.
    return [[(entry["key"], entry["value"]) for entry in row or ()] for row in headers.to_list()]


def _sizes(rows: _Rows) -> list[int]:
    """An upper bound of every record's size."""
    sizes = [_OVERHEAD_BYTES_MAX + length for length in _lengths(rows.values)]
    if rows.keys is not None:
        sizes = list(map(add, sizes, _lengths(rows.keys)))
    if rows.headers is not None:
        sizes = list(map(add, sizes, map(len, rows.headers)))
    return sizes


def _lengths(fields: list[bytes | None]) -> Iterable[int]:
    if None not in fields:
        return map(len, cast(list[bytes], fields))
    return [0 if field is None else len(field) for field in fields]


def _split(sizes: list[int], batch_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Row ranges that become one batch each."""
    ends = list(accumulate(sizes))
    start = bytes_before = 0
    while start < len(ends):
        end = bisect_right(ends, bytes_before + batch_bytes_max - HEADER_BYTES, lo=start)
        end = min(max(end, start + 1), start + BATCH_RECORDS_MAX)
        yield start, end
        start, bytes_before = end, ends[end - 1]


def _encode_rows(rows: _Rows) -> bytes:
    base_timestamp = rows.timestamps_ms[0]
    columns: list[Iterable[bytes]] = [
        repeat(_ATTRIBUTES),
        _varints([timestamp - base_timestamp for timestamp in rows.timestamps_ms]),
        varint_table()[: len(rows.values)],
    ]
    columns += (repeat(_NULL),) if rows.keys is None else _encode_fields(rows.keys)
    columns += _encode_fields(rows.values)
    columns.append(repeat(_NO_HEADERS) if rows.headers is None else rows.headers)
    bodies = list(map(b"".join, zip(*columns, strict=False)))  # not strict: `repeat` does not end
    sizes = _varints(list(map(len, bodies)))
    return b"".join(chain.from_iterable(zip(sizes, bodies, strict=True)))


def _encode_fields(fields: list[bytes | None]) -> tuple[list[bytes], list[bytes]]:
    """The sizes and the contents of keys or values."""
    if None not in fields:
        contents = cast(list[bytes], fields)
        return _varints(list(map(len, contents))), contents
    sizes = [_NULL if field is None else encode_varint(len(field)) for field in fields]
    return sizes, [field or b"" for field in fields]


def _varints(numbers: list[int]) -> list[bytes]:
    if min(numbers) >= 0:
        try:
            return list(map(varint_table().__getitem__, numbers))
        except IndexError:
            pass  # one of them is beyond the table; looking for it first would cost more than it saves
    return list(map(encode_varint, numbers))
