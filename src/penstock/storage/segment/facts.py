"""One segment of a log: a file of whole batches, named by the offset of its first one, and what is known about it.

    <base offset, 20 digits>.log         the batches, byte for byte as they came
    <base offset, 20 digits>.index       where an offset is
    <base offset, 20 digits>.timeindex   where a moment is

The facts (size, records, newest timestamp) are of what was written or recovered; the file may be longer by a write that
is under way, and never counts for more.
"""

from __future__ import annotations

from typing import Final

from penstock.codec.batch.header import LENGTH_PREFIX_BYTES, BatchHeader
from penstock.storage.files.protocols import File
from penstock.storage.segment.index import SegmentIndex
from penstock.storage.segment.verified_ranges import VerifiedRanges

LOG_SUFFIX: Final = ".log"


class Segment:
    __slots__ = (
        "base_offset",
        "begun_ms",
        "file",
        "index",
        "is_active",
        "is_dirty",
        "is_new",
        "is_replaced",
        "max_timestamp",
        "next_offset",
        "path",
        "prefix",
        "record_count",
        "size",
        "verified",
        "was_used",
        "writeback_end",
    )

    def __init__(self, directory: str, base_offset: int, *, begun_ms: int) -> None:
        self.prefix = f"{directory}/{base_offset:020}"
        self.path = self.prefix + LOG_SUFFIX
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.record_count = 0
        self.max_timestamp = -1
        # When its first record came; an idle segment is closed and retired by this clock, not by clients' dates.
        self.begun_ms = begun_ms
        # None: in the index files, loaded when somebody asks.
        self.index: SegmentIndex | None = None
        self.file: File | None = None
        # The one that is written to.
        self.is_active = False
        self.is_dirty = False
        # Its name is not durable yet: the turn that covers its first write also syncs the directory.
        self.is_new = False
        # What a cleaning kept of it stands in its place: its names on disk are another's now.
        self.is_replaced = False
        self.was_used = False
        # The system was asked to begin with writing everything below.
        self.writeback_end = 0
        # Bytes whose checksums this process has seen to be right: by appending, recovering or reading them.
        self.verified = VerifiedRanges()

    def take(self, header: BatchHeader, index_interval_bytes: int) -> None:
        """The batch stands at the end of the segment: live, at recovery, and when an index is made anew."""
        index = self.index
        assert index is not None, "a segment that grows has its index in memory"
        position = self.size
        if position - index.last_position >= index_interval_bytes:
            index.add(
                header.base_offset - self.base_offset,
                position=position,
                records_before=self.record_count,
                max_timestamp=self.max_timestamp,
            )
        self.size = position + header.length + LENGTH_PREFIX_BYTES
        self.next_offset = header.base_offset + header.last_offset_delta + 1
        self.record_count += header.record_count
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp

    def skip(self, position: int, next_offset: int) -> None:
        """What stands at its end up to the position is damaged, and would have held the offsets up to the next."""
        self.size = position
        self.next_offset = next_offset

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset} … {self.next_offset}, {self.size} bytes>"


def base_offset_of(file_name: str) -> int | None:
    """None for a name that is not a segment's."""
    stem = file_name.removesuffix(LOG_SUFFIX)
    if stem == file_name or len(stem) != 20 or not stem.isdigit():
        return None
    return int(stem)
