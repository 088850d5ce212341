"""Fetched batches as Arrow rows, as the source hands them to Spark. No I/O.

Batches of aborted transactions, control batches and those that lie beyond a span are left out before anything is
decoded, and what lies before or after a span in its first and last batch is cut off afterwards. All that comes together
is decoded at once, however many partitions it is from: the decoder's own cost is for the call, not for the row.

Only what is compressed may be a thousand times larger than it looks. It is decoded in groups, each as large as the rows
of the last one let expect; the first batch goes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.client.kafka.consumer import Fetched
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch, walk_headers
from penstock.codec.columns.arrow import ArrowColumns, read_arrow
from penstock.pipeline.source.filters import Narrowing
from penstock.pipeline.source.ranges import OffsetSpan

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

# Large enough that Spark's cost for each batch does not show, small enough for an executor with many tasks.
ROWS_PER_BATCH: Final = 50_000
# Of one group, decompressed. A group of no more than `DECODE_BYTES` that is not compressed is never divided.
DECODED_BYTES_MAX: Final = 24 * 1024 * 1024
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
    # Of one batch at least, and about how much it is when it is decompressed.
    batch_count: int
    decoded_bytes: int


class ArrowRows:
    """Rows of one topic."""

    decoded_bytes_max = DECODED_BYTES_MAX

    def __init__(self, topic: str, *, includes_headers: bool, narrowing: Narrowing) -> None:
        self._topic = topic
        self._includes_headers = includes_headers
        self._narrowing = narrowing
        # Of a row, as the last group had it.
        self._row_bytes: float | None = None
        self._topics = _Repeated("string")
        self._partitions = _Repeated("int32")
        self._types = _Repeated("int32")

    def batches(self, fetched: Sequence[Fetched], spans: Mapping[int, OffsetSpan]) -> Iterator[pa.RecordBatch]:
        """What of it lies in the spans, by partition."""
        for group in self._groups(fetched, spans):
            yield from self._decoded(group)

    def _groups(self, fetched: Sequence[Fetched], spans: Mapping[int, OffsetSpan]) -> Iterator[list[_Piece]]:
        """What is decoded together. Looked for as it is asked for, since every group tells something of the next."""
        group: list[_Piece] = []
        size = 0
        for part in fetched:
            for piece in _pieces(part, spans[part.partition], self._decoded_bytes, self.decoded_bytes_max):
                if group and size + piece.decoded_bytes > self.decoded_bytes_max:
                    yield group
                    group, size = [], 0
                group.append(piece)
                size += piece.decoded_bytes
        if group:
            yield group

    def _decoded_bytes(self, header: BatchHeader) -> int:
        if header.codec == Codec.NONE:
            return header.size_bytes
        if self._row_bytes is None:
            return self.decoded_bytes_max
        return max(header.size_bytes, int(header.record_count * self._row_bytes))

    def _decoded(self, pieces: list[_Piece]) -> Iterator[pa.RecordBatch]:
        columns = self._read([piece.data for piece in pieces])
        if not isinstance(columns, BatchProblem):
            sizes = [each.nbytes for each in (columns.key, columns.value, columns.headers) if each is not None]
            self._row_bytes = sum(sizes) / max(len(columns.offset), 1)
            yield from self._batches_of(columns, pieces)
        elif sum(piece.batch_count for piece in pieces) > 1:
            # Larger by far than was to be expected, or damaged: one by one it is found out.
            for piece in pieces:
                for single in _singles(piece):
                    yield from self._decoded([single])
        else:
            raise ValueError(self._words_for(pieces[0], columns))

    def _read(self, parts: Sequence[memoryview]) -> ArrowColumns | BatchProblem:
        return read_arrow(parts, wants_headers=self._includes_headers)

    def _words_for(self, piece: _Piece, problem: BatchProblem) -> str:
        """Where whoever reads on has to begin."""
        _, header = next(walk_headers(piece.data))
        offsets = f"offsets {header.base_offset} to {header.last_offset}"
        return f"{self._topic}-{piece.partition}: {offsets} cannot be read: {problem.reason}"

    def _batches_of(self, columns: ArrowColumns, pieces: list[_Piece]) -> list[pa.RecordBatch]:
        import pyarrow as pa

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
            "timestamp": pa.array(_microseconds(columns.timestamp_ms)).view(pa.timestamp("us", tz="UTC")),
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


def _microseconds(times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """A client may send any number: beyond what Spark has room for it is the last moment, not one of the past."""
    import numpy as np

    limit = np.iinfo(np.int64).max // 1000
    if len(times_ms) and (times_ms.max() > limit or times_ms.min() < -limit):
        times_ms = np.clip(times_ms, -limit, limit)
    return times_ms * 1000


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


def _pieces(
    fetched: Fetched, span: OffsetSpan, decoded_bytes_of: Callable[[BatchHeader], int], decoded_bytes_max: int
) -> Iterator[_Piece]:
    """Runs of batches with the same kind of timestamps, without those that are nobody's messages, none of them larger
    than can be decoded at once unless it is a single batch."""
    # A batch may begin before what was asked for: with records of another task, or with deleted ones.
    start, end = max(span.start, fetched.position), span.end
    data, position = fetched.data, 0
    run: _Run | None = None
    while position < len(data):
        header = check_batch(data, position)
        if isinstance(header, BatchProblem):
            raise ValueError(f"{fetched.topic}-{fetched.partition} after {fetched.position}: {header.reason}")
        if header.base_offset >= end:
            # This and all that follow are another task's.
            break
        is_wanted = header.record_count > 0 and not header.is_control and header.base_offset not in fetched.aborted
        timestamp_type = _LOG_APPEND_TIME if header.has_log_append_time else 0
        size = decoded_bytes_of(header) if is_wanted else 0
        if run is not None and (
            not is_wanted or timestamp_type != run.timestamp_type or run.decoded_bytes + size > decoded_bytes_max
        ):
            yield run.piece(fetched, start, end)
            run = None
        if is_wanted:
            run = run or _Run(position, timestamp_type)
            run.record_count += header.record_count
            run.batch_count += 1
            run.decoded_bytes += size
            run.is_cut |= header.base_offset < start or header.next_offset > end
            run.until = position + header.size_bytes
        position += header.size_bytes
    if run is not None:
        yield run.piece(fetched, start, end)


class _Run(msgspec.Struct):
    """A piece that may still grow."""

    since: int
    timestamp_type: int
    until: int = 0
    record_count: int = 0
    batch_count: int = 0
    decoded_bytes: int = 0
    is_cut: bool = False

    def piece(self, fetched: Fetched, start: int, end: int) -> _Piece:
        return _Piece(
            fetched.partition,
            self.timestamp_type,
            fetched.data[self.since : self.until],
            self.record_count,
            start,
            end,
            self.is_cut,
            self.batch_count,
            self.decoded_bytes,
        )


def _singles(piece: _Piece) -> Iterator[_Piece]:
    """A piece for each of its batches."""
    for position, header in walk_headers(piece.data):
        data = piece.data[position : position + header.size_bytes]
        yield msgspec.structs.replace(piece, data=data, record_count=header.record_count, batch_count=1)
