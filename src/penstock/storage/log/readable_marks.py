"""Where a log that was read from its files may be read up to, and where that end can move to: places between batches.

A running log knows the end of every batch past its readable end. One that was just read from the disk knows those that
its indexes have; the readable end then goes from one to the next. Blocking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.storage.context import StoreContext
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.scan import BatchScan

# An offset between two batches, and where it stands.
Mark = tuple[int, Segment, int]

# Of one log, about 10 MB. Only a log whose watermark was never saved has more, and then every so many will do.
MARKS_MAX: Final = 100_000


def find_marks(
    context: StoreContext, segments: Sequence[Segment], *, readable_end: int, log_start: int
) -> tuple[Mark, ...]:
    """The first one is the last at or below `readable_end`, the last one is the end of the log; none in a log without
    segments. What was deleted was readable, so the end is at least where the batch ends that holds the start."""
    if not segments:
        return ()
    first = _first_mark(context, segments, max(readable_end, log_start), log_start)
    behind = [segment for segment in segments if segment.next_offset > first[0]]
    bytes_per_mark = sum(segment.size for segment in behind) // MARKS_MAX
    later: list[Mark] = []
    for segment in behind:
        later += _marks_in(context, segment, first[0], bytes_per_mark)
    marks = (first, *later)
    # Damage may lie between the two.
    return marks[next(place for place, mark in enumerate(marks) if mark[0] >= log_start) :]


def _first_mark(context: StoreContext, segments: Sequence[Segment], readable_end: int, log_start: int) -> Mark:
    segment = next((each for each in reversed(segments) if each.base_offset <= readable_end), segments[0])
    if readable_end >= segment.next_offset:
        return segment.next_offset, segment, segment.size
    file = context.files.open(segment.path)
    relative, position, _ = context.indexes.index_of(segment, file).floor(readable_end - segment.base_offset)
    mark = (segment.base_offset + relative, segment, position)
    for place, header in BatchScan(file, start=position, end=segment.size, next_offset=mark[0]):
        if header.next_offset > readable_end and mark[0] >= log_start:
            break
        mark = (header.next_offset, segment, place + header.size_bytes)
    return mark


def _marks_in(context: StoreContext, segment: Segment, after: int, bytes_per_mark: int) -> Iterator[Mark]:
    index = context.indexes.index_of(segment, context.files.open(segment.path))
    last_position = -bytes_per_mark
    for relative, position in zip(index.offsets, index.positions, strict=True):
        offset = segment.base_offset + relative
        if offset > after and position - last_position >= bytes_per_mark:
            last_position = position
            yield offset, segment, position
    yield segment.next_offset, segment, segment.size
