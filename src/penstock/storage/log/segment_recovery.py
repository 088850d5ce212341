"""Reads one segment past what is known of it, and judges a bad place: torn end or damage. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.codec.batch.header import BatchHeader, BatchProblem
from penstock.storage.context import StoreContext
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import File, Files
from penstock.storage.log.checkpoint_file import SegmentCheckpoint
from penstock.storage.segment.damage_search import misplaced_batch
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.index import ENTRY_MAX, SegmentIndex
from penstock.storage.segment.index_file import load_index
from penstock.storage.segment.scan import BatchScan
from penstock.storage.segment.search import OFFSET_REACH, find_batch_after, find_next_batch


def believe(segment: Segment, facts: SegmentCheckpoint) -> None:
    """As the checkpoint has it; its bytes are checked when they are read."""
    segment.begun_ms = facts.begun_ms
    segment.next_offset = facts.next_offset
    segment.size = facts.size_bytes
    segment.record_count = facts.record_count
    segment.max_timestamp = facts.max_timestamp
    segment.verified.forget_below(facts.size_bytes)


def begin_scan(context: StoreContext, segment: Segment) -> int:
    """Where it begins: at the segment's end, as far as its index reaches there."""
    index = load_index(context.files, segment.prefix) if segment.size > 0 else SegmentIndex()
    if index.covered_bytes < segment.size:
        # The index ends earlier: begin with its last entry, so that it has no gap.
        relative_offset, segment.size, segment.record_count = index.floor(ENTRY_MAX)
        segment.next_offset = segment.base_offset + relative_offset
        segment.max_timestamp = index.times[-1] if index.times else -1
    index.truncate(segment.size)
    segment.index = index
    segment.verified.forget_below(segment.size)
    return segment.size


def scan_on(
    context: StoreContext,
    segment: Segment,
    file: File,
    *,
    file_bytes: int,
    on_batch: Callable[[BatchHeader, BatchScan], None],
) -> BatchProblem | None:
    """Takes every good batch past `segment.size` into the segment, indexed as if it had just been appended. What is
    wrong with the next one, if it is not the end of the file."""
    scan = BatchScan(file, start=segment.size, end=file_bytes, next_offset=segment.next_offset)
    for _, header in scan:
        segment.take(header, context.config.index_interval_bytes)
        on_batch(header, scan)
    return scan.problem


class Verdict(msgspec.Struct, frozen=True):
    """What follows a bad place. Neither damage nor a lost end: nothing whole does, it is the torn end of a write."""

    damage: Damage | None = None
    is_end_lost: bool = False


_TORN: Final = Verdict()


def judge(
    files: Files,
    segment: Segment,
    file: File,
    *,
    file_bytes: int,
    problem: BatchProblem,
    later: Sequence[tuple[int, str, int]],
) -> Verdict:
    """Of the bad place at the segment's new end. `later`: base offset, path and bytes of the segments after it."""
    position, offset = segment.size, segment.next_offset
    filled = [(base, path, size) for base, path, size in later if size > 0]
    offset_limit = filled[0][0] if filled else offset + OFFSET_REACH
    found = find_next_batch(file, position=position, end=file_bytes, offset_min=offset + 1)
    if found is not None and found.base_offset < 0 and not filled:
        return Verdict(is_end_lost=True)
    if found is not None and 0 <= found.base_offset < offset_limit:
        return Verdict(_damage(segment, problem, found.position, found.base_offset))
    # A batch whose checksum is right but whose offset is not: no torn write looks like that.
    misplaced = None if problem.is_truncated else misplaced_batch(file, position, file_bytes)
    if misplaced is not None and offset + misplaced.last_offset_delta < offset_limit:
        end = position + misplaced.size_bytes
        return Verdict(_damage(segment, problem, end, offset + misplaced.last_offset_delta + 1))
    if found is not None or any_holds_a_batch(files, [(path, size) for _, path, size in filled], offset):
        return Verdict(_damage(segment, problem, file_bytes, offset_limit))
    return _TORN


def _damage(segment: Segment, problem: BatchProblem, position_end: int, offset_end: int) -> Damage:
    return Damage(
        segment.next_offset,
        segment.base_offset,
        segment.size,
        problem.reason,
        offset_end=offset_end,
        position_end=position_end,
    )


def any_holds_a_batch(files: Files, segments: Sequence[tuple[str, int]], offset_min: int) -> bool:
    return any(
        find_batch_after(files.open(path), start=0, end=size, offset_min=offset_min) is not None
        for path, size in segments
        if size > 0
    )
