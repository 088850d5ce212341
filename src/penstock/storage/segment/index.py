"""Where in a segment an offset or a moment is: sparse, in memory, in the order of the log.

An entry stands for a batch that begins at least `index_interval_bytes` after the batch of the entry before:

    offset index   (relative offset, position, records of the segment before it)
    time index     (largest timestamp before it, relative offset), kept only when that timestamp grew

The segment's first batch needs no entry. Positions are always beginnings of batches, so a read may also *end* there
without looking at what lies between.

The loop appends while threads search: `offsets` grows last, and searches never look past its length.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

ENTRY_MAX: Final = 2**32 - 1


class SegmentIndex:
    __slots__ = (
        "counts",
        "covered_bytes",
        "covered_max_timestamp",
        "covered_records",
        "last_position",
        "offsets",
        "positions",
        "saved_bytes",
        "saved_entries",
        "saved_time_bytes",
        "saved_time_entries",
        "time_offsets",
        "times",
    )

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")
        self.counts = array("I")
        self.times = array("q")
        self.time_offsets = array("I")
        self.last_position = 0
        # What the saved part stands for: everything in the segment below `covered_bytes` is indexed.
        self.covered_bytes = 0
        self.covered_records = 0
        self.covered_max_timestamp = -1
        # How much of the arrays is in the files, and how long those files are.
        self.saved_entries = 0
        self.saved_time_entries = 0
        self.saved_bytes = 0
        self.saved_time_bytes = 0

    def add(self, relative_offset: int, *, position: int, records_before: int, max_timestamp: int) -> None:
        """`max_timestamp` is the largest of all batches before this one."""
        if max_timestamp > (self.times[-1] if self.times else -1):
            self.time_offsets.append(relative_offset)
            self.times.append(max_timestamp)
        self.positions.append(position)
        self.counts.append(records_before)
        self.offsets.append(relative_offset)
        self.last_position = position

    def floor(self, relative_offset: int) -> tuple[int, int, int]:
        """The last entry at or before the offset: its relative offset, position and records before it."""
        place = bisect_right(self.offsets, relative_offset)
        if place == 0:
            return 0, 0, 0
        place -= 1
        return self.offsets[place], self.positions[place], self.counts[place]

    def position_at_or_below(self, position: int) -> int:
        """The last known beginning of a batch that is not past the position."""
        place = bisect_right(self.positions, position, 0, len(self.offsets))
        return self.positions[place - 1] if place else 0

    def offset_before_time(self, timestamp_ms: int) -> int:
        """A relative offset below which every batch is older than the moment."""
        place = bisect_left(self.times, timestamp_ms)
        return self.time_offsets[place - 1] if place else 0

    def truncate(self, position: int) -> None:
        """The segment now ends at `position`; what was saved past it no longer holds."""
        place = bisect_left(self.positions, position)
        del self.offsets[place:], self.positions[place:], self.counts[place:]
        self.last_position = self.positions[-1] if self.positions else 0
        last_offset = self.offsets[-1] if self.offsets else -1
        place = bisect_right(self.time_offsets, last_offset)
        del self.times[place:], self.time_offsets[place:]
        if self.covered_bytes > position:
            self.forget_saved()

    def forget_saved(self) -> None:
        """The files are to be written anew from their beginning."""
        self.covered_bytes = self.covered_records = 0
        self.covered_max_timestamp = -1
        self.saved_entries = self.saved_time_entries = 0
        self.saved_bytes = self.saved_time_bytes = 0
