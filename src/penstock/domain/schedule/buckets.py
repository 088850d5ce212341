"""When pending messages are due: far ones in files that others keep, near ones on a timing wheel.

    level 4  every 139 years ─┐
    level 3  2.2 years       ─┤  a file for each span of time: entries of due time and place, as they came.
    level 2  12 days         ─┤  When its span comes near, a file is read, and its entries go down a level or more
    level 1  4.7 hours       ─┤
    level 0  4.4 minutes     ─┴► read into the wheel when it comes near

So memory is that of the near messages, and of them eight bytes each; everything else is on disk, and written at most
four more times. Nothing here is journalled: it follows from the records, whose due times never change. A place whose
message has ended, or has another place now, is left where it is and passed over when its time comes.

A new entry waits in `spill` until the caller takes it. An entry may stand twice, after a restart in the midst of
reading: whoever takes messages looks whether they are still pending.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final

from penstock.base.timers import TimingWheel
from penstock.domain.schedule.commands import BucketName, BucketPart, BucketRead, BucketWrite
from penstock.domain.schedule.records import StoredBucket

_SHIFTS: Final = (18, 24, 30, 36, 42)
# A message goes to the level below if it is due before so much time is over: then there are about 64 files of a level.
_LEVEL_MS: Final = tuple(1 << shift for shift in _SHIFTS[1:])
_LAST_LEVEL: Final = len(_LEVEL_MS)
# Of the last level, too: who makes up times has a million of its spans to choose from, and each would be a file.
# What is due later lies in the last of these, and goes on from there in nine thousand years.
_SPANS_AHEAD_MAX: Final = 64
_ENTRY: Final = struct.Struct("<qq")
ENTRY_BYTES: Final = _ENTRY.size
# A file is read so long before its span begins: time for ten million entries.
LEAD_MS: Final = 60_000


class _Bucket:
    __slots__ = ("is_near", "name", "spill", "start_ms", "waiting", "written_count")

    def __init__(self, name: BucketName, *, written_count: int = 0) -> None:
        self.name = name
        self.start_ms = name.index << _SHIFTS[name.level]
        self.spill = bytearray()
        # In the file, for all that is known here.
        self.written_count = written_count
        # Its entries are on the wheel, or will be when it is read.
        self.is_near = False
        # Entries that came after those that are being read from its file, and go on the wheel behind them.
        self.waiting = b""

    @property
    def end_ms(self) -> int:
        return self.name.index + 1 << _SHIFTS[self.name.level]


class Buckets:
    __slots__ = (
        "_all",
        "_closed",
        "_dirty",
        "_is_pending",
        "_near_until_ms",
        "_next_number",
        "_reading",
        "_table",
        "wheel",
    )

    def __init__(self, is_pending: Callable[[int], bool]) -> None:
        self._is_pending = is_pending
        self.wheel = TimingWheel()
        # By number: all that have entries, or may get some.
        self._all: dict[int, _Bucket] = {}
        # By level and index: where new entries go.
        self._table: dict[tuple[int, int], _Bucket] = {}
        # The beginnings of those that are not near yet; the first is the next one to be read.
        self._closed: list[tuple[int, int, _Bucket]] = []
        self._reading: dict[int, _Bucket] = {}
        self._dirty: dict[int, _Bucket] = {}
        self._next_number = 1
        self._near_until_ms = 0

    # ------------------------------------------------------------------ new entries

    def place(self, due_ms: int, position: int, *, from_ms: int) -> None:
        """`from_ms` is about now; at a recovery, what was now then."""
        delay_ms = due_ms - from_ms
        level = 0
        while level < _LAST_LEVEL and delay_ms >= _LEVEL_MS[level]:
            level += 1
        index = due_ms >> _SHIFTS[level]
        if level == _LAST_LEVEL:
            index = min(index, (from_ms >> _SHIFTS[level]) + _SPANS_AHEAD_MAX)
        bucket = self._table.get((level, index))
        if bucket is None:
            bucket = self._begin(level, index)
        bucket.spill += _ENTRY.pack(due_ms, position)
        self._dirty[bucket.name.number] = bucket
        if bucket.is_near:
            self.wheel.add(due_ms, position)

    def _begin(self, level: int, index: int) -> _Bucket:
        bucket = _Bucket(BucketName(self._next_number, level, index))
        self._next_number += 1
        self._table[level, index] = self._all[bucket.name.number] = bucket
        if level == 0 and bucket.start_ms < self._near_until_ms:
            bucket.is_near = True
        else:
            heappush(self._closed, (bucket.start_ms, bucket.name.number, bucket))
        return bucket

    # ------------------------------------------------------------------ coming near

    def next_opening_ms(self) -> int | None:
        return self._closed[0][0] - LEAD_MS if self._closed else None

    def open_near(self, now_ms: int) -> list[BucketRead]:
        """What is to be read now, earliest first: each once."""
        self._near_until_ms = max(self._near_until_ms, now_ms + LEAD_MS)
        reads: list[BucketRead] = []
        # Those that open another are opened in the same turn.
        while self._closed and self._closed[0][0] <= now_ms + LEAD_MS:
            bucket = heappop(self._closed)[2]
            if bucket.written_count:
                self._reading[bucket.name.number] = bucket
                reads.append(BucketRead(bucket.name, bucket.written_count))
            self._open(bucket, now_ms)
        return reads

    def _open(self, bucket: _Bucket, now_ms: int) -> None:
        if bucket.name.level == 0:
            bucket.is_near = True
            if bucket.name.number in self._reading:
                bucket.waiting = bytes(bucket.spill)
            else:
                self._sort_in(bucket, bucket.spill, now_ms)
            return
        # From now on its entries are of lower levels. Whoever comes with an earlier clock begins another one.
        self._forget(bucket)
        self._dirty.pop(bucket.name.number, None)
        self._sort_in(bucket, bucket.spill, now_ms)
        bucket.spill = bytearray()

    def _forget(self, bucket: _Bucket) -> None:
        key = (bucket.name.level, bucket.name.index)
        if self._table.get(key) is bucket:
            del self._table[key]
        # What is being read is needed until it is read: a restart would read it again.
        if bucket.name.number not in self._reading:
            del self._all[bucket.name.number]

    def load(self, name: BucketName, entries: bytes | memoryview, *, is_last: bool, now_ms: int) -> None:
        """A part of a file, in any order of parts."""
        bucket = self._reading[name.number]
        self._sort_in(bucket, entries, now_ms)
        if is_last:
            del self._reading[name.number]
            if name.level:
                self._forget(bucket)
            self._sort_in(bucket, bucket.waiting, now_ms)
            bucket.waiting = b""

    def _sort_in(self, bucket: _Bucket, entries: bytes | bytearray | memoryview, now_ms: int) -> None:
        is_pending = self._is_pending
        if bucket.name.level == 0:
            add = self.wheel.add
            for due_ms, position in _ENTRY.iter_unpack(entries):
                if is_pending(position):
                    add(due_ms, position)
            return
        # At least a level down, whatever the clock says: else it would be opened for ever.
        from_ms = max(now_ms, bucket.start_ms)
        for due_ms, position in _ENTRY.iter_unpack(entries):
            if is_pending(position):
                self.place(due_ms, position, from_ms=from_ms)

    def known_until_ms(self) -> int | None:
        """Whatever is due before it, is on the wheel. None: everything is."""
        starts = [bucket.start_ms for bucket in self._reading.values()]
        if self._closed:
            starts.append(self._closed[0][0])
        return min(starts, default=None)

    # ------------------------------------------------------------------ files

    @property
    def spill_bytes(self) -> int:
        return sum(len(bucket.spill) for bucket in self._dirty.values())

    def take_spill(self, bytes_max: int | None = None) -> tuple[BucketWrite, ...]:
        """All of it; or some, so that nobody waits for long."""
        writes: list[BucketWrite] = []
        left = self.spill_bytes if bytes_max is None else bytes_max
        for number, bucket in list(self._dirty.items()):
            if left < ENTRY_BYTES:
                break
            some = bytes(bucket.spill[: left - left % ENTRY_BYTES])
            left -= len(some)
            del bucket.spill[: len(some)]
            if not bucket.spill:
                del self._dirty[number]
            # A short delay is over before it comes to this.
            entries = self._still_pending(some) if bucket.is_near else some
            bucket.written_count += len(entries) // ENTRY_BYTES
            if entries:
                writes.append(BucketWrite(bucket.name, entries))
        return tuple(writes)

    def _still_pending(self, entries: bytes) -> bytes:
        values = array("q", entries)
        # Nobody else has a turn meanwhile, so it has to be quick: no entry is taken apart.
        kept = [place for place, is_kept in enumerate(map(self._is_pending, values[1::2])) if is_kept]
        if len(kept) * ENTRY_BYTES == len(entries):
            return entries
        return b"".join([entries[place * ENTRY_BYTES : (place + 1) * ENTRY_BYTES] for place in kept])

    def store(self) -> tuple[StoredBucket, ...]:
        """After `take_spill`. A bucket is over when the wheel has nothing left from its span."""
        earliest_ms = self.wheel.earliest_ms()
        for bucket in list(self._all.values()):
            is_read = bucket.is_near and bucket.name.number not in self._reading
            is_past = earliest_ms is None or bucket.end_ms <= earliest_ms
            # Without a file it is not named, and a file that is not named is deleted: whoever comes begins another.
            if is_read and (is_past or not bucket.written_count):
                self._forget(bucket)
        return tuple(
            StoredBucket(number, bucket.name.level, bucket.name.index, bucket.written_count)
            for number, bucket in sorted(self._all.items())
        )

    def restore(self, stored: Iterable[StoredBucket], *, next_number: int) -> None:
        self._next_number = next_number
        for each in stored:
            bucket = _Bucket(BucketName(each.number, each.level, each.index), written_count=each.count)
            # One that was being read, and one that was begun since, may be of the same span: both are read.
            self._table[each.level, each.index] = self._all[each.number] = bucket
            heappush(self._closed, (bucket.start_ms, each.number, bucket))

    @property
    def next_number(self) -> int:
        return self._next_number

    def counts(self) -> list[tuple[int, int, int]]:
        """Beginning, end and entries of every span, also those of messages that have ended since; earliest first."""
        return sorted(
            (bucket.start_ms, bucket.end_ms, bucket.written_count + len(bucket.spill) // ENTRY_BYTES)
            for bucket in self._all.values()
        )

    def parts(self, after_ms: int) -> list[BucketPart]:
        """What may be due at or after then, earliest first. There are entries of ended messages too, and some twice."""
        parts = [
            BucketPart(bucket.name, bucket.start_ms, bucket.end_ms, bucket.written_count, bytes(bucket.spill))
            for bucket in self._all.values()
            if bucket.end_ms > after_ms or bucket.name.level == _LAST_LEVEL
        ]
        return sorted(parts, key=lambda part: part.start_ms)
