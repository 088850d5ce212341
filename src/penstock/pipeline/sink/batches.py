"""Rows as Spark hands them over into record batches, each for one partition of one topic: by columns, never by row.

Rows of one partition keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.rewrite import header_of
from penstock.codec.columns.frame import build_batches_from_columns
from penstock.codec.columns.write import BATCH_BYTES_MAX
from penstock.pipeline.sink.partitions import choose_partitions

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

# What becomes batches at once. Spark gives 10,000 rows at a time, which eight partitions would make crumbs of.
CHUNK_ROWS_MAX: Final = 100_000
CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024

_BINARY: Final = ("key", "value")
_COLUMNS: Final = ("key", "value", "headers", "topic", "partition")


class TargetError(ValueError):
    """A row names no place that it could go to."""


class TargetBatch(msgspec.Struct, frozen=True):
    """One record batch and where it will stand in the end."""

    topic: str
    partition: int
    data: bytearray
    record_count: int


def chunks(batches: Iterable[pa.RecordBatch], *, rows_max: int = CHUNK_ROWS_MAX) -> Iterator[pl.DataFrame]:
    """Fewer and larger pieces, with the columns that are written."""
    gathered: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        gathered.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= rows_max or size_bytes >= CHUNK_BYTES_MAX:
            yield _as_frame(gathered)
            gathered, rows, size_bytes = [], 0, 0
    if gathered:
        yield _as_frame(gathered)


def _as_frame(batches: list[pa.RecordBatch]) -> pl.DataFrame:
    import polars as pl
    import pyarrow as pa

    table = pa.Table.from_batches(batches)
    frame = pl.from_arrow(table.select([name for name in _COLUMNS if name in table.column_names]))
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(pl.col(name).cast(pl.Binary) for name in _BINARY if name in frame.columns)


def by_topic(frame: pl.DataFrame, topic: str | None) -> list[tuple[str, pl.DataFrame]]:
    """The rows of each topic; `topic`, where it is given, is all of theirs."""
    if topic is not None:
        return [(topic, frame)]
    names = frame["topic"]
    if names.null_count():
        raise TargetError("a row's topic is null, and the option `topic` names none")
    found = names.unique(maintain_order=True).to_list()
    if len(found) == 1:
        return [(found[0], frame)]
    return [(name, frame.filter(names == name)) for name in found]


def build(
    topic: str,
    frame: pl.DataFrame,
    *,
    partition_count: int,
    keyless: int,
    timestamp_ms: int,
    codec: Codec,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> Iterator[TargetBatch]:
    """`keyless` is the partition of rows that neither name one nor have a key."""
    for partition, rows in _by_partition(topic, frame, partition_count, keyless):
        keys = rows["key"] if "key" in rows.columns else None
        built = build_batches_from_columns(
            None if keys is None or keys.null_count() == len(keys) else keys,
            rows["value"],
            timestamp_ms,
            rows["headers"] if "headers" in rows.columns else None,
            codec=codec,
            batch_bytes_max=batch_bytes_max,
        )
        for data in built:
            yield TargetBatch(topic, partition, data, header_of(data).record_count)


def _by_partition(
    topic: str, frame: pl.DataFrame, partition_count: int, keyless: int
) -> Iterator[tuple[int, pl.DataFrame]]:
    import numpy as np

    keys = frame["key"] if "key" in frame.columns else None
    chosen = frame["partition"] if "partition" in frame.columns else None
    if keys is None and chosen is None:
        yield keyless, frame
        return
    partitions = choose_partitions(keys, chosen, partition_count=partition_count, keyless=keyless)
    low, high = int(partitions.min()), int(partitions.max())
    if low < 0 or high >= partition_count:
        wrong = low if low < 0 else high
        raise TargetError(f"topic {topic!r} has no partition {wrong} (it has 0 to {partition_count - 1})")
    if low == high:
        yield low, frame
        return
    # Stable: rows of one partition stay in order.
    order = np.argsort(partitions, kind="stable")
    counts = np.bincount(partitions, minlength=partition_count)
    sorted_frame, start = frame[order], 0
    for partition in np.flatnonzero(counts).tolist():
        end = start + int(counts[partition])
        yield partition, sorted_frame[start:end]
        start = end
