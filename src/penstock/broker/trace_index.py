"""Where in an internal log records about one thing lie, without reading the log: zones of it (`storage/zone_file`).

Nothing is done at an append. Sealed segments are read once in their life, in the background and slice by slice in a
thread, and a side file keeps what they speak of. Of the active segment that much is known in memory, up to some
megabytes from its end; whoever asks has the rest read first. Memory is bounded over the whole node: what is pushed out
is read again from its file.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.partition_shell import PartitionShell
from penstock.codec.columns import VECTORED_ROWS_MIN, read_columns
from penstock.codec.record_batch import BatchHeader, BatchProblem, walk_headers
from penstock.codec.record_walk import parse_some, record_starts
from penstock.codec.records import StoredRecord, parse_records, read_payload, read_records
from penstock.domain.trace_zones import Row, ZoneEntry
from penstock.storage.lane_file import SegmentFacts, facts_of
from penstock.storage.read_plan import ReadPlan
from penstock.storage.segment import Segment
from penstock.storage.storage_errors import Damage
from penstock.storage.zone_file import ZoneEntries, ZonesRead, read_zone_file, write_zone_file

_log = get_logger("trace")

# Some hundred records: a millisecond to look through.
ZONE_BYTES: Final = 32 * 1024
# Some ten milliseconds of a thread.
SLICE_BYTES: Final = 512 * 1024
# After so long it rests for so much of it: the node has other things to do.
REST_SHARE: Final = 1.0
# Of an active segment this much may be unknown until somebody asks: some ten milliseconds of a thread.
BEHIND_BYTES_MAX: Final = 512 * 1024
# What is known of an active segment is written down after so much: that, and no more, a start has to read again. Where
# much is known of few bytes it is done less often, or the side files would be written more than the log.
SAVED_BYTES: Final = 1024 * 1024
SAVED_SHARE: Final = 4
# What is known of all active segments together may take so much memory before nothing is done in advance any more.
GROWING_BYTES_MAX: Final = 64 * 1024 * 1024
# Whoever asks about a log that was never looked through waits so long for it, and is told what is known by then.
WAIT_SECONDS_MAX: Final = 15.0
# Entries of sealed segments that are kept in memory, all logs together.
MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024

Result = TypeVar("Result")


class ZoneMaker(Protocol):
    def entries(self, rows: Iterable[Row]) -> list[ZoneEntry]: ...


class Zone(msgspec.Struct, frozen=True):
    """Batches from `start` up to, without, `end`."""

    start: int
    end: int


class TraceScans:
    """What the indexes of all logs share: the threads, the turn to use one, and the bound on memory."""

    def __init__(self, readers: Executor, *, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self.turn = asyncio.Lock()
        # Of logs, since the start; side files do not count.
        self.read_bytes = 0
        self._readers = readers
        self._memory_bytes_max = memory_bytes_max
        self._memory: OrderedDict[SegmentFacts, ZoneEntries] = OrderedDict()
        self._memory_bytes = 0
        # Of active segments, all logs together.
        self.growing_bytes = 0

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Whoever cancels it has to wait for what cannot be stopped: nobody else may change the same things."""
        running = asyncio.get_running_loop().run_in_executor(self._readers, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

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


class _Growing:
    """What is known of a segment that is being looked through: from its beginning up to `upto`."""

    __slots__ = (
        "entries",
        "is_whole",
        "last_batch_bytes",
        "maker",
        "record_count",
        "saved_bytes",
        "segment",
        "size_bytes",
        "upto",
        "zone_bytes",
    )

    def __init__(self, segment: Segment, start: int, maker: ZoneMaker) -> None:
        self.segment = segment
        self.upto = start
        # Only what begins with the segment can be written down.
        self.is_whole = start == segment.base_offset
        self.maker = maker
        self.entries = ZoneEntries(segment.base_offset)
        # Of the zone that was begun last.
        self.zone_bytes = ZONE_BYTES
        self.last_batch_bytes = 0
        self.record_count = 0
        self.size_bytes = 0
        self.saved_bytes = 0

    def adopt(self, read: ZonesRead) -> None:
        """Goes on from what a side file says."""
        self.entries = read.entries
        self.entries.is_sorted = False
        self.upto = read.next_offset
        self.is_whole = True
        self.record_count, self.last_batch_bytes = read.record_count, read.last_batch_bytes
        self.size_bytes = self.saved_bytes = read.size_bytes

    @property
    def is_save_due(self) -> bool:
        unsaved_bytes = self.size_bytes - self.saved_bytes
        return self.is_whole and unsaved_bytes >= max(SAVED_BYTES, SAVED_SHARE * self.entries.size_bytes)

    def facts(self) -> SegmentFacts:
        whole = facts_of(self.segment)
        return SegmentFacts(whole.directory, whole.base_offset, self.upto, self.size_bytes, self.record_count)


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
        self._growing: _Growing | None = None
        # Who waits for an answer: then nobody rests.
        self._waiting_count = 0
        # Whether the last answer was given before everything was looked through.
        self.is_behind = False

    # Asking

    async def find(self, look: Callable[[ZoneEntries], Iterable[int]]) -> list[Zone]:
        """Zones that `look` picks from the entries of each segment, in the order of the log."""
        await self._catch_up()
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
            picked = await self._scans.in_thread(partial(_pick, entries, look))
            found += [Zone(entries.zone_start(zone), entries.zone_end(zone) or end) for zone in picked]
        return found

    async def _catch_up(self) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        self._waiting_count += 1
        try:
            await asyncio.wait_for(self._lock.acquire(), WAIT_SECONDS_MAX)
        except TimeoutError:
            # Somebody else is at it, and goes on.
            self.is_behind = True
            return
        finally:
            self._waiting_count -= 1
        try:
            self.is_behind = not await self._cover(deadline=deadline, behind_bytes_max=0)
        finally:
            self._lock.release()

    async def _load(self, facts: SegmentFacts) -> ZoneEntries | None:
        read = await self._scans.in_thread(partial(_read, self.shell, facts))
        if read is None or read.next_offset != facts.next_offset:
            # Retention or compaction was here meanwhile; or the file is bad, and is made again the next time.
            self._known.pop(facts.base_offset, None)
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
                kept += await self._scans.in_thread(partial(_keep, plan, keep, holding))
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
            if deadline is not None and time.monotonic() > deadline:
                return False
            if segment.is_active or segment.next_offset > log.readable_end:
                await self._grow(segment, deadline=deadline, behind_bytes_max=behind_bytes_max)
            elif self._known.get(segment.base_offset) != facts_of(segment):
                await self._seal(segment, deadline=deadline)
        return deadline is None or time.monotonic() <= deadline

    async def _seal(self, segment: Segment, *, deadline: float | None) -> None:
        """A sealed segment's side file: as it is on disk, or made now."""
        facts = facts_of(segment)
        self._known.pop(segment.base_offset, None)
        if segment.record_count == 0:
            return
        read = await self._scans.in_thread(partial(_read, self.shell, facts))
        if read is not None and read.next_offset == facts.next_offset:
            entries = read.entries
        else:
            if not await self._grow(segment, deadline=deadline, behind_bytes_max=0):
                return
            growing = self._growing
            assert growing is not None
            self._grow_on(None)
            entries = await self._scans.in_thread(partial(_save, self.shell, growing))
        if self._holds(segment):
            self._known[segment.base_offset] = facts
            self._scans.remember(facts, entries)

    def _grow_on(self, growing: _Growing | None) -> None:
        scans = self._scans
        scans.growing_bytes -= 0 if self._growing is None else self._growing.entries.size_bytes
        self._growing = growing
        scans.growing_bytes += 0 if growing is None else growing.entries.size_bytes

    async def _begin(self, segment: Segment) -> _Growing:
        log = self.shell.log
        growing = _Growing(segment, max(segment.base_offset, log.log_start), self._make_zones())
        read = await self._scans.in_thread(partial(_read, self.shell, facts_of(segment)))
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
            plan = log.plan_read(growing.upto, bytes_max=SLICE_BYTES, up_to=end)
            if not isinstance(plan, ReadPlan) or (deadline is not None and time.monotonic() > deadline):
                return False
            async with self._scans.turn:
                began, before_bytes = time.monotonic(), growing.entries.size_bytes
                size = await self._scans.in_thread(partial(_take, plan, growing))
                spent = time.monotonic() - began
            self._scans.read_bytes += size
            self._scans.growing_bytes += growing.entries.size_bytes - before_bytes
            if not size:
                return False
            if segment.is_active and growing.is_save_due:
                await self._scans.in_thread(partial(_save, self.shell, growing))
            if deadline is None and not self._waiting_count:
                await asyncio.sleep(spent * REST_SHARE)
        return growing.upto >= end

    def _holds(self, segment: Segment) -> bool:
        segments = self.shell.log.segments
        return bool(segments) and segment is self.shell.log.segment_of(segment.base_offset)


# One batch at least is read, and a zone is one batch or some ten kilobytes; a queue's snapshot may be large.
_ZONE_BYTES_MAX: Final = 64 * 1024 * 1024

# --- in a thread ---------------------------------------------------------------------------------------------------


def _pick(entries: ZoneEntries, look: Callable[[ZoneEntries], Iterable[int]]) -> list[int]:
    return sorted(set(look(entries)))


def _read(shell: PartitionShell, facts: SegmentFacts) -> ZonesRead | None:
    try:
        return read_zone_file(shell.log.context.files, facts)
    except OSError:
        return None


def _save(shell: PartitionShell, growing: _Growing) -> ZoneEntries:
    """Written down, if it can be; in order, in any case."""
    entries, facts, context = growing.entries.sorted(), growing.facts(), shell.log.context
    try:
        if growing.is_whole and not context.is_full:
            write_zone_file(context.files, facts, entries, last_batch_bytes=growing.last_batch_bytes)
            growing.saved_bytes = growing.size_bytes
    except OSError as error:
        _log.warning("side file not written", directory=facts.directory, base=facts.base_offset, error=str(error))
    return entries


def _take(plan: ReadPlan, growing: _Growing) -> int:
    """Bytes that were looked through; 0: they cannot be read, which whoever needs them will say."""
    loaded = plan.load()
    if isinstance(loaded, Damage) or not len(loaded):
        return 0
    headers = list(walk_headers(loaded))
    rows = list(_rows(loaded, headers))
    offsets = [row[0] for row in rows]
    begin = 0
    for first, last in _zones_of(headers, growing):
        end = bisect_left(offsets, headers[last][1].next_offset, begin)
        if growing.zone_bytes >= ZONE_BYTES:
            growing.entries.begin_zone(headers[first][1].base_offset)
            growing.zone_bytes = 0
        growing.zone_bytes += sum(header.size_bytes for _, header in headers[first : last + 1])
        for key, low, high in growing.maker.entries(rows[begin:end]):
            growing.entries.add(key, low, high)
        begin = end
        # A thread that computes would otherwise keep the loop waiting for 5 ms.
        time.sleep(0)
    growing.last_batch_bytes = headers[-1][1].size_bytes
    growing.size_bytes += len(loaded)
    growing.record_count += sum(header.record_count for _, header in headers)
    growing.upto = headers[-1][1].next_offset
    return len(loaded)


def _zones_of(headers: Sequence[tuple[int, BatchHeader]], growing: _Growing) -> Iterator[tuple[int, int]]:
    """First and last batch of each zone, the first of which may go on with the one before."""
    size_bytes = growing.zone_bytes if growing.zone_bytes < ZONE_BYTES else 0
    first = 0
    for place, (_, header) in enumerate(headers):
        size_bytes += header.size_bytes
        if size_bytes >= ZONE_BYTES or place == len(headers) - 1:
            yield first, place
            first, size_bytes = place + 1, 0


def _rows(loaded: memoryview, headers: Sequence[tuple[int, BatchHeader]]) -> Iterator[Row]:
    """Offsets, keys and values; what cannot be read is left out."""
    if sum(header.record_count for _, header in headers) >= VECTORED_ROWS_MIN:
        frame = read_columns(loaded)
        if not isinstance(frame, BatchProblem):
            yield from zip(*(frame[name].to_list() for name in ("offset", "key", "value")), strict=True)
            return
    for position, header in headers:
        if header.is_control or not header.record_count:
            continue
        records = read_records(loaded, position)
        if not isinstance(records, BatchProblem):
            yield from ((record.offset, record.key, record.value) for record in records)


def _keep(plan: ReadPlan, keep: Callable[[StoredRecord], Result | None], holding: bytes) -> list[Result]:
    loaded = plan.load()
    if isinstance(loaded, Damage):
        return []
    found: list[Result] = []
    for position, header in walk_headers(loaded):
        if header.record_count and not header.is_control:
            records = _records_holding(loaded, position, header, holding)
            found += [kept for record in records if (kept := keep(record)) is not None]
    return found


def _records_holding(loaded: memoryview, position: int, header: BatchHeader, holding: bytes) -> Iterable[StoredRecord]:
    payload = read_payload(loaded, position, header)
    if isinstance(payload, BatchProblem):
        return ()
    plain = bytes(payload)
    starts = record_starts(header, plain) if holding else None
    if starts is None:
        records = parse_records(header, plain)
        return () if isinstance(records, BatchProblem) else records
    some: list[StoredRecord] = []
    place = 0
    while (at := plain.find(holding, starts[place])) >= 0:
        # The record in which it begins; the next search goes on behind that.
        number = bisect_right(starts, at) - 1
        parsed = parse_some(header, plain, starts, number, number)
        some += () if isinstance(parsed, BatchProblem) else parsed
        place = number + 1
    return some
