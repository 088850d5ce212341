"""Fields of every row's record at once: found by size, cut out by offset and length.

A `Field` never fails: a row whose bytes make no sense gets a field of some kind and `is_right` false. Positions
only grow from field to field, so if the last one ends where the record ends, all of them lie inside it; that check
is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.codec.batch.records import Headers
from penstock.codec.columns.varint import bytes_through, find_stops, number, word_at

if TYPE_CHECKING:
    import polars as pl

# Each header is a step over the rows that have so many; beyond this the loop over records is as fast.
HEADER_COUNT_MAX: Final = 32
# Where a row's headers end when they make no sense: no record ends there.
NOWHERE: Final = -1


class Field:
    """A key, a value, a header's key or value, of every row."""

    def __init__(self, bodies: pl.Series, start: pl.Series, size: pl.Series) -> None:
        import polars as pl

        is_null = size == -1
        self.is_right = size >= -1
        self._bodies = bodies
        self._start = start
        self.is_present = ~is_null
        # Never negative, whatever the bytes say: Polars refuses to slice by less than nothing.
        self._size = (size + is_null.cast(pl.Int64)) * self.is_right.cast(pl.Int64)
        self.end = start + self._size

    def cut(self) -> pl.Series:
        """The bytes, null where the size is -1. What goes past the end of its record comes out short."""
        import polars as pl

        if not self.is_present.any():
            return pl.Series([None], dtype=pl.Binary).new_from_index(0, len(self._bodies))
        cut = pl.lit(self._bodies).bin.slice(pl.lit(self._start), pl.lit(self._size))
        if not self.is_present.all():
            cut = pl.when(pl.lit(self.is_present)).then(cut)
        return pl.select(cut).to_series()


def read_field(bodies: pl.Series, position: pl.Series) -> Field:
    word = word_at(bodies, position)
    (stop,) = find_stops(word, 1)
    field = Field(bodies, position + bytes_through(stop), number(word, None, stop))
    field.is_right &= stop != 0
    return field


def header_lists(headers: Sequence[Headers]) -> pl.Series:
    """Headers of records as a column. From dictionaries Polars would take 20 microseconds a row."""
    import polars as pl

    entries = pl.DataFrame(
        [
            pl.Series("row", [row for row, entry in enumerate(headers) for _ in entry], dtype=pl.Int64),
            pl.Series("key", [name for entry in headers for name, _ in entry], dtype=pl.String),
            pl.Series("value", [value for entry in headers for _, value in entry], dtype=pl.Binary),
        ]
    )
    return _gather([entries], _no_headers(len(headers)))


def _no_headers(row_count: int) -> pl.Series:
    import polars as pl

    headers_type = pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))
    # A tenth of the time that repeating an empty list takes.
    return pl.select(pl.repeat(None, row_count, dtype=headers_type).fill_null([])).to_series()


def read_headers(bodies: pl.Series, position: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The headers of every row and where they end: `NOWHERE` or null if they do not come out right."""
    import polars as pl

    none = _no_headers(len(bodies))
    # Nearly always there are no headers at all: then the last byte of every record is their count, 0.
    if (position + 1 == bodies.bin.size()).all(ignore_nulls=False) and bodies.bin.ends_with(b"\x00").all():
        return none, position + 1
    word = word_at(bodies, position)
    (stop,) = find_stops(word, 1)
    count = number(word, None, stop)
    start = position + bytes_through(stop)
    row = pl.int_range(len(bodies), eager=True)
    rows = pl.DataFrame({"row": row, "body": bodies, "end": start, "count": count})
    with_headers = rows.filter((pl.col("count") > 0) & (pl.col("count") <= HEADER_COUNT_MAX))
    end = pl.select(pl.when(pl.lit((count == 0) & (stop != 0))).then(pl.lit(start))).to_series()
    if with_headers.is_empty():
        return none, end
    entries, ends = _read_entries(with_headers)
    end.scatter(with_headers["row"], ends)
    return _gather(entries, none), end


def _read_entries(rows: pl.DataFrame) -> tuple[list[pl.DataFrame], pl.Series]:
    """The first header of all rows, the second of those that have one…, and where the last of each row ends."""
    import polars as pl

    entries: list[pl.DataFrame] = []
    ends: list[pl.DataFrame] = []
    active = rows
    while not active.is_empty():
        name = read_field(active["body"], active["end"])
        value = read_field(active["body"], name.end)
        name_text = _as_text(name.cut())
        is_right = (name.is_right & value.is_right & name_text.is_not_null()).fill_null(value=False)
        entries.append(pl.DataFrame({"row": active["row"], "key": name_text, "value": value.cut()}))
        end = pl.when(pl.lit(is_right) & (pl.col("end") >= 0)).then(pl.lit(value.end)).otherwise(NOWHERE)
        active = active.with_columns(end=end)
        ends.append(active.filter(pl.col("count") == len(entries)).select("row", "end"))
        active = active.filter(pl.col("count") > len(entries))
    return entries, pl.concat(ends).sort("row")["end"]


def _as_text(names: pl.Series) -> pl.Series:
    """UTF-8. If one row is not, Polars refuses all: then all are null, and the loop over records sorts it out."""
    import polars as pl

    try:
        return names.cast(pl.String)
    except pl.exceptions.ComputeError:
        return pl.Series([None], dtype=pl.String).new_from_index(0, len(names))


def _gather(entries: list[pl.DataFrame], none: pl.Series) -> pl.Series:
    """Entries (row, key, value) made into lists by row; rows without any keep their empty list."""
    import polars as pl

    all_entries = pl.concat(entries)
    if all_entries.is_empty():
        return none
    gathered = (
        all_entries.sort("row", maintain_order=True)
        .group_by("row", maintain_order=True)
        .agg(headers=pl.struct("key", "value"))
    )
    if len(gathered) == len(none):
        return gathered["headers"]
    rows = pl.DataFrame({"row": pl.int_range(len(none), eager=True), "headers": none})
    others = rows.join(gathered, on="row", how="anti")
    return pl.concat([gathered, others]).sort("row")["headers"]
