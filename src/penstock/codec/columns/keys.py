"""Keys and places of the records of many batches, without their values: what compaction has to know.

    owner uint32          which of the batches
    offset int64          absolute
    timestamp_ms int64
    key binary            null: none
    has_value bool        false: a tombstone
    size_bytes int64      in the plain payload, its own length included; records follow each other without a gap

Records stay where they are: who keeps some of them copies their bytes as they stand. As in `columns`, no Python code
runs for each record, but where there are few, or where the bytes make no sense to the vectored way.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.codec.batch.header import BatchHeader
from penstock.codec.batch.records import DELTA_MAX
from penstock.codec.batch.varint import ONE_BYTE_VALUES, VarintError, read_varint
from penstock.codec.columns.fields import read_field
from penstock.codec.columns.read import SIZE_STEPS, Batch, cut_apart, of_owner, owners, read_front, timestamps

if TYPE_CHECKING:
    import polars as pl

# Below this the loop is faster.
VECTORED_ROWS_MIN: Final = 500

# (offset, timestamp, key, has a value, size)
_Row = tuple[int, int, bytes | None, bool, int]


class KeyColumns(msgspec.Struct, frozen=True):
    """The rows of all batches in order, but of those that cannot be read."""

    frame: pl.DataFrame
    unreadable: frozenset[int]


def read_keys(batches: list[Batch], *, vectored_rows_min: int = VECTORED_ROWS_MIN) -> KeyColumns:
    """Each batch has at least one record."""
    row_count = sum(batch.header.record_count for batch in batches)
    vectored = _read_vectored(batches) if row_count >= max(vectored_rows_min, 1) else None
    if vectored is None:
        return _read_by_loop(batches)
    frame, failed = vectored
    return KeyColumns(frame, frozenset()) if not failed else _repair(batches, frame, failed)


def null_keys(header: BatchHeader, payload: bytes | memoryview) -> tuple[int, ...] | None:
    """Which records of the batch have no key, by their place in it; None: the records cannot be read.

    This is asked on event loops, so Polars, which takes a tenth of a second to import, is used only if it is there.
    """
    if header.record_count >= VECTORED_ROWS_MIN and "polars" in sys.modules:
        bodies = cut_apart([Batch(0, header, payload)])
        if bodies is not None:
            _, _, key = read_front(bodies)
            if key.is_right.all():
                return () if key.is_present.all() else tuple((~key.is_present).arg_true().to_list())
    return _walk_for_null_keys(header.record_count, bytes(payload))


def _walk_for_null_keys(record_count: int, payload: bytes) -> tuple[int, ...] | None:
    position = 0
    found: list[int] = []
    try:
        for place in range(record_count):
            size, position = _number(payload, position)
            end = position + size
            _, position = _number(payload, position + 1)
            _, position = _number(payload, position)
            key_size, position = _number(payload, position)
            if key_size < 0:
                found.append(place)
            if position + max(key_size, 0) > end or end > len(payload):
                return None
            position = end
    except (IndexError, VarintError):
        return None
    return tuple(found) if position == len(payload) else None


def _read_vectored(batches: list[Batch]) -> tuple[pl.DataFrame, frozenset[int]] | None:
    import polars as pl

    bodies = cut_apart(batches, as_one_block=True)
    if bodies is None:
        return None
    body_bytes = bodies.bin.size().cast(pl.Int64)
    size_bytes = _with_length(body_bytes)
    if not _end_together(batches, size_bytes):
        return None
    timestamp_delta, offset_delta, key = read_front(bodies)
    value = read_field(bodies, key.end)
    owner = owners(batches)
    last_offset_delta = of_owner(owner, [batch.header.last_offset_delta for batch in batches])
    # At least the header count follows the value.
    is_right = key.is_right & value.is_right & (value.end < body_bytes)
    is_right &= (offset_delta >= 0) & (offset_delta <= last_offset_delta)
    frame = pl.DataFrame(
        {
            "owner": pl.repeat(0, len(bodies), dtype=pl.UInt32, eager=True) if owner is None else owner,
            "offset": offset_delta + of_owner(owner, [batch.header.base_offset for batch in batches]),
            "timestamp_ms": timestamps(batches, owner, timestamp_delta),
            "key": key.cut(),
            "has_value": value.is_present,
            "size_bytes": size_bytes,
        }
    )
    failed_rows = (~is_right.fill_null(value=False)).arg_true()
    return frame, frozenset(frame["owner"].gather(failed_rows).unique().to_list())


def _with_length(body_bytes: pl.Series) -> pl.Series:
    import polars as pl

    size_bytes = body_bytes + 1
    for step in SIZE_STEPS:
        longer = body_bytes >= step
        if not longer.any():
            break
        size_bytes += longer.cast(pl.Int64)
    return size_bytes


def _end_together(batches: list[Batch], size_bytes: pl.Series) -> bool:
    """Whether the last record of each batch ends where its payload does: all of them were cut apart as one."""
    import polars as pl

    last_rows = pl.Series([batch.header.record_count for batch in batches], dtype=pl.Int64).cum_sum() - 1
    ends = pl.Series([len(batch.payload) for batch in batches], dtype=pl.Int64).cum_sum()
    return (size_bytes.cum_sum().gather(last_rows) == ends).all()


def _repair(batches: list[Batch], frame: pl.DataFrame, failed: frozenset[int]) -> KeyColumns:
    """The frame with the rows of failed batches read by the loop."""
    import polars as pl

    again = _read_by_loop(batches, only=failed)
    rest = frame.filter(~pl.col("owner").is_in(sorted(failed)))
    return KeyColumns(pl.concat([rest, again.frame]).sort("owner", maintain_order=True), again.unreadable)


def _read_by_loop(batches: list[Batch], only: frozenset[int] | None = None) -> KeyColumns:
    import polars as pl

    owner: list[int] = []
    rows: list[_Row] = []
    unreadable: set[int] = set()
    for place, batch in enumerate(batches):
        if only is not None and place not in only:
            continue
        found = _walk(batch.header, bytes(batch.payload))
        if found is None:
            unreadable.add(place)
        else:
            owner += [place] * len(found)
            rows += found
    offsets, stamps, keys, has_values, sizes = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    frame = pl.DataFrame(
        [
            pl.Series("owner", owner, dtype=pl.UInt32),
            pl.Series("offset", offsets, dtype=pl.Int64),
            pl.Series("timestamp_ms", stamps, dtype=pl.Int64),
            pl.Series("key", keys, dtype=pl.Binary),
            pl.Series("has_value", has_values, dtype=pl.Boolean),
            pl.Series("size_bytes", sizes, dtype=pl.Int64),
        ]
    )
    return KeyColumns(frame, frozenset(unreadable))


def _walk(header: BatchHeader, payload: bytes) -> list[_Row] | None:
    """Every record's front, one after the other; None if one of them does not fit."""
    rows: list[_Row] = []
    position = 0
    fixed_timestamp = header.max_timestamp if header.has_log_append_time else None
    try:
        for _ in range(header.record_count):
            start = position
            size, position = _number(payload, position)
            end = position + size
            timestamp_delta, position = _number(payload, position + 1)
            offset_delta, position = _number(payload, position)
            key_size, position = _number(payload, position)
            key = None if key_size < 0 else payload[position : position + key_size]
            value_size, position = _number(payload, position + max(key_size, 0))
            if not _is_right(header, end - position - max(value_size, 0), key_size, value_size, offset_delta):
                return None
            if not -DELTA_MAX <= timestamp_delta <= DELTA_MAX or end > len(payload):
                return None
            timestamp = header.base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp
            rows.append((header.base_offset + offset_delta, timestamp, key, value_size >= 0, end - start))
            position = end
    except (IndexError, VarintError):
        return None
    return rows if position == len(payload) else None


def _is_right(header: BatchHeader, bytes_left: int, key_size: int, value_size: int, offset_delta: int) -> bool:
    return bytes_left >= 1 and key_size >= -1 and value_size >= -1 and 0 <= offset_delta <= header.last_offset_delta


def _number(payload: bytes, position: int) -> tuple[int, int]:
    byte = payload[position]
    return (ONE_BYTE_VALUES[byte], position + 1) if byte < 0x80 else read_varint(payload, position)
