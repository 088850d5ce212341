"""A read that was decided on and not done yet: which bytes of which file, and how to find whole batches in them.

The loop plans (no I/O, a few microseconds) and tries `load_cached`; if the disk is needed it hands `load` to a thread.
The plan holds its file open, so retention may remove the segment meanwhile.

    floor        offset                        limit           end
      |--- skipped ---|=== whole batches ===|....|--- not yet ---|
      index entry     first batch            cut   bytes_max      readable end, a boundary known since the append

Only the last index interval before the cut is walked, and nothing at all if everything up to the end fits. Two kinds of
bytes are walked batch by batch with their checksums: those that this process never checked, and all that a thread
reads, because they come from the disk, and what was right there yesterday may have rotted since. What the system's
memory still holds was checked when it came there; the scrubber reads what lies under it.

A bad place ends the read before it, or is what the read finds: see `storage/errors.Damage`. A read that begins behind
one does not see it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from penstock.codec.batch.header import HEADER_BYTES, LENGTH_PREFIX_BYTES, BatchProblem, check_batch
from penstock.storage.context import StoreContext
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import File
from penstock.storage.log.damage import DamagedPlaces
from penstock.storage.segment.damage_search import find_damage
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.index import SegmentIndex

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

    def note_unreadable(self, damage: Damage, error: OSError) -> None: ...

    def remember_boundary(self, offset: int, segment: Segment, position: int) -> None: ...


class _NotCached(Exception):  # noqa: N818  not an error: the disk must be asked, in a thread
    pass


class ReadPlan:
    __slots__ = (
        "_bytes_max",
        "_end",
        "_end_offset",
        "_file",
        "_floor",
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
        end: tuple[int, int],
    ) -> None:
        """`end`: what may be read of the segment ends there, a position and the offset after it."""
        self._log = log
        self._segment = segment
        self._file = file
        self._offset = offset
        self._bytes_max = bytes_max
        # Where the batch that begins with `offset` stands, or -1: the index is asked.
        self._start = start
        self._end, self._end_offset = end
        self._up_to = self._end_offset
        # The place and offset of a batch behind damage, at or below the offset.
        self._floor: tuple[int, int] | None = None
        # Set by a caller that has no room for a batch over `bytes_max`: an empty view then, and nothing is read for it.
        self.must_fit = False

    def stop_before(self, offset: int) -> None:
        """No batch is read that holds this offset or a later one."""
        self._up_to = min(self._up_to, offset)

    def keep_off(self, damages: DamagedPlaces) -> None:
        """Of the segment only what lies between two damaged places is read."""
        base_offset = self._segment.base_offset
        before, after = damages.last_before(self._offset), damages.next_after(self._offset)
        if before is not None and before.segment_base_offset == base_offset:
            self._floor = before.position_end, before.offset_end
        if after is not None and after.segment_base_offset == base_offset:
            self._end, self._end_offset = min(self._end, after.position), min(self._end_offset, after.offset)
            self._up_to = min(self._up_to, self._end_offset)

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
        assert not isinstance(result, Damage), "damage is a thread's business"
        return result

    def load(self) -> memoryview | Damage:
        """Blocking. An empty view when `up_to` falls inside the batch that holds the offset."""
        segment = self._segment
        try:
            index = self._log.context.indexes.index_of(segment, self._file)
            return self._load(index, self._file.read_at, is_inline=False)
        except OSError as error:
            reason = f"cannot be read: {error}"
            damage = Damage(self._offset, segment.base_offset, max(self._start, 0), reason, is_proven=False)
            self._log.note_unreadable(damage, error)
            return damage

    def _is_partial(self) -> bool:
        return self._end - self._start > self._bytes_max or self._up_to < self._end_offset

    def _load(self, index: SegmentIndex | None, read: _Read, *, is_inline: bool) -> memoryview | Damage:
        segment = self._segment
        start, expected = (self._start, self._offset) if self._start >= 0 else self._begin(index)
        size = self._reach(start)
        if is_inline and segment.verified.covers(start, start + size):
            return self._load_known(index, read, start, expected, size)
        if is_inline and size > self._log.context.config.inline_check_bytes_max:
            raise _NotCached
        if size <= 0:
            return memoryview(b"")
        return self._load_checked(index, start, expected, size, read, is_inline=is_inline)

    def _begin(self, index: SegmentIndex | None) -> tuple[int, int]:
        """A batch's position and offset, at or below the one that is wanted."""
        assert index is not None
        relative, start, _ = index.floor(self._offset - self._segment.base_offset)
        if self._floor is not None and self._floor[0] > start:
            return self._floor
        return start, self._segment.base_offset + relative

    def _reach(self, start: int) -> int:
        # The wanted batch begins within one interval of the floor; its header at least must be in the read.
        interval = self._log.context.config.index_interval_bytes
        return min(self._end - start, max(self._bytes_max, HEADER_BYTES) + interval)

    def _load_known(self, index: SegmentIndex | None, read: _Read, start: int, expected: int, size: int) -> memoryview:
        """Bytes that were checked, and are in memory still."""
        if self._up_to < self._end_offset:
            assert index is not None
            self._end = self._position_of(self._up_to, index, read, start)
            self._end_offset = self._up_to
            size = min(size, self._end - start)
        if size <= 0:
            return memoryview(b"")
        buffer = _ask(read, start, size)
        first, size_first = self._find_first(buffer, expected)
        if first < 0:
            return memoryview(b"")
        if first + size_first > len(buffer):
            if self.must_fit:
                return memoryview(b"")
            if size_first > self._end - start - first:
                raise _NotCached  # no batch of this log says so: a thread looks at what happened
            return memoryview(_ask(read, start + first, size_first))
        cut = self._find_cut(buffer, start, first, size_first, index)
        return memoryview(buffer)[first:cut]

    def _find_first(self, buffer: bytes | memoryview, expected: int) -> tuple[int, int]:
        """Place and size of the batch that holds the offset, or -1; the buffer begins with a batch."""
        place = 0
        offset = self._offset
        if expected == offset:
            return 0, _size_of(_OFFSET_AND_LENGTH.unpack_from(buffer)[1])
        while place + _PEEK_BYTES <= len(buffer):
            base, length = _OFFSET_AND_LENGTH.unpack_from(buffer, place)
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(buffer, place + _LAST_OFFSET_DELTA_AT)
            size = _size_of(length)
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
            size = _size_of(length)
            if place + size > limit:
                next_offset = base
                break
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(buffer, place + _LAST_OFFSET_DELTA_AT)
            next_offset = base + delta + 1
            place += size
        if next_offset >= 0:
            self._log.remember_boundary(next_offset, self._segment, start + place)
        return place

    def _position_of(self, offset: int, index: SegmentIndex, read: _Read, start: int) -> int:
        """The end of the last batch that lies wholly below the offset; a batch begins at `start`."""
        segment = self._segment
        _, position, _ = index.floor(offset - segment.base_offset)
        position = max(position, start)
        while position < self._end:
            peek = _ask(read, position, min(_PEEK_BYTES, self._end - position))
            base, length = _OFFSET_AND_LENGTH.unpack_from(peek)
            (delta,) = _LAST_OFFSET_DELTA.unpack_from(peek, _LAST_OFFSET_DELTA_AT)
            if base + delta >= offset or length < _LENGTH_MIN:
                break
            position += length + LENGTH_PREFIX_BYTES
        return position

    def _load_checked(
        self, index: SegmentIndex | None, start: int, expected: int, size: int, read: _Read, *, is_inline: bool
    ) -> memoryview | Damage:
        """Each batch from the floor on is checked before any of it is served."""
        walk = _Walk(_ask(read, start, size), start, expected)
        has_read_again = False
        while (problem := self._walk_on(walk, read)) is not None:
            # A batch cut off by our own `bytes_max` is no damage; one that the file or the log's end cuts off is.
            if problem.is_truncated and start + len(walk.buffer) < self._end and walk.first >= 0:
                break
            if is_inline:
                raise _NotCached  # what is wrong, and how far it reaches, the disk must say
            if not has_read_again:
                # What went wrong in memory, or on the way there, need not be wrong on the disk.
                has_read_again = True
                self._file.drop_cache()
                walk.buffer = _ask(read, start, len(walk.buffer))
                continue
            damage = self._note(index, walk, problem)
            if walk.first >= 0:
                break
            if damage.offset_end > self._offset:
                return damage
            # All of it lies before what is wanted.
            self._segment.verified.add(start, start + walk.place)
            start = damage.position_end
            if start >= self._end:
                return memoryview(b"")
            walk = _Walk(_ask(read, start, self._reach(start)), start, damage.offset_end)
            has_read_again = False
        self._segment.verified.add(start, start + walk.place)
        if walk.first < 0:
            return memoryview(b"")
        self._log.remember_boundary(walk.expected, self._segment, start + walk.place)
        return memoryview(walk.buffer)[walk.first : walk.place]

    def _walk_on(self, walk: _Walk, read: _Read) -> BatchProblem | None:
        """Goes on until enough was checked, or something is wrong."""
        while walk.start + walk.place < self._end:
            header = check_batch(walk.buffer, walk.place)
            if isinstance(header, BatchProblem) and header.is_truncated and walk.first < 0:
                if self.must_fit:
                    return None
                # The batch that is wanted is larger than the read: once more, for all that may be in it.
                walk.buffer = self._widen(walk.buffer, walk.start, walk.place, read)
                header = check_batch(walk.buffer, walk.place)
            if isinstance(header, BatchProblem):
                return header
            if header.base_offset != walk.expected:
                return BatchProblem(f"base offset is {header.base_offset}, expected {walk.expected}")
            if header.next_offset > self._up_to:
                return None
            if walk.first >= 0 and walk.place + header.size_bytes > walk.first + self._bytes_max:
                return None
            walk.expected = header.next_offset
            if walk.first < 0 and walk.expected > self._offset:
                walk.first = walk.place
            walk.place += header.size_bytes
        return None

    def _note(self, index: SegmentIndex | None, walk: _Walk, problem: BatchProblem) -> Damage:
        damage = find_damage(
            self._file,
            self._segment,
            index,
            position=walk.start + walk.place,
            offset=walk.expected,
            end=(self._end, self._end_offset),
            reason=problem.reason,
        )
        # What a cleaning has replaced meanwhile is nobody's any more.
        if not self._segment.is_replaced:
            self._log.note_damage(damage)
        return damage

    def _widen(self, buffer: bytes | memoryview, start: int, place: int, read: _Read) -> bytes | memoryview:
        if len(buffer) < place + LENGTH_PREFIX_BYTES:
            wanted = self._end - start
        else:
            length = _OFFSET_AND_LENGTH.unpack_from(buffer, place)[1]
            wanted = min(place + length + LENGTH_PREFIX_BYTES, self._end - start)
        return _ask(read, start, wanted) if wanted > len(buffer) else buffer


class _Walk:
    """How far the batches of a buffer have been checked."""

    __slots__ = ("buffer", "expected", "first", "place", "start")

    def __init__(self, buffer: bytes | memoryview, start: int, expected: int) -> None:
        self.buffer = buffer
        # Where it stands in the file, and what the batch at `place` must begin with.
        self.start = start
        self.place = 0
        self.expected = expected
        # The place of the batch that holds the wanted offset.
        self.first = -1


def _size_of(length: int) -> int:
    """Of a batch, by the length in its header; no batch is so short: the thread looks at what happened."""
    if length < _LENGTH_MIN:
        raise _NotCached
    return length + LENGTH_PREFIX_BYTES


def _ask(read: _Read, position: int, size: int) -> bytes | memoryview:
    data = read(position, size)
    if data is None:
        raise _NotCached
    return data
