"""Single batches of a log, scattered over all of it, by an offset that each holds.

A reader that goes on (`read_plan`) reads much at once and remembers what was checked. Here nothing follows, and little
is asked for twice: each read is what lies between two entries of the index, and of it only the batch that is wanted is
checked. The loop plans by segments; a thread reads.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from penstock.codec.record_batch import LENGTH_PREFIX_BYTES, BatchHeader, BatchProblem, check_batch
from penstock.storage.file_protocols import File
from penstock.storage.partition_log import PartitionLog
from penstock.storage.segment import Segment
from penstock.storage.storage_errors import Damage

# Base offset, length and last offset delta.
_PEEK = struct.Struct(">qi11xi")


class BatchLookup:
    """Batches of one segment."""

    __slots__ = ("_end", "_file", "_log", "_offsets", "_segment")

    def __init__(self, log: PartitionLog, segment: Segment, file: File, offsets: Sequence[int]) -> None:
        """By `plan_lookups`."""
        self._log = log
        self._segment = segment
        self._file = file
        self._offsets = offsets
        # What is written past it while the thread reads is nobody's business.
        self._end = segment.size

    def batches(self) -> Iterator[tuple[int, memoryview, BatchHeader]]:
        """Blocking: for each offset the batch that holds it, checked. Offsets whose batch is gone or damaged are left
        out; damage is noted."""
        segment = self._segment
        try:
            index = self._log.context.indexes.index_of(segment, self._file)
            known_start, buffer = -1, b""
            for offset in self._offsets:
                place = bisect_right(index.offsets, offset - segment.base_offset)
                start = index.positions[place - 1] if place else 0
                if start != known_start:
                    end = index.positions[place] if place < len(index.offsets) else self._end
                    buffer = self._file.read_at(start, end - start)
                    known_start = start
                found = self._find(buffer, start, offset)
                if found is not None:
                    yield (offset, *found)
        except OSError as error:
            self._note(self._offsets[0], 0, f"cannot be read: {error}")

    def _find(self, buffer: bytes, start: int, offset: int) -> tuple[memoryview, BatchHeader] | None:
        place, last_place = 0, len(buffer) - _PEEK.size
        while place <= last_place:
            base, length, delta = _PEEK.unpack_from(buffer, place)
            if base + delta < offset and length > 0:
                place += length + LENGTH_PREFIX_BYTES
                continue
            header = check_batch(buffer, place)
            if isinstance(header, BatchProblem):
                self._note(offset, start + place, header.reason)
                return None
            is_there = header.base_offset <= offset
            return (memoryview(buffer)[place : place + header.size_bytes], header) if is_there else None
        return None

    def _note(self, offset: int, position: int, reason: str) -> None:
        self._log.note_damage(Damage(offset, self._segment.base_offset, position, reason))


def plan_lookups(log: PartitionLog, offsets: Sequence[int]) -> list[BatchLookup]:
    """On the loop; offsets in order. Those that are not readable (yet, or any more) are left out. OSError: there may
    be some that nobody can look at just now, which is not the same."""
    lookups: list[BatchLookup] = []
    if log.failure is not None:
        raise OSError(f"{log.home.topic}-{log.home.partition} is offline: {log.failure}")
    end = log.readable_end if log.damage is None else min(log.readable_end, log.damage.offset)
    first = next((place for place, offset in enumerate(offsets) if offset >= log.log_start), len(offsets))
    while first < len(offsets) and offsets[first] < end:
        segment = log.segment_of(offsets[first])
        last = first
        while last < len(offsets) and offsets[last] < min(segment.next_offset, end):
            last += 1
        if last == first:
            break
        segment.was_used = True
        file = segment.file or log.context.handles.open(segment)
        lookups.append(BatchLookup(log, segment, file, offsets[first:last]))
        first = last
    return lookups
