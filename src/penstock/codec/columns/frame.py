"""Record batches as columns and back: for search, compaction and the console. (For Spark there is `arrow`.)

Reading goes through `read` (no work per record in Python); few records, and batches that it does not
trust, go through the loop of `records`. Both give the same answer. Writing is `write`.

    offset int64, timestamp_ms int64, key binary, value binary, headers list of (key string, value binary)

Polars takes a tenth of a second to import, so it is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchBytes, BatchProblem, read_header
from penstock.codec.batch.records import StoredRecord, parse_records, read_payload
from penstock.codec.columns.fields import header_lists
from penstock.codec.columns.read import Batch, decode
from penstock.codec.columns.write import build_batches_from_columns

if TYPE_CHECKING:
    import polars as pl

__all__ = ["build_batches_from_columns", "read_columns"]

# What compressed batches may grow to, all of one call together.
DECOMPRESSED_BYTES_MAX: Final = 1024 * 1024 * 1024
# Below this the loop is faster: some 200 calls into Polars cost 2 ms, however few the rows.
VECTORED_ROWS_MIN: Final = 1000


def read_columns(
    batches: BatchBytes,
    *,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    vectored_rows_min: int = VECTORED_ROWS_MIN,
) -> pl.DataFrame | BatchProblem:
    """The records of all batches in the buffer, without control batches. Checksums are the caller's matter.

    One batch that cannot be read makes the answer a problem: rows are never left out silently.
    """
    found = open_batches(batches, decompressed_bytes_max)
    if isinstance(found, BatchProblem):
        return found
    row_count = sum(batch.header.record_count for batch in found)
    decoded = decode(found) if row_count >= max(vectored_rows_min, 1) else None
    if decoded is None:
        return _loop(found)
    return decoded.frame if not decoded.failed else _repair(found, decoded.frame, decoded.failed)


def open_batches(data: BatchBytes, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Batch] | BatchProblem:
    """Decompressed batches that hold records for users."""
    found: list[Batch] = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        if isinstance(header, BatchProblem):
            return _at(position, header)
        payload = read_payload(data, position, header, decompressed_bytes_max=decompressed_bytes_max)
        if isinstance(payload, BatchProblem):
            return _at(position, payload)
        if header.codec != Codec.NONE:
            decompressed_bytes_max -= len(payload)
        if header.record_count == 0 and payload:
            return BatchProblem(f"batch at byte {position}: {len(payload)} bytes of no records")
        if header.record_count and not header.is_control:
            found.append(Batch(position, header, payload))
        position += header.size_bytes
    return found


def _at(position: int, problem: BatchProblem) -> BatchProblem:
    return BatchProblem(f"batch at byte {position}: {problem.reason}", is_truncated=problem.is_truncated)


def _loop(batches: list[Batch]) -> pl.DataFrame | BatchProblem:
    records: list[StoredRecord] = []
    for batch in batches:
        parsed = parse_records(batch.header, batch.payload)
        if isinstance(parsed, BatchProblem):
            return _at(batch.position, parsed)
        records += parsed
    return _frame(records)


def _repair(batches: list[Batch], frame: pl.DataFrame, failed: frozenset[int]) -> pl.DataFrame | BatchProblem:
    """The frame with the rows of failed batches read by the loop."""
    import polars as pl

    pieces: list[pl.DataFrame] = []
    row = good_from = 0
    for index, batch in enumerate(batches):
        row_after = row + batch.header.record_count
        if index in failed:
            rows = _loop([batch])
            if isinstance(rows, BatchProblem):
                return rows
            pieces += (frame[good_from:row], rows)
            good_from = row_after
        row = row_after
    return pl.concat([*pieces, frame[good_from:]])


def _frame(records: list[StoredRecord]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame(
        [
            pl.Series("offset", [record.offset for record in records], dtype=pl.Int64),
            pl.Series("timestamp_ms", [record.timestamp_ms for record in records], dtype=pl.Int64),
            pl.Series("key", [record.key for record in records], dtype=pl.Binary),
            pl.Series("value", [record.value for record in records], dtype=pl.Binary),
            header_lists([record.headers for record in records]).alias("headers"),
        ]
    )
