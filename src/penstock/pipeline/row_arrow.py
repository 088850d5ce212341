"""Fetched batches as Arrow rows, as the source hands them to Spark. No I/O.

Batches of aborted transactions, control batches and those that lie beyond a span are left out before anything is
decoded, and what lies before or after a span in its first and last batch is cut off afterwards. All that comes together
is decoded at once, however many partitions it is from: the decoder's own cost is for the call, not for the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.client.consumer import Fetched
from penstock.codec.columns_arrow import ArrowColumns, read_arrow
from penstock.codec.record_batch import BatchProblem, check_batch
from penstock.pipeline.source_filters import Narrowing
from penstock.pipeline.source_ranges import OffsetSpan

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

# Large enough that Spark's cost for each batch does not show, small enough for an executor with many tasks.
ROWS_PER_BATCH: Final = 50_000
_LOG_APPEND_TIME: Final = 1


class _Piece(msgspec.Struct, frozen=True):
    """Batches that stand one after another, of one partition and one kind of timestamps."""

    partition: int
    timestamp_type: int
    data: memoryview
    record_count: int
    # What is wanted of it, and whether that is less than all.
    start: int
    end: int
    is_cut: bool


class ArrowRows:
    """Rows of one topic."""

    def __init__(self, topic: str, *, includes_headers: bool, narrowing: Narrowing) -> None:
        self._topic = topic
        self._includes_headers = includes_headers
        self._narrowing = narrowing
        self._topics = _Repeated("string")
        self._partitions = _Repeated("int32")
        self._types = _Repeated("int32")

    def batches(self, fetched: Sequence[Fetched], spans: Mapping[int, OffsetSpan]) -> list[pa.RecordBatch]:
        """What of it lies in the spans, by partition."""
        import pyarrow as pa

        pieces = [piece for part in fetched for piece in _pieces(part, spans[part.partition])]
        if not pieces:
            return []
        columns = read_arrow([piece.data for piece in pieces], wants_headers=self._includes_headers)
        if isinstance(columns, BatchProblem):
            partitions = sorted({piece.partition for piece in pieces})
            raise ValueError(f"{self._topic}, partitions {partitions}: {columns.reason}")
        rows = pa.table(self._fields(columns, pieces))
        wanted = self._wanted(columns, pieces)
        if wanted is not None:
            rows = rows.filter(pa.array(wanted)).combine_chunks()
        batches: list[pa.RecordBatch] = rows.to_batches(max_chunksize=ROWS_PER_BATCH)
        return batches

    def _fields(self, columns: ArrowColumns, pieces: list[_Piece]) -> dict[str, pa.Array]:
        import pyarrow as pa

        fields = {
            "key": columns.key,
            "value": columns.value,
            "topic": self._topics.of(self._topic, len(columns.offset)),
            "partition": _numbers_of([piece.partition for piece in pieces], pieces, self._partitions),
            "offset": pa.array(columns.offset),
            "timestamp": pa.array(columns.timestamp_ms * 1000).view(pa.timestamp("us", tz="UTC")),
            "timestampType": _numbers_of([piece.timestamp_type for piece in pieces], pieces, self._types),
        }
        return {**fields, "headers": columns.headers} if self._includes_headers else fields

    def _wanted(self, columns: ArrowColumns, pieces: list[_Piece]) -> npt.NDArray[np.bool_] | None:
        """Which rows lie within their spans and within the times that the query asks for; None: all of them."""
        import numpy as np

        wanted: list[npt.NDArray[np.bool_]] = []
        if any(piece.is_cut for piece in pieces):
            counts = [piece.record_count for piece in pieces]
            wanted.append(columns.offset >= np.repeat([piece.start for piece in pieces], counts))
            wanted.append(columns.offset < np.repeat([piece.end for piece in pieces], counts))
        if self._narrowing.time_ms_min is not None:
            wanted.append(columns.timestamp_ms >= self._narrowing.time_ms_min)
        if self._narrowing.time_ms_end is not None:
            wanted.append(columns.timestamp_ms < self._narrowing.time_ms_end)
        return np.logical_and.reduce(wanted) if wanted else None


class _Repeated:
    """A column that says the same in every row, and nearly always the same as the last time."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._content: str | int | None = None
        self._column: pa.Array = None

    def of(self, content: str | int, row_count: int) -> pa.Array:
        import pyarrow as pa

        if content != self._content or len(self._column) < row_count:
            self._content = content
            self._column = pa.repeat(pa.scalar(content, self._kind), row_count)
        return self._column.slice(0, row_count)


def _numbers_of(numbers: list[int], pieces: list[_Piece], repeated: _Repeated) -> pa.Array:
    """The number of each piece for each of its rows."""
    import numpy as np
    import pyarrow as pa

    counts = [piece.record_count for piece in pieces]
    if len(set(numbers)) == 1:
        return repeated.of(numbers[0], sum(counts))
    return pa.array(np.repeat(np.array(numbers, dtype=np.int32), counts))


def _pieces(fetched: Fetched, span: OffsetSpan) -> Iterator[_Piece]:
    """Runs of batches with the same kind of timestamps, without those that are nobody's messages."""
    # A batch may begin before what was asked for: with records of another task, or with deleted ones.
    start, end = max(span.start, fetched.position), span.end
    data, position = fetched.data, 0
    run_start, run_type, record_count, is_cut = 0, 0, 0, False
    while position < len(data):
        header = check_batch(data, position)
        if isinstance(header, BatchProblem):
            raise ValueError(f"{fetched.topic}-{fetched.partition} after {fetched.position}: {header.reason}")
        if header.base_offset >= end:
            # This and all that follow are another task's.
            break
        is_wanted = not header.is_control and header.base_offset not in fetched.aborted
        timestamp_type = _LOG_APPEND_TIME if header.has_log_append_time else 0
        if record_count and (not is_wanted or timestamp_type != run_type):
            run = data[run_start:position]
            yield _Piece(fetched.partition, run_type, run, record_count, start, end, is_cut)
            record_count, is_cut = 0, False
        if is_wanted and not record_count:
            run_start, run_type = position, timestamp_type
        if is_wanted:
            record_count += header.record_count
            is_cut |= header.base_offset < start or header.next_offset > end
        position += header.size_bytes
    if record_count:
        yield _Piece(fetched.partition, run_type, data[run_start:position], record_count, start, end, is_cut)
