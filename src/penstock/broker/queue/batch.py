"""One batch of the log as queues see it: which messages are there, in which lanes, until when, and the messages.

Most batches are dense and say nothing special, and for those nothing is decoded to know it: one search for the names
of the special headers in the bytes is enough. Messages are cut out when the first of them is wanted, all of a batch
at once, and stay as long as the cache keeps the batch: ten receives of ten do not decode a thousand ten times.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.base.log_events import get_logger
from penstock.codec.batch.check import check_records
from penstock.codec.batch.header import BatchHeader, BatchProblem
from penstock.codec.batch.records import StoredRecord, parse_records, read_payload
from penstock.codec.batch.walk import parse_some, record_starts
from penstock.domain.log.aborted_index import AbortedTransaction
from penstock.domain.queue.lanes import DEFAULT_LANE, PRIORITY_HEADER, lane_of
from penstock.domain.queue.values import NO_KEY, Range, merge_ranges

log = get_logger("queues")

TTL_HEADER: Final = "penstock-ttl-ms"
# A decoded message takes about this much beside its bytes.
RECORD_BYTES: Final = 400
# What the special headers begin with, as they do nowhere else in most batches: one search for all of them.
_SPECIAL_PREFIX: Final = b"penstock-"
# If no more than one message in so many is special, only those are decoded to know which lanes there are.
SPECIAL_SHARE: Final = 4
# If no more than one message in so many is wanted, only those are decoded.
SOME_SHARE: Final = 4
_SPECIAL: Final = (PRIORITY_HEADER.encode(), TTL_HEADER.encode())
# No time to live is longer than the calendar; longer numbers come from nobody who means it.
_TTL_DIGITS_MAX: Final = 15


class QueueBatch:
    __slots__ = (
        "_is_dense",
        "_keys",
        "_payload",
        "_records",
        "_starts",
        "base_offset",
        "expiries",
        "header",
        "is_plain",
        "lanes",
        "next_offset",
        "problem",
        "raw",
    )

    def __init__(self, header: BatchHeader, raw: memoryview, *, is_left_out: bool) -> None:
        """Blocking for large batches: decompresses. `is_left_out`: part of an aborted transaction."""
        self.header = header
        # As it stands in the log: share groups pass it on untouched.
        self.raw = raw
        self.base_offset = header.base_offset
        self.next_offset = header.next_offset
        self._payload: bytes | None = None
        self._records: list[StoredRecord] | None = None
        self._keys: tuple[int, ...] | None = None
        # Where the messages begin in the payload; None: not looked for yet, or not to be found so.
        self._starts: array[int] | None = None
        # As many messages as offsets: the number of a message in the batch is its distance from the base offset.
        self._is_dense = header.record_count == header.last_offset_delta + 1
        # The messages that are there, by lane.
        self.lanes: dict[int, tuple[Range, ...]] = {}
        self.expiries: tuple[tuple[int, int], ...] = ()
        # Every offset is a message of the default lane that lives for ever.
        self.is_plain = False
        # Why nobody can be given any of its messages.
        self.problem: str | None = None
        if header.is_control or is_left_out or not header.record_count:
            self._records = []
            return
        payload = read_payload(raw, 0, header)
        if isinstance(payload, BatchProblem):
            self._pass_over(payload)
            return
        self._payload = data = bytes(payload)
        # Before anybody is given some of it: share groups pass batches on as they are, and a consumer would stop there.
        broken = check_records(header, data, len(data)) if self._is_dense else None
        if broken is not None:
            self._pass_over(broken)
        elif self._is_dense and not _is_special(data):
            self.is_plain = True
            self.lanes[DEFAULT_LANE] = ((self.base_offset, self.next_offset - 1),)
        elif not self._sort_special(data):
            self._sort(self.records)

    def _pass_over(self, problem: BatchProblem) -> None:
        """Its checksum holds and its records do not: whoever produced it wrote nonsense, before such batches were
        refused. Nobody can be given any of it, and what lies behind it must not wait for ever. One message stands for
        all of them, to be dead-lettered with the reason: how many there were nobody knows but the header, which may
        lie."""
        log.error("batch without readable messages", base_offset=self.base_offset, why=problem.reason)
        self._records, self._payload, self._keys, self.is_plain = [], None, (), False
        self.lanes, self.expiries = {DEFAULT_LANE: ((self.base_offset, self.base_offset),)}, ()
        self.problem = f"offsets {self.base_offset} to {self.next_offset - 1} cannot be read: {problem.reason}"

    def _sort_special(self, data: bytes) -> bool:
        """Decodes only the few that say something special; all others are in the default lane. False: they are many,
        or are not to be found so."""
        starts = self._walk()
        if starts is None:
            return False
        numbers = sorted({bisect_right(starts, place) - 1 for name in _SPECIAL for place in _places(data, name)})
        if SPECIAL_SHARE * len(numbers) > self.header.record_count:
            return False
        special: list[StoredRecord] = []
        for number in numbers:
            parsed = parse_some(self.header, data, starts, number, number)
            if isinstance(parsed, BatchProblem) or parsed[0].offset != self.base_offset + number:
                return False
            special += parsed
        self._sort(special)
        offsets = [record.offset for record in special]
        firsts, lasts = [self.base_offset, *(offset + 1 for offset in offsets)], [*offsets, self.next_offset]
        between = [(first, last - 1) for first, last in zip(firsts, lasts, strict=True) if first < last]
        self.lanes[DEFAULT_LANE] = merge_ranges([*between, *self.lanes.get(DEFAULT_LANE, ())])
        return True

    def _walk(self) -> array[int] | None:
        payload = self._payload
        if self._starts is None and payload is not None and self._is_dense:
            self._starts = record_starts(self.header, payload)
        return self._starts

    def _sort(self, records: Iterable[StoredRecord]) -> None:
        by_lane: dict[int, list[Range]] = {}
        expiries: list[tuple[int, int]] = []
        for record in records:
            headers = dict(record.headers)
            lane = lane_of(headers.get(PRIORITY_HEADER))
            by_lane.setdefault(lane, []).append((record.offset, record.offset))
            expires_ms = _expiry(record.timestamp_ms, headers.get(TTL_HEADER))
            if expires_ms is not None:
                expiries.append((record.offset, expires_ms))
        self.lanes = {lane: merge_ranges(ranges) for lane, ranges in by_lane.items()}
        self.expiries = tuple(expiries)

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Of all lanes together."""
        if len(self.lanes) < 2:
            return next(iter(self.lanes.values()), ())
        return merge_ranges([each for ranges in self.lanes.values() for each in ranges])

    @property
    def records(self) -> list[StoredRecord]:
        """Decoded at the first call; of large batches that is work for a thread (`is_decoded`)."""
        payload = self._payload
        # Two threads may come here at once; both find the same, and the first to end takes the payload away.
        if self._records is None and payload is not None:
            parsed = parse_records(self.header, payload)
            if isinstance(parsed, BatchProblem):
                self._pass_over(parsed)
            else:
                self._records, self._payload = parsed, None
        assert self._records is not None
        return self._records

    @property
    def size_opened(self) -> int:
        """What there is to decode, in bytes: four kilobytes may have unpacked to a hundred megabytes."""
        return len(self.raw) if self._payload is None else len(self._payload)

    @property
    def is_decoded(self) -> bool:
        return self._records is not None

    def prepare(self, first: int, last: int) -> None:
        """Blocking: `between` has little to do afterwards."""
        if self._records is None and (not self._is_some(first, last) or self._walk() is None):
            _ = self.records

    def is_prepared(self, first: int, last: int) -> bool:
        return self._records is not None or (self._starts is not None and self._is_some(first, last))

    def _is_some(self, first: int, last: int) -> bool:
        count = min(last, self.next_offset - 1) - max(first, self.base_offset) + 1
        return 0 < SOME_SHARE * count <= self.header.record_count

    @property
    def keys(self) -> tuple[int, ...]:
        """Hashes of the keys of all messages, in their order."""
        if self._keys is None:
            self._keys = tuple(map(_key_hash, self.records))
        return self._keys

    def between(self, first: int, last: int) -> Sequence[StoredRecord]:
        """The messages from `first` to `last`, as far as they are here."""
        some = self._some(first, last)
        if some is not None:
            return some
        records = self.records
        if len(records) == self.header.last_offset_delta + 1:
            start = max(first - self.base_offset, 0)
            return records[start : last - self.base_offset + 1] if last >= self.base_offset else ()
        start = bisect_left(records, first, key=_offset)
        return records[start : bisect_left(records, last + 1, key=_offset)]

    def _some(self, first: int, last: int) -> list[StoredRecord] | None:
        """Decoded for this once; None: all of them are decoded, or should be."""
        payload = self._payload
        starts = self._walk() if self._records is None and self._is_some(first, last) else None
        if payload is None or starts is None:
            return None
        first, last = max(first, self.base_offset), min(last, self.next_offset - 1)
        parsed = parse_some(self.header, payload, starts, first - self.base_offset, last - self.base_offset)
        if isinstance(parsed, BatchProblem) or (parsed[0].offset, parsed[-1].offset) != (first, last):
            return None
        return parsed

    @property
    def cost_bytes(self) -> int:
        return 3 * len(self.raw) + RECORD_BYTES * self.header.record_count


