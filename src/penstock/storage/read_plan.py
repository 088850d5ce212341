"""A read that was decided on and not done yet: which bytes of which file, and how to find whole batches in them.

The loop plans (no I/O, a few microseconds) and tries `load_cached`; if the disk is needed it hands `load` to a thread.
The plan holds its file open, so retention may remove the segment meanwhile.

    floor        offset                        limit           end
      |--- skipped ---|=== whole batches ===|....|--- not yet ---|
      index entry     first batch            cut   bytes_max      readable end, a boundary known since the append

Only the last index interval before the cut is walked, and nothing at all if everything up to the end fits. Bytes that
this process never checked are walked batch by batch with their checksums.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from penstock.codec.record_batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, BatchProblem, check_batch
from penstock.storage.file_protocols import File
from penstock.storage.segment import Segment
from penstock.storage.segment_index import SegmentIndex
from penstock.storage.storage_errors import Damage
from penstock.storage.store_context import StoreContext

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
# Base offset, length and last offset delta lie in the first 27 bytes.
_PEEK_BYTES = 27
_LENGTH_MIN = HEADER_BYTES - LENGTH_PREFIX_BYTES

_Read = Callable[[int, int], bytes | memoryview | None]


class ReadingLog(Protocol):
    """What a plan tells its log."""

    context: StoreContext

    def note_damage(self, damage: Damage) -> None: ...

    def note_unreadable(self, damage: Damage) -> None: ...

    def remember_boundary(self, offset: int, segment: Segment, position: int) -> None: ...


class _NotCached(Exception):  # noqa: N818  not an error: the disk must be asked, in a thread
    pass


class ReadPlan:
    __slots__ = (
        "_bytes_max",
        "_end",
        "_end_offset",
        "_file",
        "_log",
        "_offset",
        "_segment",
        "_start",
        "_up_to",
        "must_fit",
    )

    def __init__(
        self,
        log: ReadingLog,
        segment: Segment,
        file: File,
        *,
        offset: int,
        bytes_max: int,
        start: int,
        end: int,
        end_offset: int,
        up_to: int,
    ) -> None:
        self._log = log
        self._segment = segment
        self._file = file
        self._offset = offset
        self._bytes_max = bytes_max
        # Where the batch that begins with `offset` stands, or -1: the index is asked.
        self._start = start
        self._end = end
        self._end_offset = end_offset
        self._up_to = up_to
        # Set by a caller that has no room for a batch over `bytes_max`: an empty view then, and nothing is read for it.
        self.must_fit = False

    def load_cached(self) -> memoryview | None:
        """On the loop; None when the disk, or much checking, is needed: then `load` goes to a thread."""
        index = self._segment.index
        if index is None and (self._start < 0 or self._is_partial()):
            return None
        try:
            result = self._load(index, self._file.read_cached_at, is_inline=True)
        except _NotCached:
            return None
        except OSError:
            # The thread meets it again and says what it means.
            return None
        return None if isinstance(result, Damage) else result

    def load(self) -> memoryview | Damage:
        """Blocking. An empty view when `up_to` falls inside the batch that holds the offset."""
        segment = self._segment
        try:
            index = self._log.context.indexes.index_of(segment, self._file)
            return self._load(index, self._file.read_at, is_inline=False)
        except OSError as error:
            reason = f"cannot be read: {error}"
            damage = Damage(self._offset, segment.base_offset, max(self._start, 0), reason, is_proven=False)
            self._log.note_unreadable(damage)
            return damage

    def _is_partial(self) -> bool:
        return self._end - self._start > self._bytes_max or self._up_to < self._end_offset

    def _load(self, index: SegmentIndex | None, read: _Read, *, is_inline: bool) -> memoryview | Damage:
        segment = self._segment
        start = self._start
        expected = self._offset
        if start < 0:
            assert index is not None
            relative, start, _ = index.floor(expected - segment.base_offset)
            expected = segment.base_offset + relative
        if self._up_to < self._end_offset:
            assert index is not None
            self._end = self._position_of(self._up_to, index, read)
            self._end_offset = self._up_to
        if self._end <= start:
            return memoryview(b"")
        interval = self._log.context.config.index_interval_bytes
        # The wanted batch begins within one interval of the floor; its header at least must be in the read.
        size = min(self._end - start, max(self._bytes_max, HEADER_BYTES) + interval)
        if not segment.verified.covers(start, start + size):
            if is_inline and size > self._log.context.config.inline_check_bytes_max:
                raise _NotCached
            return self._load_checked(start, expected, size, read)
        buffer = _ask(read, start, size)
        if len(buffer) < size:
            return self._file_is_short(start, len(buffer))
        first, size_first = self._find_first(buffer, expected)
        if first < 0:
            return memoryview(b"")
        if first + size_first > len(buffer):
            if self.must_fit:
                return memoryview(b"")
            buffer = _ask(read, start + first, size_first)
            if len(buffer) < size_first:
                return self._file_is_short(start + first, len(buffer))
            return memoryview(buffer)
        cut = self._find_cut(buffer, start, first, size_first, index)
        return memoryview(buffer)[first:cut]

    def _find_first(self, buffer: bytes | memoryview, expected: int) -> tuple[int, int]:
        """Place and size of the batch that holds the offset, or -1; the buffer begins with a batch."""
        place = 0
        offset = self._offset
        if expected == offset:
            return 0, _OFFSET_AND_LENGTH.unpack_from(buffer)[1] + LENGTH_PREFIX_BYTES
        while place + _PEEK_BYTES <= len(buffer):
            base, length = _OFFSET_AND_LENGTH.unpack_from(buffer, place)
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(buffer, place + _LAST_OFFSET_DELTA_AT)
            size = length + LENGTH_PREFIX_BYTES
            if base + delta >= offset:
                return place, size
            place += size
        return -1, 0

    def _find_cut(
        self, buffer: bytes | memoryview, start: int, first: int, size_first: int, index: SegmentIndex | None
    ) -> int:
        """Where, in the buffer, the last whole batch ends that fits. The first one is served whatever its size."""
        limit = min(first + self._bytes_max, len(buffer))
        if start + limit >= self._end:
            self._log.remember_boundary(self._end_offset, self._segment, self._end)
            return self._end - start
        assert index is not None
        place = first + size_first
        if place >= limit:
            return place
        place = max(place, index.position_at_or_below(start + limit) - start)
        next_offset = -1
        while place + _PEEK_BYTES <= limit:
            base, length = _OFFSET_AND_LENGTH.unpack_from(buffer, place)
            size = length + LENGTH_PREFIX_BYTES
            if place + size > limit:
                next_offset = base
                break
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(buffer, place + _LAST_OFFSET_DELTA_AT)
            next_offset = base + delta + 1
            place += size
        if next_offset >= 0:
            self._log.remember_boundary(next_offset, self._segment, start + place)
        return place

    def _position_of(self, offset: int, index: SegmentIndex, read: _Read) -> int:
        """The end of the last batch that lies wholly below the offset."""
        segment = self._segment
        _, position, _ = index.floor(offset - segment.base_offset)
        while position < self._end:
            peek = _ask(read, position, min(_PEEK_BYTES, self._end - position))
            base, length = _OFFSET_AND_LENGTH.unpack_from(peek)
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(peek, _LAST_OFFSET_DELTA_AT)
            if base + delta >= offset or length < _LENGTH_MIN:
                break
            position += length + LENGTH_PREFIX_BYTES
        return position

    def _load_checked(self, start: int, expected: int, size: int, read: _Read) -> memoryview | Damage:
        """Each batch from the floor on is checked before any of it is served."""
        buffer = _ask(read, start, size)
        place = 0
        first = -1
        problem: BatchProblem | None = None
        while start + place < self._end:
            header = check_batch(buffer, place)
            if isinstance(header, BatchProblem) and header.is_truncated and first < 0:
                if self.must_fit:
                    return memoryview(b"")
                # The batch that is wanted is larger than the read: once more, for all that may be in it.
                buffer = self._widen(buffer, start, place, read)
                header = check_batch(buffer, place)
            if isinstance(header, BatchProblem):
                problem = header
                break
            if header.base_offset != expected:
                problem = BatchProblem(f"base offset is {header.base_offset}, expected {expected}")
                break
            if first >= 0 and place + header.size_bytes > first + self._bytes_max:
                break
            expected = header.next_offset
            if first < 0 and expected > self._offset:
                first = place
            place += header.size_bytes
        self._segment.verified.add(start, start + place)
        return self._checked_result(buffer, start, first, place, expected, problem)

    def _checked_result(
        self,
        buffer: bytes | memoryview,
        start: int,
        first: int,
        place: int,
        expected: int,
        problem: BatchProblem | None,
    ) -> memoryview | Damage:
        # A batch cut off by our own `bytes_max` is no damage; one that the file or the log's end cuts off is.
        if problem is not None and not (problem.is_truncated and start + len(buffer) < self._end and first >= 0):
            damage = Damage(expected, self._segment.base_offset, start + place, problem.reason)
            self._log.note_damage(damage)
            if first < 0 or first == place:
                return damage
        if first < 0:
            return memoryview(b"")
        self._log.remember_boundary(expected, self._segment, start + place)
        return memoryview(buffer)[first:place]

    def _widen(self, buffer: bytes | memoryview, start: int, place: int, read: _Read) -> bytes | memoryview:
        if len(buffer) < place + LENGTH_PREFIX_BYTES:
            wanted = self._end - start
        else:
            length = _OFFSET_AND_LENGTH.unpack_from(buffer, place)[1]
            wanted = min(place + length + LENGTH_PREFIX_BYTES, self._end - start)
        return _ask(read, start, wanted) if wanted > len(buffer) else buffer

    def _file_is_short(self, position: int, count: int) -> Damage:
        offset = max(self._offset, self._segment.base_offset)
        reason = f"the file ends at byte {position + count}, the log at byte {self._end}"
        damage = Damage(offset, self._segment.base_offset, position, reason)
        self._log.note_damage(damage)
        return damage


def _ask(read: _Read, position: int, size: int) -> bytes | memoryview:
    data = read(position, size)
    if data is None:
        raise _NotCached
    return data
