"""Looking through an internal log for what its zones speak of: the blocking half of `index`, done in a thread."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.machine.portions import readable_rows_of
from penstock.broker.partition.shell import PartitionShell
from penstock.codec.batch.header import BatchHeader, BatchProblem, walk_headers
from penstock.codec.batch.records import StoredRecord, parse_records, read_payload
from penstock.codec.batch.walk import parse_some, record_starts
from penstock.domain.trace.zones import Row, ZoneEntry
from penstock.storage.errors import Damage
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.segment.facts import Segment
from penstock.storage.segment.lanes import SegmentFacts, facts_of
from penstock.storage.segment.zones import ZoneEntries, ZonesRead, read_zone_file, write_zone_file

_log = get_logger("trace")

# Read at once: some ten milliseconds of a thread.
SLICE_BYTES: Final = 512 * 1024
# Some hundred records: a millisecond to look through.
ZONE_BYTES: Final = 32 * 1024
# What is known of an active segment is written down after so much: that, and no more, a start has to read again. Where
# much is known of few bytes it is done less often, or the side files would be written more than the log.
SAVED_BYTES: Final = 512 * 1024
SAVED_SHARE: Final = 4
# Records that hold some bytes are few if they are fewer than one in so many.
RARE_SHARE: Final = 4

Result = TypeVar("Result")


class ScanSizes(msgspec.Struct, frozen=True):
    """How an internal log is looked through."""

    slice_bytes: int = SLICE_BYTES
    zone_bytes: int = ZONE_BYTES
    saved_bytes: int = SAVED_BYTES


class ZoneMaker(Protocol):
    def entries(self, rows: Iterable[Row]) -> list[ZoneEntry]: ...


class Growing:
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
        "sizes",
        "upto",
        "zone_bytes",
    )

    def __init__(self, segment: Segment, start: int, maker: ZoneMaker, sizes: ScanSizes) -> None:
        self.segment = segment
        self.sizes = sizes
        self.upto = start
        # Only what begins with the segment can be written down.
        self.is_whole = start == segment.base_offset
        self.maker = maker
        self.entries = ZoneEntries(segment.base_offset)
        # Of the zone that was begun last.
        self.zone_bytes = sizes.zone_bytes
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
        return self.is_whole and unsaved_bytes >= max(self.sizes.saved_bytes, SAVED_SHARE * self.entries.size_bytes)

    def facts(self) -> SegmentFacts:
        whole = facts_of(self.segment)
        return SegmentFacts(whole.directory, whole.base_offset, self.upto, self.size_bytes, self.record_count)


def pick(entries: ZoneEntries, look: Callable[[ZoneEntries], Iterable[int]]) -> list[int]:
    return sorted(set(look(entries)))


def read_side_file(shell: PartitionShell, facts: SegmentFacts) -> ZonesRead | None:
    try:
        return read_zone_file(shell.log.context.files, facts)
    except OSError:
        return None


def save(shell: PartitionShell, growing: Growing) -> ZoneEntries:
    """Written down, if it can be; in order, in any case."""
    entries, facts, context = growing.entries.sorted(), growing.facts(), shell.log.context
    try:
        if growing.is_whole and not context.is_full:
            write_zone_file(context.files, facts, entries, last_batch_bytes=growing.last_batch_bytes)
            growing.saved_bytes = growing.size_bytes
    except OSError as error:
        _log.warning("side file not written", directory=facts.directory, base=facts.base_offset, error=str(error))
    return entries


def take(plan: ReadPlan, growing: Growing) -> int:
    """Bytes that were looked through; 0: they cannot be read, which whoever needs them will say."""
    loaded = plan.load()
    if isinstance(loaded, Damage) or not len(loaded):
        return 0
    headers = list(walk_headers(loaded))
    rows = readable_rows_of(loaded, headers)
    offsets = [row[0] for row in rows]
    begin = 0
    for first, last in _zones_of(headers, growing):
        end = bisect_left(offsets, headers[last][1].next_offset, begin)
        if growing.zone_bytes >= growing.sizes.zone_bytes:
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


def _zones_of(headers: Sequence[tuple[int, BatchHeader]], growing: Growing) -> Iterator[tuple[int, int]]:
    """First and last batch of each zone, the first of which may go on with the one before."""
    zone_bytes = growing.sizes.zone_bytes
    size_bytes = growing.zone_bytes if growing.zone_bytes < zone_bytes else 0
    first = 0
    for place, (_, header) in enumerate(headers):
        size_bytes += header.size_bytes
        if size_bytes >= zone_bytes or place == len(headers) - 1:
            yield first, place
            first, size_bytes = place + 1, 0


def keep_rows(plan: ReadPlan, keep: Callable[[StoredRecord], Result | None], holding: bytes) -> list[Result]:
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
    # Where most of them hold it, one walk through all is quicker than a search for each.
    is_rare = bool(holding) and plain.count(holding) * RARE_SHARE < header.record_count
    starts = record_starts(header, plain) if is_rare else None
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
