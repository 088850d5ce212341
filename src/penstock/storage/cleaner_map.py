"""Which offset is the last one of each key: a map in a bounded amount of memory, kept in columns.

A key is known by 128 bits of hash, from two seeds that nobody outside knows: nobody can make up a key that pushes out
somebody else's. Rows are collected as they come and merged when there are enough of them, so that no Python code runs
for each key, and threads that serve readers are let in meanwhile.

    first uint64, second uint64   the key's hash          offset int64   the last one seen

24 bytes a key at rest; merging and sorting take a few times that for a moment, which the bound counts in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

# At the worst moment (measured): the map, as many rows to be merged into it, both side by side, and the hash table of
# the merge.
KEY_BYTES_MAX: Final = 160
# Rows to collect at least before they are merged: fewer cost more in calls than in rows.
_MERGE_ROWS_MIN: Final = 1 << 16


class KeyOffsets:
    def __init__(self, *, bytes_max: int, seeds: tuple[int, int]) -> None:
        self._keys_max = max(bytes_max // KEY_BYTES_MAX, 1)
        self._seeds = seeds
        self._merged: pl.DataFrame | None = None
        self._waiting: list[pl.DataFrame] = []
        self._waiting_rows = 0
        self.is_sealed = False

    def __len__(self) -> int:
        return 0 if self._merged is None else len(self._merged)

    @property
    def is_full(self) -> bool:
        """What is noted already counts; the rest of the log is for the next cleaning."""
        if len(self) + self._waiting_rows > self._keys_max:
            self._merge()
        return len(self) >= self._keys_max

    def add(self, keys: pl.Series, offsets: pl.Series) -> None:
        """Offsets grow from row to row and from call to call. None of the keys is null."""
        import polars as pl

        assert not self.is_sealed
        first, second = self._hashes(keys)
        self._waiting.append(pl.DataFrame({"first": first, "second": second, "offset": offsets}))
        self._waiting_rows += len(keys)
        if self._waiting_rows >= max(_MERGE_ROWS_MIN, len(self)):
            self._merge()

    def seal(self) -> None:
        """Nothing is added any more, and questions are answered."""
        import polars as pl

        self._merge()
        if self._merged is None:
            self._merged = pl.DataFrame(schema={"first": pl.UInt64, "second": pl.UInt64, "offset": pl.Int64})
        self._merged = self._merged.sort("first")
        self.is_sealed = True

    def latest(self, keys: pl.Series) -> pl.Series:
        """The last offset of each key, null if it is not noted.

        Two keys of which half the hash is the same count as not noted, if they do not stand first: that keeps a record
        which could go, and never the other way round.
        """
        import polars as pl

        assert self.is_sealed
        assert self._merged is not None
        if len(self._merged) == 0:
            return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(keys))
        first, second = self._hashes(keys)
        known = self._merged
        # By expressions, not by methods of the series: those are evaluated without the interpreter's lock.
        place = pl.select(
            pl.lit(known["first"]).search_sorted(pl.lit(first), side="left").clip(upper_bound=len(known) - 1)
        ).to_series()
        is_known = (known["first"].gather(place) == first) & (known["second"].gather(place) == second)
        return pl.select(pl.when(pl.lit(is_known)).then(pl.lit(known["offset"].gather(place)))).to_series()

    def _hashes(self, keys: pl.Series) -> tuple[pl.Series, pl.Series]:
        return keys.hash(seed=self._seeds[0]), keys.hash(seed=self._seeds[1])

    def _merge(self) -> None:
        import polars as pl

        if not self._waiting:
            return
        frames = self._waiting if self._merged is None else [self._merged, *self._waiting]
        self._waiting, self._waiting_rows, self._merged = [], 0, None
        self._merged = pl.concat(frames).group_by("first", "second").agg(pl.col("offset").max())
