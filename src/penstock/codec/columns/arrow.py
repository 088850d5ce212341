"""Record batches into Arrow columns: for Spark, which takes nothing else. Needs NumPy and PyArrow, as Spark does.

As in `read`, Polars' Avro reader cuts the records apart; but only their sizes are taken from it. From the sizes
follows where each record stands in the bytes that were read; `words` finds the fields there, and cuts keys and
values out in one step each.

Positions only grow from field to field, so if the last one ends inside its record, all of them do. Where one row does
not come out right, `columns.read_columns` reads all of them, and says what is wrong. So it does where rows are few.
Headers that are not wanted are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.codec.batch.header import BatchBytes, BatchProblem
from penstock.codec.columns.arrow_headers import headers_type, read_headers
from penstock.codec.columns.frame import DECOMPRESSED_BYTES_MAX, open_batches, read_columns
from penstock.codec.columns.read import SIZE_STEPS, Batch, Container, cut_container, timestamp_bases
from penstock.codec.columns.varint import find_stops
from penstock.codec.columns.words import Sized, bytes_through, cut_out, number, read_sized, sized, words_of

if TYPE_CHECKING:
    import polars as pl

    from penstock.codec.columns.words import Flags, Numbers

# Below this the loop over records is faster.
VECTORED_ROWS_MIN: Final = 50


class ArrowColumns(msgspec.Struct, frozen=True):
    """All rows in order: offsets and times in NumPy, as there is more to compute with them, the rest in Arrow."""

    offset: Numbers
    timestamp_ms: Numbers
    # Arrays of PyArrow, which has no types to check: binary, binary, and lists of (key string, value binary).
    key: Any
    value: Any
    headers: Any | None


def read_arrow(
    parts: Sequence[BatchBytes], *, wants_headers: bool, vectored_rows_min: int = VECTORED_ROWS_MIN
) -> ArrowColumns | BatchProblem:
    """The records of all batches in all parts, as `read_columns` has them of one."""
    batches = _open(parts)
    row_count = sum([batch.header.record_count for batch in batches])
    decoded = _decode(batches, wants_headers=wants_headers) if row_count >= max(vectored_rows_min, 1) else None
    if decoded is not None:
        return decoded
    frame = read_columns(parts[0] if len(parts) == 1 else b"".join(parts))
    return frame if isinstance(frame, BatchProblem) else _from_frame(frame, wants_headers=wants_headers)


def _open(parts: Sequence[BatchBytes]) -> list[Batch]:
    """The batches of all parts; none if one of them cannot be opened."""
    batches: list[Batch] = []
    bytes_max = DECOMPRESSED_BYTES_MAX
    for part in parts:
        opened = open_batches(part, bytes_max)
        if isinstance(opened, BatchProblem):
            return []
        batches += opened
        bytes_max -= sum([len(batch.payload) for batch in opened])
    # Positions in all of it have to fit 31 bits, as Arrow's do.
    return batches if bytes_max >= 0 else []


class _Rows(msgspec.Struct, frozen=True):
    timestamp_delta: Numbers
    offset_delta: Numbers
    key: Sized
    value: Sized
    is_right: Flags


def _decode(batches: list[Batch], *, wants_headers: bool) -> ArrowColumns | None:
    """None: not all of it came out right."""
    container = cut_container(batches)
    body_end = None if container is None else _find_ends(batches, container)
    if container is None or body_end is None:
        return None
    data, words = container.data, words_of(container.data)
    try:
        rows = _find_fields(words, body_end - _sizes(container))
        is_right = rows.is_right & (rows.value.end < body_end) & (rows.offset_delta >= 0)
        is_right &= rows.offset_delta <= _of_owner(batches, [batch.header.last_offset_delta for batch in batches])
        if not is_right.all():
            return None
        headers = read_headers(data, words, rows.value.end, body_end) if wants_headers else None
    except IndexError:
        # A field would end outside of all bytes.
        return None
    if wants_headers and headers is None:
        return None
    key, value = cut_out(data, rows.key, rows.value)
    factors, bases = timestamp_bases(batches)
    delta = rows.timestamp_delta if all(factors) else rows.timestamp_delta * _of_owner(batches, factors)
    return ArrowColumns(
        offset=rows.offset_delta + _of_owner(batches, [batch.header.base_offset for batch in batches]),
        timestamp_ms=delta + _of_owner(batches, bases),
        key=key,
        value=value,
        headers=headers,
    )


def _sizes(container: Container) -> Numbers:
    import numpy as np

    return container.bodies.bin.size().to_numpy().astype(np.int64)


def _find_ends(batches: list[Batch], container: Container) -> Numbers | None:
    """Where every record ends; None if the records do not fill their batches exactly."""
    import numpy as np

    size = _sizes(container)
    whole = size + 1
    for step in SIZE_STEPS:
        longer = size >= step
        if not longer.any():
            break
        whole += longer
    end = np.cumsum(whole)
    # A size written longer than need be, or bytes after a batch's last record, make the sum too small.
    if int(end[-1]) != sum([len(batch.payload) for batch in batches]):
        return None
    gaps, payloads_bytes = [], 0
    for batch, start in zip(batches, container.payload_starts, strict=True):
        gaps.append(start - payloads_bytes)
        payloads_bytes += len(batch.payload)
    end += _of_owner(batches, gaps)
    return end


def _find_fields(words: Numbers, body_start: Numbers) -> _Rows:
    """IndexError: a field would end outside of all bytes."""
    position = body_start + 1  # after the attributes, which have no meaning yet
    word = words[position]
    timestamp_stop, offset_stop, size_stop = find_stops(word, 3)
    timestamp_delta = number(word, None, timestamp_stop)
    if size_stop.all():
        offset_delta = number(word, timestamp_stop, offset_stop)
    else:
        # Timestamps hours apart make deltas so long that not all three numbers fit one word.
        position = position + bytes_through(timestamp_stop)
        word = words[position]
        offset_stop, size_stop = find_stops(word, 2)
        offset_delta = number(word, None, offset_stop)
    key = sized(position, number(word, offset_stop, size_stop), size_stop)
    value = read_sized(words, key.end)
    return _Rows(timestamp_delta, offset_delta, key, value, (timestamp_stop != 0) & key.is_right & value.is_right)


def _of_owner(batches: list[Batch], numbers: list[int]) -> Numbers | int:
    """The number of each row's batch."""
    import numpy as np

    if len(batches) == 1:
        return numbers[0]
    return np.repeat(np.array(numbers, dtype=np.int64), [batch.header.record_count for batch in batches])


def _from_frame(frame: pl.DataFrame, *, wants_headers: bool) -> ArrowColumns:
    import pyarrow as pa

    return ArrowColumns(
        offset=frame["offset"].to_numpy(),
        timestamp_ms=frame["timestamp_ms"].to_numpy(),
        key=frame["key"].to_arrow().cast(pa.binary()),
        value=frame["value"].to_arrow().cast(pa.binary()),
        headers=frame["headers"].to_arrow().cast(headers_type()) if wants_headers else None,
    )
