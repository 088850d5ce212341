"""Reads one segment past what is known of it, and judges a bad place: torn end or damage. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from penstock.codec.record_batch import BatchHeader, BatchProblem
from penstock.storage.batch_scan import BatchScan
from penstock.storage.batch_search import find_batch_after
from penstock.storage.file_protocols import File, Files
from penstock.storage.index_file import load_index
from penstock.storage.segment import Segment
from penstock.storage.segment_index import ENTRY_MAX, SegmentIndex
from penstock.storage.store_context import StoreContext


class SegmentScan(msgspec.Struct, frozen=True):
    """`problem` at the segment's new end; None: good to the end of the file."""

    scanned_bytes: int
    problem: BatchProblem | None


def scan_segment(
    context: StoreContext,
    segment: Segment,
    file: File,
    *,
    file_bytes: int,
    on_batch: Callable[[BatchHeader, BatchScan], None],
) -> SegmentScan:
    """Takes every good batch past `segment.size` into the segment, indexed as if it had just been appended."""
    index = load_index(context.files, segment.prefix) if segment.size > 0 else SegmentIndex()
    if index.covered_bytes < segment.size:
        # The index ends earlier: begin with its last entry, so that it has no gap.
        relative_offset, segment.size, segment.record_count = index.floor(ENTRY_MAX)
        segment.next_offset = segment.base_offset + relative_offset
        segment.max_timestamp = index.times[-1] if index.times else -1
    index.truncate(segment.size)
    segment.index = index
    start = segment.size
    segment.verified.forget_below(start)
    scan = BatchScan(file, start=start, end=file_bytes, next_offset=segment.next_offset)
    for _, header in scan:
        segment.take(header, context.config.index_interval_bytes)
        on_batch(header, scan)
    return SegmentScan(file_bytes - start, scan.problem)


def holds_a_batch_after(
    files: Files,
    segment: Segment,
    file: File,
    *,
    file_bytes: int,
    problem: BatchProblem,
    later: Sequence[tuple[str, int]],
) -> bool:
    """Whether anything good follows the segment's new end, there or in later segments (path, bytes)."""
    scan = BatchScan(file, start=segment.size, end=file_bytes, next_offset=None)
    # A batch whose checksum is right but whose offset is not: no torn write looks like that.
    if not problem.is_truncated and next(iter(scan), None) is not None:
        return True
    offset_min = segment.next_offset
    if find_batch_after(file, start=segment.size + 1, end=file_bytes, offset_min=offset_min) is not None:
        return True
    return any_holds_a_batch(files, later, offset_min)


def any_holds_a_batch(files: Files, segments: Sequence[tuple[str, int]], offset_min: int) -> bool:
    return any(
        find_batch_after(files.open(path), start=0, end=size, offset_min=offset_min) is not None
        for path, size in segments
        if size > 0
    )
