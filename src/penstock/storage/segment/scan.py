"""Walks the batches of a file in large reads: to recover it, to index it anew, to verify it, to look for a moment.

Offsets run on without a gap from batch to batch; holes are *inside* batches. That matters because the base offset lies
outside the checksum: a flipped bit there shows only as a gap. Checksums are computed always: the bytes are read anyway,
and one of them costs less than the header's unpacking.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.base.checksum import crc32c
from penstock.codec.batch.header import CHECKSUM_START, HEADER_BYTES, BatchHeader, BatchProblem, read_header
from penstock.storage.files.protocols import ReadableFile

CHUNK_BYTES: Final = 1 << 20


class BatchScan:
    """Iterate once. Then `position` is where the last good batch ended, and `problem` says why it ended there."""

    def __init__(self, file: ReadableFile, *, start: int, end: int, next_offset: int | None) -> None:
        self.position = start
        # What the next batch must begin with; None: whatever the first one says.
        self.next_offset = next_offset
        self.problem: BatchProblem | None = None
        self._file = file
        self._end = end
        self._chunk = memoryview(b"")
        self._chunk_start = start

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        while self.position < self._end:
            header = self._next()
            if isinstance(header, BatchProblem):
                self.problem = header
                return
            position = self.position
            self.position = position + header.size_bytes
            self.next_offset = header.next_offset
            yield position, header

    def batch(self, header: BatchHeader) -> memoryview:
        """The bytes of the batch that was given out last."""
        end = self.position - self._chunk_start
        return self._chunk[end - header.size_bytes : end]

    def _next(self) -> BatchHeader | BatchProblem:
        header = read_header(self._bytes_from(self.position, HEADER_BYTES), self.position - self._chunk_start)
        if isinstance(header, BatchProblem):
            return header
        size = header.size_bytes
        missing = self.position + size - self._end
        if missing > 0:
            return BatchProblem(f"batch of {size} bytes lacks its last {missing}", is_truncated=True)
        chunk = self._bytes_from(self.position, size)
        start = self.position - self._chunk_start
        if len(chunk) < start + size:
            return BatchProblem(f"batch of {size} bytes lacks its end", is_truncated=True)
        actual = crc32c(chunk[start + CHECKSUM_START : start + size])
        if actual != header.checksum:
            return BatchProblem(f"checksum is {actual:#010x}, expected {header.checksum:#010x}")
        if self.next_offset is not None and header.base_offset != self.next_offset:
            return BatchProblem(f"base offset is {header.base_offset}, expected {self.next_offset}")
        return header

    def _bytes_from(self, position: int, size: int) -> memoryview:
        """A chunk that holds at least so many bytes from the position on, unless the file ends before."""
        if position + size > self._chunk_start + len(self._chunk) or position < self._chunk_start:
            wanted = min(max(size, CHUNK_BYTES), self._end - position)
            self._chunk = memoryview(self._file.read_at(position, wanted))
            self._chunk_start = position
        return self._chunk
