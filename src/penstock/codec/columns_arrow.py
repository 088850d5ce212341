"""Record batches into Arrow columns: for Spark, which takes nothing else. Needs NumPy and PyArrow, as Spark does.

As in `columns_read`, Polars' Avro reader cuts the records apart; but only their sizes are taken from it. From the sizes
follows where each record stands in the bytes that were read, and NumPy finds the fields there, by the arithmetic of
`columns_varint`: an operation is a third of a nanosecond a row. Keys and values are cut out by PyArrow in one step
each, from an array in which they and what lies between them take turns, without a copy:

    … | size, deltas, size | key | size | value | headers, size, deltas, size | key | size | value | headers …

Positions only grow from field to field, so if the last one ends inside its record, all of them do. Where one row does
not come out right, `columns.read_columns` reads all of them, and says what is wrong. So it does where rows are few.
Headers that are not wanted are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.codec.columns import DECOMPRESSED_BYTES_MAX, open_batches, read_columns
from penstock.codec.columns_fields import read_headers
from penstock.codec.columns_read import SIZE_STEPS, Batch, Container, cut_container, timestamp_bases
from penstock.codec.columns_varint import HIGH_BITS, LOW_BITS, WORD_BYTES
from penstock.codec.record_batch import BatchBytes, BatchProblem

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    Numbers = npt.NDArray[np.int64]

# Below this the loop over records is faster.
VECTORED_ROWS_MIN: Final = 200


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
    return batches if bytes_max >= 0 else []


class _Rows(msgspec.Struct, frozen=True):
    """Where things stand in the container's bytes, for every row."""

    body_start: Numbers
    body_end: Numbers
    timestamp_delta: Numbers
    offset_delta: Numbers
    key_start: Numbers
    key_size: Numbers
    value_start: Numbers
    value_size: Numbers
    # Whether each number ended within its word.
    is_whole: npt.NDArray[np.bool_]

    @property
    def value_end(self) -> Numbers:
        return self.value_start + _length(self.value_size)


def _decode(batches: list[Batch], *, wants_headers: bool) -> ArrowColumns | None:
    """None: not all of it came out right."""
    container = cut_container(batches)
    if container is None:
        return None
    bounds = _find_bodies(batches, container)
    if bounds is None:
        return None
    rows = _find_fields(container.data, *bounds)
    if rows is None:
        return None
    value_end = rows.value_end
    is_right = rows.is_whole & (rows.key_size >= -1) & (rows.value_size >= -1) & (value_end < rows.body_end)
    is_right &= rows.offset_delta >= 0
    is_right &= rows.offset_delta <= _of_owner(batches, [batch.header.last_offset_delta for batch in batches])
    if not is_right.all():
        return None
    headers = None
    if wants_headers:
        headers = _headers(container, rows, value_end)
        if headers is None:
            return None
    key, value = _cut_out(container.data, rows, value_end)
    factors, bases = timestamp_bases(batches)
    delta = rows.timestamp_delta if all(factors) else rows.timestamp_delta * _of_owner(batches, factors)
    return ArrowColumns(
        offset=rows.offset_delta + _of_owner(batches, [batch.header.base_offset for batch in batches]),
        timestamp_ms=delta + _of_owner(batches, bases),
        key=key,
        value=value,
        headers=headers,
    )


def _find_bodies(batches: list[Batch], container: Container) -> tuple[Numbers, Numbers] | None:
    """Start and end of every record without its size; None if the records do not fill their batches exactly."""
    import numpy as np

    size = container.bodies.bin.size().to_numpy().astype(np.int64)
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
    return end - size, end


def _find_fields(data: bytes, body_start: Numbers, body_end: Numbers) -> _Rows | None:
    """None: a field would end outside of all bytes."""
    import numpy as np

    # The eight bytes at every position; what is read past a record's end makes its row wrong, and is no harm.
    words = np.ndarray((len(data) - WORD_BYTES + 1,), dtype="<i8", buffer=data, strides=(1,))
    try:
        position = body_start + 1  # after the attributes, which have no meaning yet
        word = words[position]
        timestamp_stop, offset_stop, size_stop = _stops(word, 3)
        timestamp_delta = _number(word, None, timestamp_stop)
        if not size_stop.all():
            # Timestamps hours apart make deltas so long that not all three numbers fit one word.
            position = position + _bytes_through(timestamp_stop)
            word = words[position]
            offset_stop, size_stop = _stops(word, 2)
            offset_delta = _number(word, None, offset_stop)
        else:
            offset_delta = _number(word, timestamp_stop, offset_stop)
        key_size = _number(word, offset_stop, size_stop)
        key_start = position + _bytes_through(size_stop)
        key_end = key_start + _length(key_size)
        word = words[key_end]
        (value_stop,) = _stops(word, 1)
        value_start = key_end + _bytes_through(value_stop)
    except IndexError:
        return None
    is_whole = (timestamp_stop != 0) & (size_stop != 0) & (value_stop != 0)
    value_size = _number(word, None, value_stop)
    return _Rows(
        body_start,
        body_end,
        timestamp_delta,
        offset_delta,
        key_start,
        key_size,
        value_start,
        value_size,
        is_whole,
    )


