"""Where in an internal log records about one thing lie, without reading the log: zones of it (`storage/segment/zones`).

Nothing is done at an append. Sealed segments are read once in their life, in the background and slice by slice in a
thread, and a side file keeps what they speak of. Of the active segment that much is known in memory, but for its last
half megabyte; whoever asks has the rest read first. Memory is bounded over the whole node: what is pushed out
is read again from its file.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import msgspec

from penstock.base.threads import finish_in_thread
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.trace.scan import Growing, ScanSizes, ZoneMaker, keep_rows, pick, read_side_file, save, take
from penstock.codec.batch.records import StoredRecord
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.lanes import SegmentFacts, facts_of
from penstock.storage.segment.zones import ZoneEntries

# After so long it rests for so much of it: the node has other things to do.
REST_SHARE: Final = 1.0
# Of an active segment this much may be unknown until somebody asks: some ten milliseconds of a thread.
BEHIND_BYTES_MAX: Final = 512 * 1024
# What is known of all active segments together may take so much memory before nothing is done in advance any more.
GROWING_BYTES_MAX: Final = 64 * 1024 * 1024
# Whoever asks about a log that was never looked through waits so long for it, and is told what is known by then.
WAIT_SECONDS_MAX: Final = 15.0
# Entries of sealed segments that are kept in memory, all logs together.
MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024

Result = TypeVar("Result")


class Zone(msgspec.Struct, frozen=True):
    """Batches from `start` up to, without, `end`."""

    start: int
    end: int


class TraceScans:
    """What the indexes of all logs share: the threads, the turn to use one, and the bound on memory."""

    def __init__(
        self,
        readers: Executor,
        *,
        memory_bytes_max: int = MEMORY_BYTES_MAX,
        wait_seconds_max: float = WAIT_SECONDS_MAX,
        sizes: ScanSizes | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.turn = asyncio.Lock()
        self.wait_seconds_max = wait_seconds_max
        self.now = now
        self.sizes = sizes or ScanSizes()
        # Of logs, since the start; side files do not count.
        self.read_bytes = 0
        self._readers = readers
        self._memory_bytes_max = memory_bytes_max
        self._memory: OrderedDict[SegmentFacts, ZoneEntries] = OrderedDict()
        self._memory_bytes = 0
        # Of active segments, all logs together.
        self.growing_bytes = 0

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Finished also when it is cancelled: nobody else may change the same things meanwhile."""
        return await finish_in_thread(work, self._readers)

    def recall(self, facts: SegmentFacts) -> ZoneEntries | None:
        entries = self._memory.get(facts)
        if entries is not None:
            self._memory.move_to_end(facts)
        return entries

    def remember(self, facts: SegmentFacts, entries: ZoneEntries) -> None:
        if facts in self._memory:
            return
        self._memory[facts] = entries
        self._memory_bytes += entries.size_bytes
        while self._memory_bytes > self._memory_bytes_max and len(self._memory) > 1:
            self._memory_bytes -= self._memory.popitem(last=False)[1].size_bytes


