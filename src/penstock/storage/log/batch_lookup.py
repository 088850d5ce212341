"""Single batches of a log, scattered over all of it, by an offset that each holds.

A reader that goes on (`read_plan`) reads much at once and remembers what was checked. Here nothing follows, and little
is asked for twice: each read is what lies between two entries of the index, and of it only the batch that is wanted is
checked. Those in front of it have to follow each other without a gap, for what a flipped bit in a length or an offset
leads to is another batch, and whole. The loop plans by segments; a thread reads.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from penstock.codec.batch.header import LENGTH_PREFIX_BYTES, BatchHeader, BatchProblem, check_batch
from penstock.storage.files.protocols import File
from penstock.storage.log.flaws import WITHHELD
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.segment.damage_search import find_damage
from penstock.storage.segment.facts import Segment

# Base offset, length and last offset delta.
_PEEK = struct.Struct(">qi11xi")


class _Bad(msgspec.Struct, frozen=True):
    offset: int
    place: int
    reason: str


class BatchLookup:
    """Batches of one segment."""

    __slots__ = ("_end", "_end_offset", "_file", "_log", "_offsets", "_segment")

    def __init__(self, log: PartitionLog, segment: Segment, file: File, offsets: Sequence[int]) -> None:
        """By `plan_lookups`."""
        self._log = log
        self._segment = segment
        self._file = file
        self._offsets = offsets
        # What is written past it while the thread reads is nobody's business.
        self._end, self._end_offset = segment.size, segment.next_offset

    def batches(self) -> Iterator[tuple[int, memoryview, BatchHeader]]:
        """Blocking: for each offset the batch that holds it, checked. Offsets whose batch is gone or damaged are left
        out; damage is noted. OSError: it cannot be read just now, which is no damage."""
        segment = self._segment
        index = self._log.context.indexes.index_of(segment, self._file)
        known_start, buffer = -1, b""
        for offset in self._offsets:
            place = bisect_right(index.offsets, offset - segment.base_offset)
            start = index.positions[place - 1] if place else 0
            first = segment.base_offset + (index.offsets[place - 1] if place else 0)
            end = index.positions[place] if place < len(index.offsets) else self._end
            if start != known_start:
                buffer = self._file.read_at(start, end - start)
                known_start = start
            found = _find(buffer, first, offset)
            if isinstance(found, _Bad):
                # Once more: what went wrong on the way from the disk need not be wrong on the disk.
                buffer = self._file.read_at(start, end - start)
                found = _find(buffer, first, offset)
            if isinstance(found, _Bad):
                self._log.note_damage(
                    find_damage(
                        self._file,
                        segment,
                        index,
                        position=start + found.place,
                        offset=found.offset,
                        end=(self._end, self._end_offset),
                        reason=found.reason,
                    )
                )
                if self._log.flaws.is_withheld:
                    # It is not gone: another replica has it.
                    raise withheld_error(self._log)
            else:
                yield (offset, *found)


def _find(buffer: bytes, first: int, offset: int) -> tuple[memoryview, BatchHeader] | _Bad:
    """The buffer begins with the batch that begins with `first`."""
    place, last_place = 0, len(buffer) - _PEEK.size
    while place <= last_place:
        base, length, delta = _PEEK.unpack_from(buffer, place)
        if base != first or delta < 0 or length <= 0:
            return _Bad(first, place, f"base offset is {base}, expected {first}")
        if base + delta < offset:
            place += length + LENGTH_PREFIX_BYTES
            first = base + delta + 1
            continue
        header = check_batch(buffer, place)
        if isinstance(header, BatchProblem):
            return _Bad(first, place, header.reason)
        return memoryview(buffer)[place : place + header.size_bytes], header
    return _Bad(first, place, f"there is no batch with offset {offset}")


def withheld_error(log: PartitionLog) -> OSError:
    return OSError(f"{log.home.topic}-{log.home.partition}: {WITHHELD}")


def plan_lookups(log: PartitionLog, offsets: Sequence[int]) -> list[BatchLookup]:
    """On the loop; offsets in order. Those that are not readable (yet, or any more) are left out. OSError: there may
    be some that nobody can look at just now, which is not the same."""
    lookups: list[BatchLookup] = []
    if log.failure is not None:
        raise OSError(f"{log.home.topic}-{log.home.partition} is offline: {log.failure}")
    if log.flaws.is_withheld:
        raise withheld_error(log)
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