def _stops(word: Numbers, count: int) -> list[Numbers]:
    """See `columns_varint.find_stops`."""
    left = ~word & HIGH_BITS
    found = []
    for _ in range(count):
        rest = left & (left - 1)
        found.append(left ^ rest)
        left = rest
    return found


def _number(word: Numbers, previous_stop: Numbers | None, stop: Numbers) -> Numbers:
    """The varint between two stops, as a signed number."""
    import numpy as np

    bits = word & (stop - 1)
    if previous_stop is not None:
        bits >>= np.bitwise_count(previous_stop - 1) + np.uint8(1)
    bits &= LOW_BITS
    largest = int(bits.max())
    # Groups of seven bits, one a byte, pushed together: pairs, then pairs of pairs, then the halves.
    if largest > 0xFF:
        bits = (bits & 0x007F007F007F007F) | ((bits & 0x7F007F007F007F00) >> 1)
    if largest > 0xFFFF:
        bits = (bits & 0x00003FFF00003FFF) | ((bits & 0x3FFF00003FFF0000) >> 2)
        bits = (bits & 0x000000000FFFFFFF) | ((bits & 0x0FFFFFFF00000000) >> 4)
    return (bits >> 1) ^ -(bits & 1)


def _bytes_through(stop: Numbers) -> Numbers:
    """How many bytes of the word there are up to the end of the varint with this stop."""
    import numpy as np

    bits: Numbers = (np.bitwise_count(stop - 1) + np.uint8(1)) >> 3
    return bits


def _length(size: Numbers) -> Numbers:
    """What a field takes: nothing if it is null. Never negative, whatever the bytes say, so that positions grow."""
    import numpy as np

    return np.maximum(size, 0)


def _of_owner(batches: list[Batch], numbers: list[int]) -> Numbers | int:
    """The number of each row's batch."""
    import numpy as np

    if len(batches) == 1:
        return numbers[0]
    return np.repeat(np.array(numbers, dtype=np.int64), [batch.header.record_count for batch in batches])


def _cut_out(data: bytes, rows: _Rows, value_end: Numbers) -> tuple[Any, Any]:
    import numpy as np
    import pyarrow as pa

    count = len(value_end)
    edges = np.empty((count, 4), dtype=np.int32)
    edges[:, 0] = rows.key_start
    edges[:, 1] = rows.key_start + _length(rows.key_size)
    edges[:, 2] = rows.value_start
    edges[:, 3] = value_end
    pieces = pa.Array.from_buffers(pa.binary(), 4 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    return _every_fourth(pieces, 0, rows.key_size), _every_fourth(pieces, 2, rows.value_size)


def _every_fourth(pieces: Any, first: int, size: Numbers) -> Any:
    """Of each row one piece, null where the size is -1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    is_present = size >= 0
    if not is_present.any():
        return pa.nulls(len(size), pa.binary())
    places = pa.array(np.arange(first, first + 4 * len(size), 4, dtype=np.int32))
    taken = pc.take(pieces, places, boundscheck=False)
    if is_present.all():
        return taken
    _, offsets, content = taken.buffers()
    validity = pa.py_buffer(np.packbits(is_present, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(size), [validity, offsets, content])


def _headers_type() -> Any:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _headers(container: Container, rows: _Rows, value_end: Numbers) -> Any | None:
    """The headers of every row; None if they do not end where the records do."""
    import numpy as np
    import polars as pl
    import pyarrow as pa

    # Nearly always there are none at all: then the last byte of every record is their count, 0.
    if (value_end + 1 == rows.body_end).all() and not np.frombuffer(container.data, np.uint8)[value_end].any():
        count = len(value_end)
        offsets = pa.array(np.zeros(count + 1, dtype=np.int32))
        return pa.ListArray.from_arrays(offsets, pa.nulls(0, _headers_type().value_type)).cast(_headers_type())
    headers, end = read_headers(container.bodies, pl.Series(value_end - rows.body_start))
    if not (end == pl.Series(rows.body_end - rows.body_start)).all(ignore_nulls=False):
        return None
    return headers.to_arrow().cast(_headers_type())


def _from_frame(frame: pl.DataFrame, *, wants_headers: bool) -> ArrowColumns:
    import pyarrow as pa

    return ArrowColumns(
        offset=frame["offset"].to_numpy(),
        timestamp_ms=frame["timestamp_ms"].to_numpy(),
        key=frame["key"].to_arrow().cast(pa.binary()),
        value=frame["value"].to_arrow().cast(pa.binary()),
        headers=frame["headers"].to_arrow().cast(_headers_type()) if wants_headers else None,
    )
