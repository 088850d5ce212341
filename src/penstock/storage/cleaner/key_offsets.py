"""Which offset is the last one of each key: a map in a bounded amount of memory, kept in columns.

A key is known by 128 bits of hash, from two seeds that nobody outside knows: nobody can make up a key that pushes out
somebody else's. Rows are collected as they come and merged when there are enough of them, so that no Python code runs
for each key, and threads that serve readers are let in meanwhile.

    first uint64, second uint64   the key's hash          offset int64   the last one seen

24 bytes a key at rest. The map is held in parts by the first bits of the hash, merged one at a time: what merging takes
for a moment is a part's, not the map's. In the end they are put in order, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

# At the worst moment: the parts, and the same once more in order.
KEY_BYTES_MAX: Final = 64
# Rows to collect at least before they are merged: fewer cost more in calls than in rows.
_MERGE_ROWS_MIN: Final = 1 << 14
_PART_COUNT: Final = 16
_PART_SIZE: Final = 2**64 // _PART_COUNT


class _Part:
    """The keys whose hash begins alike."""

    __slots__ = ("merged", "waiting", "waiting_rows")

    def __init__(self, nothing: pl.DataFrame) -> None:
        self.merged = nothing
        self.waiting: list[pl.DataFrame] = []
        self.waiting_rows = 0

    def add(self, rows: pl.DataFrame) -> None:
        self.waiting.append(rows)
        self.waiting_rows += len(rows)
        if self.waiting_rows >= max(_MERGE_ROWS_MIN, len(self.merged) // 2):
            self.merge()

    def merge(self) -> None:
        import polars as pl

        if self.waiting:
            rows = pl.concat([self.merged, *self.waiting])
            self.waiting, self.waiting_rows = [], 0
            self.merged = rows.group_by("first", "second").agg(pl.col("offset").max())


class KeyOffsets:
    def __init__(self, *, bytes_max: int, seeds: tuple[int, int]) -> None:
        import polars as pl

        self._keys_max = max(bytes_max // KEY_BYTES_MAX, 1)
        self._seeds = seeds
        nothing = pl.DataFrame(schema={"first": pl.UInt64, "second": pl.UInt64, "offset": pl.Int64})
        self._parts = [_Part(nothing) for _ in range(_PART_COUNT)]
        self._in_order: pl.DataFrame | None = None

    def __len__(self) -> int:
        """Keys, and those that may be among them already."""
        return sum(len(part.merged) + part.waiting_rows for part in self._parts)

    @property
    def is_full(self) -> bool:
        """What is noted already counts; the rest of the log is for the next cleaning."""
        if len(self) < self._keys_max:
            return False
        for part in self._parts:
            part.merge()
        return len(self) >= self._keys_max

    def add(self, keys: pl.Series, offsets: pl.Series) -> None:
        """None of the keys is null."""
        import polars as pl

        assert self._in_order is None
        first, second = self._hashes(keys)
        rows = pl.DataFrame({"first": first, "second": second, "offset": offsets, "part": first // _PART_SIZE})
        for (number,), part_rows in rows.partition_by("part", as_dict=True, include_key=False).items():
            self._parts[number].add(part_rows)

    def seal(self) -> None:
        """Nothing is added any more, and questions are answered."""
        import polars as pl

        frames = []
        for part in self._parts:
            part.merge()
            frames.append(part.merged.sort("first"))
            part.merged = part.merged.clear()
        self._in_order = pl.concat(frames, rechunk=True)

    @property
    def offsets(self) -> pl.Series:
        """The last offset of every key, in no order that means anything."""
        assert self._in_order is not None
        return self._in_order["offset"]

    def latest(self, keys: pl.Series) -> pl.Series:
        """The last offset of each key, null if it is not noted.

        Two keys of which half the hash is the same count as not noted, if they do not stand first: that keeps a record
        which could go, and never the other way round.
        """
        import polars as pl

        known = self._in_order
        assert known is not None
        if len(known) == 0:
            return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(keys))
        first, second = self._hashes(keys)
        # By expressions, not by methods of the series: those are evaluated without the interpreter's lock.
        place = pl.select(
            pl.lit(known["first"]).search_sorted(pl.lit(first), side="left").clip(upper_bound=len(known) - 1)
        ).to_series()
        is_known = (known["first"].gather(place) == first) & (known["second"].gather(place) == second)
        return pl.select(pl.when(pl.lit(is_known)).then(pl.lit(known["offset"].gather(place)))).to_series()

    def _hashes(self, keys: pl.Series) -> tuple[pl.Series, pl.Series]:
        return keys.hash(seed=self._seeds[0]), keys.hash(seed=self._seeds[1])