class TraceIndex:
    """Of one internal log."""

    def __init__(self, shell: PartitionShell, make_zones: Callable[[], ZoneMaker], scans: TraceScans) -> None:
        self.shell = shell
        self._make_zones = make_zones
        self._scans = scans
        self._generation = shell.log.generation
        self._lock = asyncio.Lock()
        # Sealed segments with a side file, by base offset.
        self._known: dict[int, SegmentFacts] = {}
        self._growing: Growing | None = None
        # Who waits for an answer: then nobody rests.
        self._waiting_count = 0
        # Of what the index of an active segment takes, as far as it is counted.
        self._counted_bytes = 0
        self._is_forgotten = False
        # Whether the last answer was given before everything was looked through.
        self.is_behind = False

    def forget(self) -> None:
        """Nobody asks any more, because the log is gone or another one has taken its place: its memory is free for
        others. What was being looked through is counted for no longer, however it ends."""
        self._count(0)
        self._is_forgotten = True

    # Asking

    async def find(self, look: Callable[[ZoneEntries], Iterable[int]]) -> list[Zone]:
        """Zones that `look` picks from the entries of each segment, in the order of the log."""
        async with self._caught_up():
            return await self._find(look)

    async def _find(self, look: Callable[[ZoneEntries], Iterable[int]]) -> list[Zone]:
        found: list[Zone] = []
        for segment in list(self.shell.log.segments):
            facts, growing = self._known.get(segment.base_offset), self._growing
            if facts is not None:
                entries = self._scans.recall(facts) or await self._load(facts)
                end = facts.next_offset
            elif growing is not None and growing.segment is segment:
                entries, end = growing.entries, growing.upto
            else:
                entries = None
            if entries is None:
                continue
            picked = await self._scans.in_thread(partial(pick, entries, look))
            found += [Zone(entries.zone_start(zone), entries.zone_end(zone) or end) for zone in picked]
        return found

    @asynccontextmanager
    async def _caught_up(self) -> AsyncIterator[None]:
        """Nobody moves on meanwhile: on its way from memory to its file a segment would be in neither."""
        wait_seconds_max = self._scans.wait_seconds_max
        deadline = self._scans.now() + wait_seconds_max
        self._waiting_count += 1
        try:
            await asyncio.wait_for(self._lock.acquire(), wait_seconds_max)
        except TimeoutError:
            # Somebody else is at it, and goes on.
            self.is_behind = True
            yield
            return
        finally:
            self._waiting_count -= 1
        try:
            self.is_behind = not await self._cover(deadline=deadline, behind_bytes_max=0)
            yield
        finally:
            self._lock.release()

    async def _load(self, facts: SegmentFacts) -> ZoneEntries | None:
        read = await self._scans.in_thread(partial(read_side_file, self.shell, facts))
        if read is None or read.next_offset != facts.next_offset:
            # Retention or compaction was here meanwhile; or the file is bad, and is made again the next time. Until
            # then something is missing.
            self._known.pop(facts.base_offset, None)
            self.is_behind = True
            return None
        self._scans.remember(facts, read.entries)
        return read.entries

    async def rows(
        self, zones: Sequence[Zone], keep: Callable[[StoredRecord], Result | None], *, holding: bytes = b""
    ) -> list[Result]:
        """What `keep` makes of the records of zones; it is called in a thread. Zones that are gone are left out, and so
        are records without the bytes `holding`, which is much quicker than to look at them."""
        kept: list[Result] = []
        for zone in zones:
            log = self.shell.log
            start = max(zone.start, log.log_start)
            plan = log.plan_read(start, bytes_max=_ZONE_BYTES_MAX, up_to=zone.end) if start < zone.end else None
            if isinstance(plan, ReadPlan):
                kept += await self._scans.in_thread(partial(keep_rows, plan, keep, holding))
        return kept

    # Covering

    async def tend(self) -> None:
        """From time to time: sealed segments get their side files, so that nobody has to wait for that."""
        log = self.shell.log
        upto = self._growing.upto if self._growing is not None else -1
        is_known = all(segment.base_offset in self._known for segment in log.segments[:-1])
        behind = 0 if not log.segments else log.segments[-1].size
        is_full = self._scans.growing_bytes > GROWING_BYTES_MAX
        if is_known and (is_full or behind <= BEHIND_BYTES_MAX or upto >= log.readable_end):
            return
        async with self._lock:
            await self._cover(deadline=None, behind_bytes_max=BEHIND_BYTES_MAX)

    async def _cover(self, *, deadline: float | None, behind_bytes_max: int) -> bool:
        """Whether all is known then; with a deadline it may not be."""
        log = self.shell.log
        if self._generation != log.generation:
            self._generation = log.generation
            self._known.clear()
            self._grow_on(None)
        present = {segment.base_offset for segment in log.segments}
        for gone in [base_offset for base_offset in self._known if base_offset not in present]:
            del self._known[gone]
        for segment in list(log.segments):
            if deadline is not None and self._scans.now() > deadline:
                return False
            if segment.is_active or segment.next_offset > log.readable_end:
                await self._grow(segment, deadline=deadline, behind_bytes_max=behind_bytes_max)
                # Nothing behind it can be read yet.
                break
            if self._known.get(segment.base_offset) != facts_of(segment):
                await self._seal(segment, deadline=deadline)
        return deadline is None or self._scans.now() <= deadline

    async def _seal(self, segment: Segment, *, deadline: float | None) -> None:
        """A sealed segment's side file: as it is on disk, or made now."""
        facts = facts_of(segment)
        self._known.pop(segment.base_offset, None)
        if segment.record_count == 0:
            return
        read = await self._scans.in_thread(partial(read_side_file, self.shell, facts))
        if read is not None and read.next_offset == facts.next_offset:
            entries = read.entries
        else:
            if not await self._grow(segment, deadline=deadline, behind_bytes_max=0):
                return
            growing = self._growing
            assert growing is not None
            self._grow_on(None)
            entries = await self._scans.in_thread(partial(save, self.shell, growing))
        if self._holds(segment):
            self._known[segment.base_offset] = facts
            self._scans.remember(facts, entries)

    def _grow_on(self, growing: Growing | None) -> None:
        self._growing = growing
        self._count(0 if growing is None else growing.entries.size_bytes)

    def _count(self, size_bytes: int) -> None:
        if not self._is_forgotten:
            self._scans.growing_bytes += size_bytes - self._counted_bytes
            self._counted_bytes = size_bytes

    async def _begin(self, segment: Segment) -> Growing:
        log = self.shell.log
        growing = Growing(segment, max(segment.base_offset, log.log_start), self._make_zones(), self._scans.sizes)
        read = await self._scans.in_thread(partial(read_side_file, self.shell, facts_of(segment)))
        if read is not None and read.next_offset <= log.readable_end:
            growing.adopt(read)
        self._grow_on(growing)
        return growing

    async def _grow(self, segment: Segment, *, deadline: float | None, behind_bytes_max: int) -> bool:
        """Reads a segment on; whether it is known to its end, or to what may be read of it."""
        log, growing = self.shell.log, self._growing
        if growing is None or growing.segment is not segment:
            if segment.size <= behind_bytes_max:
                return False
            growing = await self._begin(segment)
        end = min(segment.next_offset, log.readable_end)
        while growing.upto < end and log.generation == self._generation and self._holds(segment):
            plan = log.plan_read(growing.upto, bytes_max=self._scans.sizes.slice_bytes, up_to=end)
            if not isinstance(plan, ReadPlan) or (deadline is not None and self._scans.now() > deadline):
                return False
            async with self._scans.turn:
                began = self._scans.now()
                size = await self._scans.in_thread(partial(take, plan, growing))
                spent = self._scans.now() - began
            self._scans.read_bytes += size
            self._count(growing.entries.size_bytes)
            if not size:
                return False
            if segment.is_active and growing.is_save_due:
                await self._scans.in_thread(partial(save, self.shell, growing))
            if deadline is None and not self._waiting_count:
                await asyncio.sleep(spent * REST_SHARE)
        return growing.upto >= end

    def _holds(self, segment: Segment) -> bool:
        segments = self.shell.log.segments
        return bool(segments) and segment is self.shell.log.segment_of(segment.base_offset)


# One batch at least is read, and a zone is one batch or some ten kilobytes; a queue's snapshot may be large.
_ZONE_BYTES_MAX: Final = 64 * 1024 * 1024
