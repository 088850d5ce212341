"""Indexes on disk: `.index` and `.timeindex`, grown by one block at each checkpoint.

    file    magic (8), then blocks
    block   entries (4) · covered bytes (4) · covered records (4) · covered max timestamp (8) · CRC-32C (4) · columns

Block n of both files comes from the same checkpoint and covers the same bytes of the log. Reading stops at the first
block that is not whole, or whose twin is not: what lies past it is found again by walking the log. So nothing here has
to be synced for correctness, only for a quick start.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.storage.files.protocols import File, Files
from penstock.storage.files.small import write_fully
from penstock.storage.segment.index import SegmentIndex

INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"

INDEX_MAGIC: Final = b"psindex1"
TIME_INDEX_MAGIC: Final = b"pstimei1"

_FACTS = struct.Struct("<IIIq")
_CHECKSUM = struct.Struct("<I")
_HEAD_BYTES: Final = _FACTS.size + _CHECKSUM.size
_ENTRY_BYTES: Final = 12


class IndexBlock(msgspec.Struct, frozen=True):
    entry_count: int
    covered_bytes: int
    covered_records: int
    covered_max_timestamp: int
    columns: memoryview
    end: int


class IndexDelta(msgspec.Struct, frozen=True):
    """What a checkpoint adds to one segment's two files: bytes, taken on the loop, written in a thread."""

    prefix: str
    position: int
    data: bytes
    time_position: int
    time_data: bytes

    def write(self, files: Files) -> list[File]:
        """The files written, which are not synced yet."""
        written = []
        for suffix, position, data in (
            (INDEX_SUFFIX, self.position, self.data),
            (TIME_INDEX_SUFFIX, self.time_position, self.time_data),
        ):
            file = files.open(self.prefix + suffix, create=True)
            # Whatever stands there is of a time before a crash or a truncation.
            if file.size() > position:
                file.truncate(position)
            write_fully(file, data, position)
            written.append(file)
        return written


def take_delta(
    index: SegmentIndex, prefix: str, *, covered_bytes: int, covered_records: int, max_timestamp: int
) -> IndexDelta:
    """The entries that are not in the files yet, for a log that is whole and durable up to `covered_bytes`."""
    facts = (covered_bytes, covered_records, max_timestamp)
    columns = (
        index.offsets[index.saved_entries :].tobytes()
        + index.positions[index.saved_entries :].tobytes()
        + index.counts[index.saved_entries :].tobytes()
    )
    time_columns = (
        index.times[index.saved_time_entries :].tobytes() + index.time_offsets[index.saved_time_entries :].tobytes()
    )
    data = _pack_block(columns, facts)
    time_data = _pack_block(time_columns, facts)
    if index.saved_bytes == 0:
        data = INDEX_MAGIC + data
        time_data = TIME_INDEX_MAGIC + time_data
    return IndexDelta(prefix, index.saved_bytes, data, index.saved_time_bytes, time_data)


def note_saved(index: SegmentIndex, delta: IndexDelta) -> None:
    """The delta is on disk; nothing was taken from this index in between."""
    head = len(INDEX_MAGIC) if delta.position == 0 else 0
    block = next(_blocks(memoryview(delta.data), head))
    time_block = next(_blocks(memoryview(delta.time_data), head))
    index.saved_entries += block.entry_count
    index.saved_time_entries += time_block.entry_count
    index.saved_bytes = delta.position + len(delta.data)
    index.saved_time_bytes = delta.time_position + len(delta.time_data)
    index.covered_bytes = block.covered_bytes
    index.covered_records = block.covered_records
    index.covered_max_timestamp = block.covered_max_timestamp


def load_index(files: Files, prefix: str) -> SegmentIndex:
    """What the files prove; nothing, if they are missing or bad. `covered_bytes` says how far that is."""
    index = SegmentIndex()
    data = _read(files, prefix + INDEX_SUFFIX, INDEX_MAGIC)
    time_data = _read(files, prefix + TIME_INDEX_SUFFIX, TIME_INDEX_MAGIC)
    if data is None or time_data is None:
        return index
    pairs = zip(_blocks(data, len(INDEX_MAGIC)), _blocks(time_data, len(TIME_INDEX_MAGIC)), strict=False)
    for block, time_block in pairs:
        if block.covered_bytes != time_block.covered_bytes or block.covered_bytes < index.covered_bytes:
            break
        _adopt(index, block, time_block)
    index.last_position = index.positions[-1] if index.positions else 0
    return index


def _adopt(index: SegmentIndex, block: IndexBlock, time_block: IndexBlock) -> None:
    third = block.entry_count * 4
    index.offsets.frombytes(block.columns[:third])
    index.positions.frombytes(block.columns[third : 2 * third])
    index.counts.frombytes(block.columns[2 * third :])
    times_end = time_block.entry_count * 8
    index.times.frombytes(time_block.columns[:times_end])
    index.time_offsets.frombytes(time_block.columns[times_end:])
    index.saved_entries = len(index.offsets)
    index.saved_time_entries = len(index.times)
    index.saved_bytes = block.end
    index.saved_time_bytes = time_block.end
    index.covered_bytes = block.covered_bytes
    index.covered_records = block.covered_records
    index.covered_max_timestamp = block.covered_max_timestamp


def _pack_block(columns: bytes, facts: tuple[int, int, int]) -> bytes:
    body = _FACTS.pack(len(columns) // _ENTRY_BYTES, *facts)
    return body + _CHECKSUM.pack(crc32c(body + columns)) + columns


def _blocks(data: memoryview, position: int) -> Iterator[IndexBlock]:
    while position + _HEAD_BYTES <= len(data):
        entry_count, covered_bytes, covered_records, max_timestamp = _FACTS.unpack_from(data, position)
        (checksum,) = _CHECKSUM.unpack_from(data, position + _FACTS.size)
        start = position + _HEAD_BYTES
        end = start + entry_count * _ENTRY_BYTES
        if end > len(data):
            return
        columns = data[start:end]
        if crc32c(bytes(data[position : position + _FACTS.size]) + bytes(columns)) != checksum:
            return
        yield IndexBlock(entry_count, covered_bytes, covered_records, max_timestamp, columns, end)
        position = end


def _read(files: Files, path: str, magic: bytes) -> memoryview | None:
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    data = file.read_at(0, file.size())
    return memoryview(data) if data.startswith(magic) else None


assert array("I").itemsize == 4, "index columns are 32 bits"
assert array("q").itemsize == 8, "timestamps are 64 bits"
