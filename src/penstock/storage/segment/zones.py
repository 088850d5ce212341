"""What the zones of a segment speak of: so that the few records about one thing are found without reading the rest.

    <base offset, 20 digits>.zones    magic · length · CRC-32C · identity · counts · where zones begin · entries

A zone is a stretch of whole batches of some ten kilobytes. An entry says: this zone speaks of `key`, and of numbers
from `low` to `high`. What keys and numbers are is the business of who made the entries (`domain/trace/zones`); they are
hints, which may name too many zones, never too few.

The file is made in the background, never by an append, of a segment or of its first batches. Nothing is synced: a
crash costs another look at the segment. It counts only for the very batches that it was made of.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.storage.files.protocols import Files
from penstock.storage.files.small import TEMPORARY_SUFFIX, read_small_file, write_temporary
from penstock.storage.segment.lanes import IDENTITY_BYTES, SegmentFacts, segment_identity
from penstock.storage.segment.side_files import ZONES_SUFFIX

ZONES_MAGIC: Final = b"pszones1"
_COUNTS = struct.Struct("<II")
# The beginning of an identity: base offset, next offset, size, records, bytes of the last batch.
_IDENTITY = struct.Struct("<qqqqI")
_ENTRY_BYTES: Final = 28
# Above this Python's own sort would keep the interpreter for longer than others should wait.
_SORTED_HERE_MAX: Final = 5_000

# Key, low, high, zone.
Entry = tuple[int, int, int, int]


class ZoneEntries:
    """Entries of the zones of one segment, in columns. Grows at its end; a finished one is in the order of its keys."""

    __slots__ = ("base_offset", "highs", "is_sorted", "keys", "lows", "starts", "zones")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        # Where zones begin, from the base offset on.
        self.starts = array("I")
        self.keys = array("Q")
        self.lows = array("Q")
        self.highs = array("Q")
        self.zones = array("I")
        self.is_sorted = False

    def begin_zone(self, offset: int) -> None:
        self.starts.append(offset - self.base_offset)

    def add(self, key: int, low: int, high: int) -> None:
        """Of the zone that was begun last."""
        self.keys.append(key)
        self.lows.append(low)
        self.highs.append(high)
        self.zones.append(len(self.starts) - 1)

    @property
    def size_bytes(self) -> int:
        return 4 * len(self.starts) + _ENTRY_BYTES * len(self.keys)

    def zone_start(self, zone: int) -> int:
        return self.base_offset + self.starts[zone]

    def zone_end(self, zone: int) -> int | None:
        """None: where the entries end."""
        return self.base_offset + self.starts[zone + 1] if zone + 1 < len(self.starts) else None

    def find(self, key_first: int, key_last: int, *, low_min: int = 0, low_max: int = (1 << 64) - 1) -> Iterator[Entry]:
        """With one key the numbers narrow it down; with many they are looked at one by one."""
        # The last column to grow: a reader in another thread never looks past it.
        places = range(len(self.zones))
        if self.is_sorted:
            begin, end = bisect_left(self.keys, key_first), bisect_right(self.keys, key_last)
            if key_first == key_last:
                begin, end = bisect_left(self.lows, low_min, begin, end), bisect_right(self.lows, low_max, begin, end)
            places = range(begin, end)
        for place in places:
            key, low = self.keys[place], self.lows[place]
            if key_first <= key <= key_last and low_min <= low <= low_max:
                yield key, low, self.highs[place], self.zones[place]

    def sorted(self) -> ZoneEntries:
        """Blocking, if there are many."""
        done = ZoneEntries(self.base_offset)
        done.starts = self.starts
        done.is_sorted = True
        columns = (self.keys, self.lows, self.highs, self.zones)
        if len(self.keys) <= _SORTED_HERE_MAX:
            for key, low, high, zone in sorted(zip(*columns, strict=True)):
                done.keys.append(key)
                done.lows.append(low)
                done.highs.append(high)
                done.zones.append(zone)
            return done
        import polars as pl

        kinds = (pl.UInt64, pl.UInt64, pl.UInt64, pl.UInt32)
        frame = pl.DataFrame(
            [pl.Series(name, column, dtype=kind) for name, column, kind in zip("klhz", columns, kinds, strict=True)]
        ).sort("k", "l", "h", "z")
        for name, column in zip("klhz", (done.keys, done.lows, done.highs, done.zones), strict=True):
            column.extend(frame[name].to_list())
        return done

    def to_bytes(self) -> bytes:
        assert self.is_sorted
        counts = _COUNTS.pack(len(self.starts), len(self.keys))
        columns = (self.starts, self.keys, self.lows, self.highs, self.zones)
        return counts + b"".join(column.tobytes() for column in columns)

    @staticmethod
    def from_bytes(base_offset: int, data: bytes) -> ZoneEntries | None:
        zone_count, entry_count = _COUNTS.unpack_from(data)
        if len(data) != _COUNTS.size + 4 * zone_count + _ENTRY_BYTES * entry_count:
            return None
        entries = ZoneEntries(base_offset)
        entries.is_sorted = True
        position = _COUNTS.size
        sizes = (4 * zone_count, 8 * entry_count, 8 * entry_count, 8 * entry_count, 4 * entry_count)
        columns = (entries.starts, entries.keys, entries.lows, entries.highs, entries.zones)
        for column, size in zip(columns, sizes, strict=True):
            column.frombytes(data[position : position + size])
            position += size
        return entries


class ZonesRead(msgspec.Struct, frozen=True):
    """What a side file says of a segment, from its beginning up to, without, `next_offset`."""

    entries: ZoneEntries
    next_offset: int
    size_bytes: int
    record_count: int
    last_batch_bytes: int


def _name(facts: SegmentFacts) -> str:
    return f"{facts.base_offset:020}{ZONES_SUFFIX}"


def write_zone_file(files: Files, facts: SegmentFacts, entries: ZoneEntries, *, last_batch_bytes: int) -> None:
    """Blocking; OSError: there is none, or a bad one, and the next reader makes it again. `facts` may be those of the
    first batches of a segment that still grows."""
    identity = segment_identity(files, facts, last_batch_bytes)
    assert identity is not None, "a batch was read from it"
    write_temporary(files, facts.directory, _name(facts), ZONES_MAGIC, identity + entries.to_bytes())
    path = f"{facts.directory}/{_name(facts)}"
    files.rename(path + TEMPORARY_SUFFIX, path)


def read_zone_file(files: Files, facts: SegmentFacts) -> ZonesRead | None:
    """Blocking. None: there is none, it is torn, or it was made of another segment of this name."""
    payload = read_small_file(files, facts.directory, _name(facts), ZONES_MAGIC)
    if payload is None or len(payload) < IDENTITY_BYTES + _COUNTS.size:
        return None
    base_offset, next_offset, size_bytes, record_count, last_batch_bytes = _IDENTITY.unpack_from(payload)
    if base_offset != facts.base_offset or size_bytes > facts.size_bytes or next_offset > facts.next_offset:
        return None
    known = SegmentFacts(facts.directory, base_offset, next_offset, size_bytes, record_count)
    if payload[:IDENTITY_BYTES] != segment_identity(files, known, last_batch_bytes):
        return None
    entries = ZoneEntries.from_bytes(base_offset, payload[IDENTITY_BYTES:])
    return None if entries is None else ZonesRead(entries, next_offset, size_bytes, record_count, last_batch_bytes)


assert (array("I").itemsize, array("Q").itemsize) == (4, 8), "numbers in the file are of these sizes"
