"""Headers of every row as an Arrow column of lists of (key string, value binary).

The first header of all rows that have one is found at once, then the second of those that have two, and so on. As it is
known how many headers there are before each row's, each goes to its place in the list of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.codec.columns.fields import HEADER_COUNT_MAX
from penstock.codec.columns.words import Sized, cut_out, read_sized

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock.codec.columns.words import Numbers


def headers_type() -> Any:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def read_headers(data: bytes, words: Numbers, position: Numbers, body_end: Numbers) -> Any | None:
    """None: a row's headers are more than `HEADER_COUNT_MAX`, or are not text, or do not end where its record does.

    IndexError: a header would end outside of all bytes.
    """
    import numpy as np
    import pyarrow as pa

    # Their count is written as the size of a field is, and they begin where the field would.
    counted = read_sized(words, position)
    count = counted.size
    # A header is two bytes at least: a count that is a lie takes no memory.
    has_room = counted.start + 2 * count <= body_end
    if not (counted.is_right & (count >= 0) & (count <= HEADER_COUNT_MAX) & has_room).all():
        return None
    offsets = np.zeros(len(count) + 1, dtype=np.int32)
    np.cumsum(count, out=offsets[1:])
    entries = _read_entries(words, counted.start, count, offsets, body_end)
    if entries is None:
        return None
    if not len(entries[0].size):
        content = pa.nulls(0, headers_type().value_type)
    else:
        names, values = cut_out(data, *entries)
        try:
            content = pa.StructArray.from_arrays([names.cast(pa.string()), values], ["key", "value"])
        except pa.ArrowInvalid:
            # Not UTF-8.
            return None
    return pa.ListArray.from_arrays(pa.array(offsets), content, type=headers_type())


def _read_entries(
    words: Numbers, position: Numbers, count: Numbers, offsets: npt.NDArray[np.int32], body_end: Numbers
) -> tuple[Sized, Sized] | None:
    """Names and values of all headers of all rows, in order; None if the last one does not end with its record."""
    import numpy as np

    found = np.empty((6, int(offsets[-1])), dtype=np.int64)
    position = position.copy()
    row = np.flatnonzero(count)
    step = 0
    while len(row):
        name = read_sized(words, position[row])
        value = read_sized(words, name.end)
        if not (name.is_right & (name.size >= 0) & value.is_right).all():
            return None
        found[:, offsets[row] + step] = (name.size, name.start, name.end, value.size, value.start, value.end)
        position[row] = value.end
        step += 1
        row = row[count[row] > step]
    if not (position == body_end).all():
        return None
    is_right = np.ones(found.shape[1], dtype=np.bool_)
    return Sized(found[0], found[1], found[2], is_right), Sized(found[3], found[4], found[5], is_right)
