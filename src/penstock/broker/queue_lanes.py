"""Where in a partition's log messages of other lanes than the default one lie: so that an urgent message behind a
backlog of any size is found without reading up to it.

    log        |== segment ==|== segment ==|== segment ==|== active ==|- - -
    known      [   chunk     ][  chunk     ][  chunk  >                       grows while the scan goes on
                side file      side file      in memory

Nothing is done at an append, and nothing for partitions without queues. A look that stays behind the log's end asks for
everything from its lowest cursor on; a task then reads the log from there, slice by slice in a thread, one partition
of the node at a time. What a sealed segment holds is kept in a side file beside it (storage/lane_file), so it is
searched once in its life. Chunks that are not used leave memory and come back from their files.

Chunks are stretches of offsets, apart from each other. Compaction only takes messages away, so what they say stays
true as hints; when a log was cut or read again everything is forgotten. Everything here runs on the loop.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition_shell import PartitionShell
from penstock.storage.file_protocols import Files
from penstock.storage.lane_file import (
    LaneEntries,
    LanesSeen,
    SegmentFacts,
    facts_of,
    find_lanes,
    read_lane_file,
    remove_lane_file,
    write_lane_file,
)
from penstock.storage.read_plan import ReadPlan
from penstock.storage.segment import Segment
from penstock.storage.storage_errors import Damage

log = get_logger("queues")

# A few milliseconds of a thread.
SLICE_BYTES: Final = 512 * 1024
# Of its time the scan rests so much of what it works: the node has other things to do.
REST_SHARE: Final = 0.5
# All partitions together. An entry takes four bytes, for one batch and lane.
MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024
# The first look after a start waits so long for the side files to be read, or urgent messages would come second.
FIRST_WAIT_MS: Final = 250

Result = TypeVar("Result")


class LaneChunk:
    """What is known of [since, upto)."""

    __slots__ = ("entries", "facts", "index", "last_batch_bytes", "segment", "since", "upto")

    def __init__(self, index: LaneIndex, since: int, upto: int, entries: LaneEntries | None) -> None:
        self.index = index
        self.since = since
        self.upto = upto
        # None: in the side file.
        self.entries = entries
        # Of the segment that a side file was made of.
        self.facts: SegmentFacts | None = None
        # The segment that is being searched; None: it will not grow any more.
        self.segment: Segment | None = None
        self.last_batch_bytes = 0

    @property
    def is_growing(self) -> bool:
        return self.segment is not None and self.index.is_scanning


class LaneScans:
    """What the indexes of all partitions share: the thread, the turn to use it, and the bound on memory."""

    def __init__(
        self,
        readers: Executor,
        tasks: TaskSupervisor,
        *,
        bytes_max: int = MEMORY_BYTES_MAX,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self.tasks = tasks
        self.slice_bytes = slice_bytes
        self.turn = asyncio.Lock()
        self._readers = readers
        self._bytes_max = bytes_max
        # Those with entries in memory, and how many bytes each; the longest unused first.
        self._chunks: OrderedDict[LaneChunk, int] = OrderedDict()
        self.size_bytes = 0

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    def use(self, chunk: LaneChunk) -> None:
        """It was made, has grown or was looked at."""
        size_bytes = 0 if chunk.entries is None else chunk.entries.size_bytes
        self.size_bytes += size_bytes - self._chunks.pop(chunk, 0)
        if size_bytes:
            self._chunks[chunk] = size_bytes
        while self.size_bytes > self._bytes_max:
            # Rather one that comes back from its file than one that must be searched for again; and none that is being
            # searched for, or two of them would chase each other out for ever.
            idle = [other for other in self._chunks if other is not chunk and not other.is_growing]
            if not idle:
                break
            oldest = next((other for other in idle if other.facts is not None), idle[0])
            oldest.index.let_go(oldest)

    def forget(self, chunk: LaneChunk) -> None:
        self.size_bytes -= self._chunks.pop(chunk, 0)


class LaneIndex:
    """Of one partition."""

    def __init__(self, partition: PartitionShell, scans: LaneScans) -> None:
        self._partition = partition
        self._scans = scans
        self._generation = partition.log.generation
        # By offset, apart from each other.
        self._chunks: list[LaneChunk] = []
        # By the place of a chunk: the place of the last one that follows it without a gap, and the lanes from the first
        # to the one before the last. The last may grow.
        self._runs: dict[int, tuple[int, int]] = {}
        self._lanes_of: dict[LaneChunk, int] = {}
        self._wanted = 0
        self._task: asyncio.Task[None] | None = None
        self._was_ready = False
        self._has_news = False
        # Called when messages of other lanes were found: somebody may wait for them.
        self.on_progress: Callable[[], None] = _nothing

    # Asking

    def want(self, since: int) -> None:
        """Somebody looks from here on. What is not known yet is searched for from now on."""
        log_ = self._partition.log
        if self._generation != log_.generation:
            self._generation = log_.generation
            for chunk in list(self._chunks):
                self._remove(chunk)
        while self._chunks and self._chunks[0].upto <= log_.log_start:
            self._remove(self._chunks[0])
        since = max(since, log_.log_start)
        if self.is_scanning:
            self._wanted = min(self._wanted, since)
        elif self.covered_upto(since) < log_.readable_end:
            self._wanted = since
            name = f"lanes of {self._partition.topic}-{self._partition.index}"
            self._task = self._scans.tasks.start(name, self._scan())

    async def wait_first(self) -> None:
        """Once, and not for long."""
        if not self._was_ready:
            self._was_ready = True
            await self.wait(FIRST_WAIT_MS)

    async def wait(self, timeout_ms: int) -> bool:
        """Until everything that is wanted is known; False: it takes longer."""
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,), timeout=timeout_ms / 1000)
        return not self.is_scanning

    @property
    def is_scanning(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def chunk_count(self) -> int:
        return len(self._chunks)

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
        return lanes | self._lanes_of[self._chunks[last]]

    async def batches(self, lane: int, since: int, upto: int, count_max: int) -> tuple[list[int], int]:
        """Base offsets of batches that may hold messages of the lane from `since` on, and up to where these are all
        of them. `upto` is not past what is covered."""
        found: list[int] = []
        position = since
        while position < upto:
            place = self._place_of(position)
            if place is None:
                return found, position
            chunk = self._chunks[place]
            end = min(chunk.upto, upto)
            if self._lanes_of[chunk] >> lane & 1:
                entries = chunk.entries or await self._load(chunk)
                if entries is None:
                    return found, position
                for batch_offset in entries.batches(lane, position):
                    if batch_offset >= end:
                        break
                    if len(found) >= count_max:
                        return found, max(batch_offset, position)
                    found.append(batch_offset)
            position = end
        return found, upto

    def _place_of(self, offset: int) -> int | None:
        """Of the chunk that `offset` lies in."""
        place = bisect_right(self._chunks, offset, key=_since) - 1
        return place if place >= 0 and offset < self._chunks[place].upto else None

    def _run(self, place: int) -> tuple[int, int]:
        run = self._runs.get(place)
        if run is None:
            last, lanes = place, 0
            chunks = self._chunks
            while last + 1 < len(chunks) and chunks[last + 1].since == chunks[last].upto:
                lanes |= self._lanes_of[chunks[last]]
                last += 1
            run = self._runs[place] = (last, lanes)
        return run

    async def _load(self, chunk: LaneChunk) -> LaneEntries | None:
        """From its side file. None: it must be searched again."""
        assert chunk.facts is not None, "what is not in memory is in a side file"
        entries = await self._scans.in_thread(partial(_read, self._partition.log.context.files, chunk.facts))
        if entries is None:
            self._remove(chunk)
        elif chunk in self._lanes_of:
            chunk.entries = entries
            self._scans.use(chunk)
        return entries

    # Keeping

    def let_go(self, chunk: LaneChunk) -> None:
        """Its memory is needed. What is in no file must be searched again, should somebody ask."""
        if chunk.facts is None:
            self._remove(chunk)
        else:
            chunk.entries = None
            self._scans.forget(chunk)

    def _insert(self, chunk: LaneChunk) -> None:
        self._chunks.insert(bisect_right(self._chunks, chunk.since, key=_since), chunk)
        self._runs.clear()
        self._note(chunk)

    def _note(self, chunk: LaneChunk) -> None:
        assert chunk.entries is not None
        self._lanes_of[chunk] = chunk.entries.lanes
        self._scans.use(chunk)

    def _remove(self, chunk: LaneChunk) -> None:
        self._scans.forget(chunk)
        if self._lanes_of.pop(chunk, None) is not None:
            self._chunks.remove(chunk)
            self._runs.clear()

    def _join_empty(self, chunk: LaneChunk) -> None:
        """Neighbours without anything are one: most logs have nothing but such."""
        place = self._chunks.index(chunk)
        before = self._chunks[place - 1] if place else None
        if before is None or before.upto != chunk.since or before.segment is not None:
            return
        if not self._lanes_of[before] and not self._lanes_of[chunk]:
            before.upto = chunk.upto
            self._remove(chunk)

    # Searching

    async def _scan(self) -> None:
        loop = asyncio.get_running_loop()
        while self._partition.log.generation == self._generation:
            log_ = self._partition.log
            place = self.covered_upto(max(self._wanted, log_.log_start))
            if place >= log_.readable_end:
                break
            async with self._scans.turn:
                begun = loop.time()
                if not await self._step(place):
                    break
                spent = loop.time() - begun
            if self._has_news:
                self._has_news = False
                self.on_progress()
            await asyncio.sleep(spent * REST_SHARE)

    async def _step(self, place: int) -> bool:
        """One slice or one side file further; False: the log cannot be read there."""
        segment = self._partition.log.segment_of(place)
        before = self._ending_at(place)
        if before is not None and before.segment is segment:
            return await self._grow(before)
        if before is not None and before.segment is not None:
            await self._finish(before)
            return True
        is_sealed = not segment.is_active and segment.next_offset <= self._partition.log.readable_end
        if is_sealed and await self._adopt_file(segment):
            return True
        start = place
        if is_sealed and (before is None or before.upto <= segment.base_offset):
            # From its beginning, so that a side file can be made of it.
            start = max(segment.base_offset, self._partition.log.log_start)
            self._remove_between(start, segment.next_offset)
        chunk = LaneChunk(self, start, start, LaneEntries(segment.base_offset))
        chunk.segment = segment
        return await self._grow(chunk)

    def _ending_at(self, offset: int) -> LaneChunk | None:
        place = bisect_right(self._chunks, offset - 1, key=_since) - 1
        return self._chunks[place] if place >= 0 and self._chunks[place].upto == offset else None

    def _remove_between(self, start: int, end: int) -> None:
        for chunk in [chunk for chunk in self._chunks if chunk.since < end and chunk.upto > start]:
            self._remove(chunk)

    async def _adopt_file(self, segment: Segment) -> bool:
        facts = facts_of(segment)
        entries = await self._scans.in_thread(partial(_read, self._partition.log.context.files, facts))
        if entries is None or self._is_other(segment):
            return False
        self._remove_between(segment.base_offset, segment.next_offset)
        chunk = LaneChunk(self, segment.base_offset, segment.next_offset, entries)
        chunk.facts = facts
        self._insert(chunk)
        self._has_news |= bool(entries.lanes)
        self._join_empty(chunk)
        return True

    async def _grow(self, chunk: LaneChunk) -> bool:
        segment = chunk.segment
        assert segment is not None
        plan = self._partition.log.plan_read(chunk.upto, bytes_max=self._scans.slice_bytes)
        if not isinstance(plan, ReadPlan):
            return False
        seen = await self._scans.in_thread(partial(_search, plan))
        # A segment that was replaced meanwhile is all the same: what was in the old one may be in the new one.
        if seen is None or self._partition.log.generation != self._generation:
            return False
        if chunk.upto > chunk.since and chunk not in self._lanes_of:
            return True  # let go of meanwhile
        entries = chunk.entries
        assert entries is not None, "what grows is in memory"
        for batch_offset, lanes in seen.batches:
            entries.add(batch_offset, lanes)
        chunk.last_batch_bytes = seen.last_batch_bytes
        self._has_news |= bool(seen.batches)
        if chunk.upto == chunk.since:
            chunk.since, chunk.upto = min(chunk.since, seen.first_offset), seen.next_offset
            self._remove_between(chunk.since, chunk.upto)
            self._insert(chunk)
        else:
            chunk.upto = seen.next_offset
            self._note(chunk)
        if chunk.upto >= segment.next_offset and not segment.is_active:
            await self._finish(chunk)
        return True

    async def _finish(self, chunk: LaneChunk) -> None:
        """Its segment is searched to its end; if from its beginning, a file says so from now on."""
        segment, chunk.segment = chunk.segment, None
        assert segment is not None
        log_ = self._partition.log
        is_whole = chunk.since <= max(segment.base_offset, log_.log_start) and chunk.upto == segment.next_offset
        entries = chunk.entries
        if is_whole and entries is not None and not self._is_other(segment) and not log_.context.is_full:
            facts = facts_of(segment)
            write = partial(_write, log_.context.files, facts, entries, chunk.last_batch_bytes)
            if await self._scans.in_thread(write):
                if self._is_other(segment):
                    # Its files were removed before this one came.
                    await self._scans.in_thread(partial(remove_lane_file, log_.context.files, segment.prefix))
                else:
                    chunk.facts = facts
        if chunk in self._lanes_of:
            self._join_empty(chunk)

    def _is_other(self, segment: Segment) -> bool:
        """The log holds it no longer."""
        log_ = self._partition.log
        return not log_.segments or segment is not log_.segment_of(segment.base_offset)


def _read(files: Files, facts: SegmentFacts) -> LaneEntries | None:
    try:
        return read_lane_file(files, facts)
    except OSError:
        return None


def _write(files: Files, facts: SegmentFacts, entries: LaneEntries, last_batch_bytes: int) -> bool:
    try:
        write_lane_file(files, facts, entries, last_batch_bytes=last_batch_bytes)
    except OSError as error:
        log.warning("side file not written", name=facts.name, directory=facts.directory, error=str(error))
        return False
    return True


def _search(plan: ReadPlan) -> LanesSeen | None:
    loaded = plan.load()
    # Damage is told by whoever reads it for somebody.
    return None if isinstance(loaded, Damage) or not len(loaded) else find_lanes(loaded, breathe=partial(time.sleep, 0))


def _since(chunk: LaneChunk) -> int:
    return chunk.since


def _nothing() -> None: ...
