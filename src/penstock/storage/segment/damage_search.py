"""How far a damaged place reaches: to the next whole batch, and never past what is known to be one. Blocking.

Bytes that are no batch do not say where they end. What does, in this order: the length in the bad header, if a whole
batch stands where it points; the next bytes that are one, of this log and of a later offset; the next entry of the
index, which knows where batches begin; the end of the segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import ReadableFile
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.index import SegmentIndex
from penstock.storage.segment.scan import BatchScan
from penstock.storage.segment.search import find_next_batch

# A batch begins at this position with this offset, or the segment ends there.
Boundary = tuple[int, int]


def find_damage(
    file: ReadableFile,
    segment: Segment,
    index: SegmentIndex | None,
    *,
    position: int,
    offset: int,
    end: Boundary,
    reason: str,
) -> Damage:
    """The batch at `position`, which should begin with `offset`, is bad. `end`: of what is known to be there."""
    limit_position, limit_offset = _next_entry(segment, index, position, end)
    if file.size() < limit_position:
        limit_position, limit_offset = end  # nothing of it is there
    found = find_next_batch(file, position=position, end=limit_position, offset_min=offset + 1)
    # What stands where the index ends is a batch of the offset that it says.
    if found is not None and offset < found.base_offset < limit_offset:
        limit_position, limit_offset = found.position, found.base_offset
    return Damage(
        offset,
        segment.base_offset,
        position,
        reason,
        # At least one, whatever those say who know no better.
        offset_end=max(limit_offset, offset + 1),
        position_end=limit_position,
    )


def _next_entry(segment: Segment, index: SegmentIndex | None, position: int, end: Boundary) -> Boundary:
    if index is not None:
        place = bisect_right(index.positions, position, 0, len(index.offsets))
        if place < len(index.offsets) and index.positions[place] < end[0]:
            return index.positions[place], segment.base_offset + index.offsets[place]
    return end


def is_mended(file: ReadableFile, damage: Damage) -> bool:
    """Whether whole batches stand in the place after all: somebody put the bytes back."""
    if damage.position_end <= damage.position:
        return False
    scan = BatchScan(file, start=damage.position, end=damage.position_end, next_offset=damage.offset)
    for _ in scan:
        pass
    return scan.problem is None and scan.next_offset == damage.offset_end


def misplaced_batch(file: ReadableFile, position: int, end: int) -> BatchHeader | None:
    """A batch whose checksum is right stands there; its base offset, which no checksum covers, may say anything."""
    scan = BatchScan(file, start=position, end=end, next_offset=None)
    found = next(iter(scan), None)
    return None if found is None else found[1]


def scan_past_damage(
    file: ReadableFile,
    segment: Segment,
    index: SegmentIndex | None,
    *,
    start: tuple[int, int | None],
    end: Boundary,
    on_damage: Callable[[Damage], None],
) -> Iterator[tuple[int, BatchHeader, BatchScan]]:
    """Every whole batch of a part of a segment, and the scan that has its bytes; each bad place is told and skipped."""
    position, next_offset = start
    while position < end[0]:
        scan = BatchScan(file, start=position, end=end[0], next_offset=next_offset)
        for place, header in scan:
            yield place, header, scan
        if scan.problem is None:
            return
        # Where not even the first batch told its offset, nothing but the segment's own is known.
        offset = segment.base_offset if scan.next_offset is None else scan.next_offset
        damage = find_damage(
            file,
            segment,
            index,
            position=scan.position,
            offset=offset,
            end=end,
            reason=scan.problem.reason,
        )
        on_damage(damage)
        position, next_offset = damage.position_end, damage.offset_end


def are_whole(batches: bytes | bytearray | memoryview) -> bool:
    """Whether every one of some batches that were read has its checksum."""
    place = 0
    while place < len(batches):
        header = check_batch(batches, place)
        if isinstance(header, BatchProblem):
            return False
        place += header.size_bytes
    return True
