"""What is known of the lanes of one partition, in stretches of the log that do not overlap.

    log        |== segment ==|== segment ==|== segment ==|== active ==|- - -
    chunks     [ side file   ][ side file   ][ in memory  >                   the last one grows while it is searched

Chunks that are not used leave memory, all partitions together, and come back from their side files. Compaction only
takes messages away, so what a chunk says stays true as a hint whatever becomes of its segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import Final

from penstock.storage.segment.facts import Segment
from penstock.storage.segment.lanes import LaneEntries, SegmentFacts

# All partitions together, beside the segments that are being searched. An entry takes four bytes, for one batch and
# lane.
MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024


class LaneChunk:
    """What is known of [since, upto)."""

    __slots__ = ("entries", "facts", "last_batch_bytes", "owner", "segment", "since", "upto")

    def __init__(self, owner: LaneChunks, since: int, upto: int, entries: LaneEntries) -> None:
        self.owner = owner
        self.since = since
        self.upto = upto
        # None: in the side file.
        self.entries: LaneEntries | None = entries
        # Of the segment that the side file was made of; None: there is no side file.
        self.facts: SegmentFacts | None = None
        # The segment that is being searched; None: the chunk will not grow any more.
        self.segment: Segment | None = None
        self.last_batch_bytes = 0


class LaneMemory:
    """The bound on memory of a node's chunks; the longest unused one goes first."""

    def __init__(self, bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._sizes: OrderedDict[LaneChunk, int] = OrderedDict()

    def use(self, chunk: LaneChunk) -> None:
        """It was made, has grown or was looked at."""
        size_bytes = 0 if chunk.entries is None else chunk.entries.size_bytes
        self.size_bytes += size_bytes - self._sizes.pop(chunk, 0)
        if size_bytes:
            self._sizes[chunk] = size_bytes
        while self.size_bytes > self.bytes_max:
            oldest = self._oldest(chunk)
            if oldest is None:
                return
            oldest.owner.let_go(oldest)

    def _oldest(self, but: LaneChunk) -> LaneChunk | None:
        """Rather one that comes back from its file than one that must be searched for again; and none that is being
        searched for, or two of them would chase each other out for ever."""
        others = [chunk for chunk in self._sizes if chunk is not but]
        saved = next((chunk for chunk in others if chunk.facts is not None), None)
        return saved or next((chunk for chunk in others if not chunk.owner.is_growing(chunk)), None)

    def forget(self, chunk: LaneChunk) -> None:
        self.size_bytes -= self._sizes.pop(chunk, 0)


class LaneChunks:
    """Of one partition, by offset."""

    def __init__(self, memory: LaneMemory) -> None:
        self._memory = memory
        self._chunks: list[LaneChunk] = []
        self._lanes: dict[LaneChunk, int] = {}
        # By the place of a chunk: the place of the last one that follows it without a gap, and the lanes of all but
        # that last one, which may grow.
        self._runs: dict[int, tuple[int, int]] = {}
        self.is_searching = False
        # The one whose segment is being searched.
        self.growing: LaneChunk | None = None

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, chunk: LaneChunk) -> bool:
        return chunk in self._lanes

    # Asking

    def covered_upto(self, since: int) -> int:
        """Everything from `since` up to there is known; `since` itself: nothing is."""
        place = self._place_of(since)
        return since if place is None else self._chunks[self._run(place)[0]].upto

    def lanes_from(self, since: int) -> int:
        """One bit for each lane that messages may be in from there on, as far as it is known without a gap."""
        place = self._place_of(since)
        if place is None:
            return 0
        last, lanes = self._run(place)
        return lanes | self._lanes[self._chunks[last]]

    def at(self, offset: int) -> LaneChunk | None:
        """The one that `offset` lies in."""
        place = self._place_of(offset)
        return None if place is None else self._chunks[place]

    def has_lane(self, chunk: LaneChunk, lane: int) -> bool:
        return bool(self._lanes[chunk] >> lane & 1)

    def is_growing(self, chunk: LaneChunk) -> bool:
        return self.is_searching and chunk is self.growing

    def _place_of(self, offset: int) -> int | None:
        place = bisect_right(self._chunks, offset, key=_since) - 1
        return place if place >= 0 and offset < self._chunks[place].upto else None

    def _run(self, place: int) -> tuple[int, int]:
        run = self._runs.get(place)
        if run is None:
            last, lanes = place, 0
            chunks = self._chunks
            while last + 1 < len(chunks) and chunks[last + 1].since == chunks[last].upto:
                lanes |= self._lanes[chunks[last]]
                last += 1
            run = self._runs[place] = (last, lanes)
        return run

    # Changing

    def insert(self, chunk: LaneChunk) -> None:
        """Nothing may be there yet (`make_room`)."""
        self._chunks.insert(bisect_right(self._chunks, chunk.since, key=_since), chunk)
        self.note(chunk)

    def note(self, chunk: LaneChunk) -> None:
        """It has come, or has grown."""
        assert chunk.entries is not None
        self._runs.clear()
        self._lanes[chunk] = chunk.entries.lanes
        self._memory.use(chunk)

    def put_back(self, chunk: LaneChunk, entries: LaneEntries) -> None:
        """They were read from the side file, in a thread."""
        if chunk in self._lanes:
            chunk.entries = entries
            self._memory.use(chunk)

    def let_go(self, chunk: LaneChunk) -> None:
        """Its memory is needed. What is in no file must be searched again, should somebody ask."""
        if chunk.facts is None:
            self.remove(chunk)
        else:
            chunk.entries = None
            self._memory.forget(chunk)

    def remove(self, chunk: LaneChunk) -> None:
        self._memory.forget(chunk)
        if chunk is self.growing:
            self.growing = None
        if self._lanes.pop(chunk, None) is not None:
            self._chunks.remove(chunk)
            self._runs.clear()

    def clear(self) -> None:
        for chunk in list(self._chunks):
            self.remove(chunk)

    def drop_below(self, log_start: int) -> None:
        while self._chunks and self._chunks[0].upto <= log_start:
            self.remove(self._chunks[0])

    def make_room(self, start: int, end: int, chunk: LaneChunk) -> None:
        """What the new one says, others need not say."""
        for other in [other for other in self._chunks if other.since < end and other.upto > start]:
            if other is not chunk:
                self.remove(other)

    def join_empty(self, chunk: LaneChunk) -> None:
        """Neighbours without anything are one: most logs have nothing but such."""
        place = self._chunks.index(chunk)
        before = self._chunks[place - 1] if place else None
        if before is None or before.upto != chunk.since or self._lanes[before] or self._lanes[chunk]:
            return
        before.upto = chunk.upto
        self.remove(chunk)


def _since(chunk: LaneChunk) -> int:
    return chunk.since
