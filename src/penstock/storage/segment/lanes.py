"""Which batches of a segment hold messages of other lanes than the default one (header `penstock-priority`).

    <base offset, 20 digits>.lanes    magic · length · CRC-32C · identity · ten counts · offsets by lane (`files/small`)

The offsets are those of batches, from the segment's base offset on. They are hints and may name too many, never too
few: whoever goes by them opens the batch, which says which of its messages are in which lane, until when, and
whether they were aborted. So nothing is decoded to find them: a batch is decompressed and searched once.

The file is made when a queue needs it, never by an append, and only of a segment that does not grow any more. Nothing
is synced: a crash costs another look at the segment. What a file says counts only for the segment that it was made
of: its name, size, ends and number of records, and the first and the last batch header, stand in it.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.codec.batch.header import HEADER_BYTES, LENGTH_PREFIX_BYTES, BatchHeader, BatchProblem, read_header
from penstock.codec.batch.records import parse_records, read_payload
from penstock.domain.queue.lanes import DEFAULT_LANE, LANE_MAX, PRIORITY_HEADER, lane_of
from penstock.storage.files.protocols import Files
from penstock.storage.files.small import TEMPORARY_SUFFIX, read_small_file, write_temporary
from penstock.storage.segment.facts import Segment

LANES_SUFFIX: Final = ".lanes"
LANES_MAGIC: Final = b"pslanes1"

# Base offset, next offset, size, records, bytes of the last batch, checksums of the first and the last header.
_IDENTITY = struct.Struct("<qqqqIII")
IDENTITY_BYTES: Final = _IDENTITY.size
_COUNTS = struct.Struct(f"<{LANE_MAX + 1}I")
# Base offset, length, attributes: all that has to be known of a batch to go on to the next.
_PEEK = struct.Struct(">qi9xh")
_COMPRESSED: Final = 0x07
# About a millisecond's work.
_BREATHE_BATCHES: Final = 200
_NAME: Final = PRIORITY_HEADER.encode()
# As every known client writes it: a name of so many bytes, a value of one.
_HEADER: Final = re.compile(bytes([2 * len(_NAME)]) + re.escape(_NAME) + b"\x02([0-9])")


class SegmentFacts(msgspec.Struct, frozen=True):
    """What a segment that does not grow any more is known by; taken on the loop, compared in a thread."""

    directory: str
    base_offset: int
    next_offset: int
    size_bytes: int
    record_count: int

    @property
    def name(self) -> str:
        return f"{self.base_offset:020}{LANES_SUFFIX}"


def facts_of(segment: Segment) -> SegmentFacts:
    directory = segment.prefix.rpartition("/")[0]
    return SegmentFacts(directory, segment.base_offset, segment.next_offset, segment.size, segment.record_count)


class LaneEntries:
    """By lane, the batches of a stretch of the log that may hold messages of it. Grows at its end only."""

    __slots__ = ("_lanes", "base_offset")

    def __init__(self, base_offset: int) -> None:
        # Of the segment: the distance to it fits into 32 bits, as in its index.
        self.base_offset = base_offset
        self._lanes: dict[int, array[int]] = {}

    def add(self, batch_offset: int, lanes: int) -> None:
        relative = batch_offset - self.base_offset
        for lane in range(LANE_MAX + 1):
            if lanes >> lane & 1:
                self._lanes.setdefault(lane, array("I")).append(relative)

    @property
    def lanes(self) -> int:
        """One bit for each lane that is here."""
        return sum(1 << lane for lane in self._lanes)

    @property
    def size_bytes(self) -> int:
        return sum(4 * len(offsets) for offsets in self._lanes.values())

    def batches(self, lane: int, since: int) -> Iterator[int]:
        """Base offsets, in order: from the last one at or below `since` on, for `since` may lie inside it."""
        offsets = self._lanes.get(lane)
        if offsets is not None:
            place = bisect_left(offsets, since - self.base_offset + 1) - 1
            for index in range(max(place, 0), len(offsets)):
                yield self.base_offset + offsets[index]

    def to_bytes(self) -> bytes:
        columns = [self._lanes.get(lane, array("I")) for lane in range(LANE_MAX + 1)]
        return _COUNTS.pack(*map(len, columns)) + b"".join(column.tobytes() for column in columns)

    @staticmethod
    def from_bytes(base_offset: int, data: bytes) -> LaneEntries | None:
        counts = _COUNTS.unpack_from(data)
        if len(data) != _COUNTS.size + 4 * sum(counts):
            return None
        entries = LaneEntries(base_offset)
        position = _COUNTS.size
        for lane, count in enumerate(counts):
            if count:
                entries._lanes[lane] = array("I")
                entries._lanes[lane].frombytes(data[position : position + 4 * count])
                position += 4 * count
        return entries


# --- looking for them ------------------------------------------------------------------------------------------------


class LanesSeen(msgspec.Struct, frozen=True):
    """What some whole batches hold."""

    # Base offset, and one bit for each lane.
    batches: tuple[tuple[int, int], ...]
    first_offset: int
    next_offset: int
    last_batch_bytes: int
    size_bytes: int


def find_lanes(data: memoryview, *, breathe: Callable[[], None]) -> LanesSeen:
    """Blocking. `data` is whole, checked batches, at least one. `breathe` lets others have the interpreter."""
    # One search for the whole read: plain batches without the name are not opened at all.
    plain = bytes(data)
    named = plain.find(_NAME)
    found: list[tuple[int, int]] = []
    place = last_place = opened_count = 0
    size = len(data)
    while place < size:
        base_offset, length, attributes = _PEEK.unpack_from(data, place)
        end = place + length + LENGTH_PREFIX_BYTES
        is_named = 0 <= named < end
        if is_named:
            named = plain.find(_NAME, end)
        if is_named or attributes & _COMPRESSED:
            lanes = _lanes_at(data, place)
            opened_count += 1
            if opened_count % _BREATHE_BATCHES == 0:
                breathe()
            if lanes:
                found.append((base_offset, lanes))
        last_place, place = place, end
    last = _header_at(data, last_place)
    (first_offset,) = struct.unpack_from(">q", data)
    return LanesSeen(tuple(found), first_offset, last.next_offset, last.size_bytes, size)


def _lanes_at(data: memoryview, place: int) -> int:
    header = _header_at(data, place)
    if header.is_control or not header.record_count:
        return 0
    payload = read_payload(data, place, header)
    # A batch that cannot be read is the reader's matter: it holds up the default lane, and all others with it.
    return 0 if isinstance(payload, BatchProblem) else lanes_in(header, bytes(payload))


def lanes_in(header: BatchHeader, payload: bytes) -> int:
    """One bit for each lane but the default one that messages may be in."""
    name_count = payload.count(_NAME)
    if not name_count:
        return 0
    values = _HEADER.findall(payload)
    lanes = 0
    if len(values) == name_count:
        for value in set(values):
            lanes |= 1 << lane_of(value)
    else:
        # The name stands in a message's text, or beside a value of another length: then it is read properly.
        records = parse_records(header, payload)
        for record in () if isinstance(records, BatchProblem) else records:
            lanes |= 1 << lane_of(dict(record.headers).get(PRIORITY_HEADER))
    return lanes & ~(1 << DEFAULT_LANE)


def _header_at(data: memoryview, place: int) -> BatchHeader:
    header = read_header(data, place)
    assert isinstance(header, BatchHeader), "the batches were checked when they were read"
    return header


# --- the file --------------------------------------------------------------------------------------------------------


def write_lane_file(files: Files, facts: SegmentFacts, entries: LaneEntries, *, last_batch_bytes: int) -> None:
    """Blocking; OSError: there is none, or a bad one, and the next reader makes it again."""
    identity = segment_identity(files, facts, last_batch_bytes)
    assert identity is not None, "a batch was read from it"
    write_temporary(files, facts.directory, facts.name, LANES_MAGIC, identity + entries.to_bytes())
    path = f"{facts.directory}/{facts.name}"
    files.rename(path + TEMPORARY_SUFFIX, path)


def read_lane_file(files: Files, facts: SegmentFacts) -> LaneEntries | None:
    """Blocking. None: there is none, it is torn, or it was made of another segment of this name."""
    payload = read_small_file(files, facts.directory, facts.name, LANES_MAGIC)
    if payload is None or len(payload) < _IDENTITY.size + _COUNTS.size:
        return None
    last_batch_bytes = _IDENTITY.unpack_from(payload)[4]
    if payload[: _IDENTITY.size] != segment_identity(files, facts, last_batch_bytes):
        return None
    return LaneEntries.from_bytes(facts.base_offset, payload[_IDENTITY.size :])


def remove_lane_file(files: Files, prefix: str) -> None:
    files.remove(prefix + LANES_SUFFIX)
    files.remove(prefix + LANES_SUFFIX + TEMPORARY_SUFFIX)


def segment_identity(files: Files, facts: SegmentFacts, last_batch_bytes: int) -> bytes | None:
    """Blocking. What a side file is known by; None: there can be no such segment."""
    last_position = facts.size_bytes - last_batch_bytes
    if not 0 <= last_position <= facts.size_bytes - HEADER_BYTES:
        return None
    file = files.open(f"{facts.directory}/{facts.base_offset:020}.log")
    first, last = file.read_at(0, HEADER_BYTES), file.read_at(last_position, HEADER_BYTES)
    return _IDENTITY.pack(
        facts.base_offset,
        facts.next_offset,
        facts.size_bytes,
        facts.record_count,
        last_batch_bytes,
        crc32c(first),
        crc32c(last),
    )


assert array("I").itemsize == 4, "offsets in the file are 32 bits"