class Place(NamedTuple):
    """Where a batch was read, and for whom: readers of committed messages see other ones than the rest."""

    topic_id: bytes
    partition: int
    is_committed_only: bool


class BatchCache:
    """The batches that queues are working on, all partitions together; the longest unused one goes first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._batches: OrderedDict[tuple[Place, int], QueueBatch] = OrderedDict()
        # By place, the base offsets of its batches here, in order.
        self._bases: dict[Place, list[int]] = {}

    def find(self, place: Place, offset: int) -> QueueBatch | None:
        """The batch that `offset` lies in."""
        bases = self._bases.get(place)
        if bases is None:
            return None
        index = bisect_left(bases, offset + 1) - 1
        if index < 0:
            return None
        key = (place, bases[index])
        batch = self._batches[key]
        if offset >= batch.next_offset:
            return None
        self._batches.move_to_end(key)
        return batch

    def put(self, place: Place, batch: QueueBatch) -> None:
        key = (place, batch.base_offset)
        if key in self._batches:
            return
        bases = self._bases.setdefault(place, [])
        bases.insert(bisect_left(bases, batch.base_offset), batch.base_offset)
        self._batches[key] = batch
        self._bytes += batch.cost_bytes
        while self._bytes > self._bytes_max and len(self._batches) > 1:
            self._drop(next(iter(self._batches)))

    def forget(self, place: Place) -> None:
        """Everything of a place."""
        for base_offset in self._bases.pop(place, ()):
            self._bytes -= self._batches.pop((place, base_offset)).cost_bytes

    def _drop(self, key: tuple[Place, int]) -> None:
        self._bytes -= self._batches.pop(key).cost_bytes
        place, base_offset = key
        bases = self._bases[place]
        del bases[bisect_left(bases, base_offset)]
        if not bases:
            del self._bases[place]


def _is_special(payload: bytes) -> bool:
    return _SPECIAL_PREFIX in payload and any(name in payload for name in _SPECIAL)


def is_aborted(header: BatchHeader, aborted: Iterable[AbortedTransaction]) -> bool:
    return header.is_transactional and any(
        one.producer_id == header.producer_id and one.first_offset <= header.base_offset <= one.last_offset
        for one in aborted
    )


def _places(data: bytes, name: bytes) -> Iterator[int]:
    place = data.find(name)
    while place >= 0:
        yield place
        place = data.find(name, place + 1)


def _expiry(timestamp_ms: int, ttl: bytes | None) -> int | None:
    """A time to live that cannot be read is as if it were not there: the message must flow."""
    if ttl is None or not ttl.isdigit() or len(ttl) > _TTL_DIGITS_MAX:
        return None
    return timestamp_ms + int(ttl)


def _key_hash(record: StoredRecord) -> int:
    if record.key is None:
        return NO_KEY
    # Stands in journals: it must be the same in every process. 63 bits, as signed numbers go.
    return int.from_bytes(hashlib.blake2b(record.key, digest_size=8).digest()) >> 1


def _offset(record: StoredRecord) -> int:
    return record.offset
