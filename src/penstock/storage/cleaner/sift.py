"""Which records of some batches stay, asked of all of them at once, and where they stand.

    keys of all records ─► last offset of each key ─► stays? ─► runs of neighbours that stay, by batch

No Python code runs for each record: what is done in Python is done for each batch and for each run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penstock.codec.batch.rewrite import horizon_of
from penstock.codec.columns.keys import read_keys
from penstock.codec.columns.read import Batch
from penstock.domain.log.compaction import CleaningRules, survives
from penstock.storage.cleaner.key_offsets import KeyOffsets

if TYPE_CHECKING:
    import polars as pl


class Sifted(msgspec.Struct, frozen=True):
    """What is left of one batch. `runs` are places in its plain payload, (start, end)."""

    record_count: int
    tombstone_count: int
    newest_ms: int
    runs: list[tuple[int, int]]


_NOTHING: Final = Sifted(0, 0, -1, [])


def sift(batches: list[Batch], latest: KeyOffsets, rules: CleaningRules) -> list[Sifted | None]:
    """For each batch, which has at least one record, what is left of it; None if its records cannot be read."""
    import polars as pl

    keys = read_keys(batches)
    sifted = [None if place in keys.unreadable else _NOTHING for place in range(len(batches))]
    frame = keys.frame
    offset = frame["offset"]
    last_offset = latest.latest(frame["key"])
    is_latest = pl.lit(frame["key"].is_not_null()) & pl.lit(offset >= rules.log_start)
    is_latest &= pl.lit(last_offset.is_null()) | pl.lit(offset >= last_offset).fill_null(value=True)
    keeps_tombstones = [rules.keeps_tombstones(horizon_of(batch.header)) for batch in batches]
    stays = survives(
        is_latest=is_latest,
        has_value=pl.col("has_value"),
        keeps_tombstones=pl.lit(pl.Series(keeps_tombstones, dtype=pl.Boolean).gather(frame["owner"])),
    )
    kept = frame.with_columns(start=_starts(batches, frame, keys.unreadable)).filter(stays)
    _note_kept(sifted, kept)
    return sifted


def _starts(batches: list[Batch], frame: pl.DataFrame, unreadable: frozenset[int]) -> pl.Series:
    """Where each record begins in its batch's payload."""
    import polars as pl

    before = 0
    before_batch: list[int] = []
    for place, batch in enumerate(batches):
        before_batch.append(before)
        if place not in unreadable:
            before += len(batch.payload)
    size_bytes = frame["size_bytes"]
    return size_bytes.cum_sum() - size_bytes - pl.Series(before_batch, dtype=pl.Int64).gather(frame["owner"])


def _note_kept(sifted: list[Sifted | None], kept: pl.DataFrame) -> None:
    import polars as pl

    end = pl.col("start") + pl.col("size_bytes")
    begins = (pl.col("start") != end.shift()) | (pl.col("owner") != pl.col("owner").shift())
    # A run ends where the next row begins one.
    rows = kept.with_columns(end=end, begins=begins.fill_null(value=True)).with_columns(
        ends=pl.col("begins").shift(-1, fill_value=True)
    )
    starts = rows.filter(pl.col("begins"))["start"].to_list()
    ends = rows.filter(pl.col("ends"))["end"].to_list()
    counts = rows.group_by("owner", maintain_order=True).agg(
        pl.len(),
        tombstones=(~pl.col("has_value")).sum(),
        newest_ms=pl.col("timestamp_ms").max(),
        runs=pl.col("begins").sum(),
    )
    first_run = 0
    for owner, record_count, tombstone_count, newest_ms, run_count in counts.iter_rows():
        last_run = first_run + run_count
        runs = list(zip(starts[first_run:last_run], ends[first_run:last_run], strict=True))
        sifted[owner] = Sifted(record_count, tombstone_count, newest_ms, runs)
        first_run = last_run
