"""Where in a partition's log messages of other lanes than the default one lie: so that an urgent message behind a
backlog of any size is found without reading up to it.

Nothing is done at an append, and nothing for partitions without queues, or whose consumers keep up. A look that does
not reach the log's end asks for everything from its lowest cursor on; a task then reads the log from there, slice by
slice in a thread, one partition of the node at a time. What a sealed segment holds is kept in a side file beside it
(storage/segment/lanes), so that it is searched once in its life.

When a log was cut or read again everything is forgotten. Everything here runs on the loop; what blocks, in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final, TypeVar

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.queue.lane_chunks import LaneChunk, LaneChunks, LaneMemory
from penstock.storage.errors import Damage
from penstock.storage.files.protocols import Files
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.lanes import (
    LaneEntries,
    LanesSeen,
    SegmentFacts,
    facts_of,
    find_lanes,
    read_lane_file,
    remove_lane_file,
    write_lane_file,
)

_log = get_logger("queues")

# A few milliseconds of a thread.
SLICE_BYTES: Final = 512 * 1024
# Half a millisecond of the loop.
INLINE_BYTES_MAX: Final = 64 * 1024
# After so long it rests for so much of it: the node has other things to do.
REST_SHARE: Final = 0.5
# How long a look waits for the search that it has begun, or urgent messages would come second. The first one after a
# start waits for the side files to be read.
FIRST_WAIT_MS: Final = 250
WAIT_MS: Final = 20
# Batches that one look opens beside the window, all lanes together. A batch may have one message of the lane among ten
# thousand, and all of it is decoded to deliver that one.
BATCHES_MAX: Final = 64

Result = TypeVar("Result")


class LaneScans:
    """What the indexes of all partitions share: the threads, the turn to use one, and the bound on memory."""

    def __init__(self, readers: Executor, tasks: TaskSupervisor) -> None:
        self.tasks = tasks
        self.memory = LaneMemory()
        self.slice_bytes = SLICE_BYTES
        self.first_wait_ms = FIRST_WAIT_MS
        self.wait_ms = WAIT_MS
        self.batches_max = BATCHES_MAX
        self.turn = asyncio.Lock()
        # Of logs, since the start; side files do not count.
        self.searched_bytes = 0
        self._readers = readers

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)


class LaneIndex:
    """Of one partition."""

    def __init__(self, partition: PartitionShell, scans: LaneScans) -> None:
        self._partition = partition
        self._scans = scans
        self._generation = partition.log.generation
        self._chunks = LaneChunks(scans.memory)
        self._wanted = 0
        self._task: asyncio.Task[None] | None = None
        self._has_waited = False
        self._has_news = False
        # Called when messages of other lanes were found: somebody may wait for them.
        self.on_progress: Callable[[], None] = _nothing
        self.covered_upto = self._chunks.covered_upto
        self.lanes_from = self._chunks.lanes_from

    @property
    def batches_max(self) -> int:
        """What one look may open."""
        return self._scans.batches_max

    # Asking

    async def want(self, since: int) -> None:
        """Somebody looks from here on. What is not known yet is searched for from now on; he waits for it, but not
        for long, and not while a search goes on that takes longer."""
        log = self._partition.log
        if self._generation != log.generation:
            self._generation = log.generation
            self._chunks.clear()
        self._chunks.drop_below(log.log_start)
        since = max(since, log.log_start)
        if self.is_scanning:
            self._wanted = min(self._wanted, since)
        elif not self._is_known(since) and not self._is_known_now(since):
            self._wanted = since
            self._chunks.is_searching = True
            name = f"lanes of {self._partition.topic}-{self._partition.index}"
            self._task = self._scans.tasks.start(name, self._scan())
            wait_ms = self._scans.wait_ms if self._has_waited else self._scans.first_wait_ms
            self._has_waited = True
            await self.wait(wait_ms)

    def knows(self, since: int) -> bool:
        """Whether `want` would have nothing to do."""
        log = self._partition.log
        if self._generation != log.generation or self.is_scanning:
            return False
        self._chunks.drop_below(log.log_start)
        return self._is_known(since)

    def _is_known(self, since: int) -> bool:
        return self.covered_upto(since) >= self._partition.log.readable_end

    def _is_known_now(self, since: int) -> bool:
        """What came since the last look is little, mostly, and in memory: then it is searched at once, so that not even
        the next message overtakes an urgent one."""
        log, chunk = self._partition.log, self._chunks.growing
        place = self.covered_upto(since)
        segment = log.segment_of(place)
        is_new = chunk is None and segment.is_active
        if is_new:
            chunk = self._begin(segment, place)
        if chunk is None or chunk.upto != place or chunk.segment is not segment:
            return False
        plan = log.plan_read(place, bytes_max=INLINE_BYTES_MAX)
        if not isinstance(plan, ReadPlan):
            return False
        plan.must_fit = True
        loaded = plan.load_cached()
        if loaded is None or not len(loaded):
            return False
        self._take(chunk, find_lanes(loaded, breathe=_nothing), is_new=is_new)
        return self._is_known(since)

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

    async def batches(self, lane: int, since: int, upto: int, count_max: int) -> tuple[list[int], int]:
        """Base offsets of batches that may hold messages of the lane from `since` on, and up to where these are all
        of them."""
        found: list[int] = []
        position = since
        while position < upto:
            chunk = self._chunks.at(position)
            if chunk is None:
                return found, position
            end = min(chunk.upto, upto)
            if self._chunks.has_lane(chunk, lane):
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

    async def _load(self, chunk: LaneChunk) -> LaneEntries | None:
        """From its side file. None: it must be searched again."""
        assert chunk.facts is not None, "what is not in memory is in a side file"
        entries = await self._scans.in_thread(partial(_read, self._partition.log.context.files, chunk.facts))
        if entries is None:
            self._chunks.remove(chunk)
        else:
            self._chunks.put_back(chunk, entries)
        return entries

    # Searching

    async def _scan(self) -> None:
        try:
            while await self._scan_on():
                pass
        finally:
            self._chunks.is_searching = False

    async def _scan_on(self) -> bool:
        """One step, and a rest. False: everything is known, or the log cannot be read on."""
        loop, log = asyncio.get_running_loop(), self._partition.log
        place = self.covered_upto(max(self._wanted, log.log_start))
        if log.generation != self._generation or place >= log.readable_end:
            return False
        async with self._scans.turn:
            begun = loop.time()
            if not await self._step(place):
                return False
            spent = loop.time() - begun
        if self._has_news:
            self._has_news = False
            self.on_progress()
        if self._is_known(max(self._wanted, log.log_start)):
            return False
        await asyncio.sleep(spent * REST_SHARE)
        return True

    async def _step(self, place: int) -> bool:
        """One slice or one side file further; False: the log cannot be read there."""
        log, growing = self._partition.log, self._chunks.growing
        segment = log.segment_of(place)
        if growing is not None and growing.segment is segment and growing.upto <= place:
            return await self._grow(growing, segment)
        if growing is not None:
            await self._finish(growing)
            return True
        is_sealed = not segment.is_active and segment.next_offset <= log.readable_end
        if is_sealed and await self._adopt_file(segment):
            return True
        # A sealed one from its beginning, so that a side file can be made of it.
        start = max(segment.base_offset, log.log_start) if is_sealed else place
        return await self._grow(self._begin(segment, start), segment)

    def _begin(self, segment: Segment, offset: int) -> LaneChunk:
        chunk = LaneChunk(self._chunks, offset, offset, LaneEntries(segment.base_offset))
        chunk.segment = segment
        return chunk

    async def _adopt_file(self, segment: Segment) -> bool:
        facts = facts_of(segment)
        entries = await self._scans.in_thread(partial(_read, self._partition.log.context.files, facts))
        if entries is None or self._is_other(segment):
            return False
        chunk = LaneChunk(self._chunks, segment.base_offset, segment.next_offset, entries)
        chunk.facts = facts
        self._chunks.make_room(chunk.since, chunk.upto, chunk)
        self._chunks.insert(chunk)
        self._has_news |= bool(entries.lanes)
        self._chunks.join_empty(chunk)
        return True

    async def _grow(self, chunk: LaneChunk, segment: Segment) -> bool:
        log, is_new = self._partition.log, chunk.upto == chunk.since
        plan = log.plan_read(chunk.upto, bytes_max=self._scans.slice_bytes)
        damage_end = self._partition.damage_end(chunk.upto)
        if damage_end is not None:
            # Nothing in it can be delivered, so it holds nothing of any lane.
            seen: LanesSeen | None = LanesSeen((), chunk.upto, damage_end, chunk.last_batch_bytes, 0)
        elif isinstance(plan, ReadPlan):
            seen = await self._scans.in_thread(partial(_search, plan))
        else:
            return False
        # A segment that was replaced meanwhile is all the same: what was in the old one may be in the new one.
        if seen is None or log.generation != self._generation:
            return False
        if not is_new and chunk not in self._chunks:
            return True  # removed meanwhile
        self._take(chunk, seen, is_new=is_new)
        if chunk.upto >= segment.next_offset and not segment.is_active:
            await self._finish(chunk)
        return True

    def _take(self, chunk: LaneChunk, seen: LanesSeen, *, is_new: bool) -> None:
        assert chunk.entries is not None, "what grows is in memory"
        for batch_offset, lanes in seen.batches:
            chunk.entries.add(batch_offset, lanes)
        self._scans.searched_bytes += seen.size_bytes
        self._has_news |= bool(seen.batches)
        chunk.last_batch_bytes = seen.last_batch_bytes
        self._chunks.make_room(min(chunk.upto, seen.first_offset), seen.next_offset, chunk)
        chunk.upto = seen.next_offset
        if is_new:
            chunk.since = min(chunk.since, seen.first_offset)
            self._chunks.growing = chunk
            self._chunks.insert(chunk)
        else:
            self._chunks.note(chunk)

    async def _finish(self, chunk: LaneChunk) -> None:
        """Its segment is searched to its end; if from its beginning, a file says so from now on."""
        segment, chunk.segment, self._chunks.growing = chunk.segment, None, None
        log, entries = self._partition.log, chunk.entries
        assert segment is not None
        assert entries is not None
        is_whole = chunk.since <= max(segment.base_offset, log.log_start) and chunk.upto == segment.next_offset
        if is_whole and not segment.is_active and not self._is_other(segment) and not log.context.is_full:
            facts = facts_of(segment)
            write = partial(_write, log.context.files, facts, entries, chunk.last_batch_bytes)
            is_written = await self._scans.in_thread(write)
            if is_written and self._is_other(segment):
                # Its files were removed before this one came.
                await self._scans.in_thread(partial(remove_lane_file, log.context.files, segment.prefix))
            elif is_written:
                chunk.facts = facts
        if chunk in self._chunks:
            self._chunks.join_empty(chunk)

    def _is_other(self, segment: Segment) -> bool:
        """The log holds it no longer."""
        log = self._partition.log
        return not log.segments or segment is not log.segment_of(segment.base_offset)


def _read(files: Files, facts: SegmentFacts) -> LaneEntries | None:
    try:
        return read_lane_file(files, facts)
    except OSError:
        return None


def _write(files: Files, facts: SegmentFacts, entries: LaneEntries, last_batch_bytes: int) -> bool:
    try:
        write_lane_file(files, facts, entries, last_batch_bytes=last_batch_bytes)
    except OSError as error:
        _log.warning("side file not written", name=facts.name, directory=facts.directory, error=str(error))
        return False
    return True


def _search(plan: ReadPlan) -> LanesSeen | None:
    loaded = plan.load()
    # Damage is told by whoever reads it for somebody.
    return None if isinstance(loaded, Damage) or not len(loaded) else find_lanes(loaded, breathe=_breathe)


def _breathe() -> None:
    """A thread that computes in Python would otherwise keep the loop waiting for 5 ms."""
    time.sleep(0)


def _nothing() -> None: ...
