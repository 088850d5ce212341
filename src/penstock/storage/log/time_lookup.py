"""Which record is the first at or after a moment, and which is the newest. Blocking: both read from the disk.

This is one of the few places where records inside a batch are looked at: only of the one batch that holds the answer.
Damaged batches are stepped over: what is asked for is a record that can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch
from penstock.codec.batch.records import StoredRecord, read_records
from penstock.storage.errors import Offline
from penstock.storage.files.protocols import File
from penstock.storage.log.flaws import WITHHELD
from penstock.storage.segment.damage_search import Boundary, find_damage, scan_past_damage
from penstock.storage.segment.facts import Segment

if TYPE_CHECKING:
    from penstock.storage.log.partition_log import PartitionLog


class TimestampOffset(msgspec.Struct, frozen=True):
    offset: int
    timestamp_ms: int
    leader_epoch: int


Found = TimestampOffset | Offline | None


class SegmentReplaced(Exception):  # noqa: N818  not an error: the question is asked again
    pass


def ask(log: PartitionLog, question: Callable[[TimeLookup], Found]) -> Found:
    """Blocking. Asks again when a cleaning has replaced a segment meanwhile, which it does much more slowly."""
    while True:
        try:
            found = question(TimeLookup(log))
        except SegmentReplaced:
            continue
        # Also if it was this question that came upon the damage: what was stepped over, another replica has.
        return Offline(WITHHELD) if log.flaws.is_withheld else found


class TimeLookup:
    """One question about one log, as far as it was readable when asked."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._log_start = log.log_start
        self._readable_end = log.readable_end
        # A segment may grow meanwhile; what stands past its end of now is no batch yet.
        self._segments = [
            (segment, (segment.size, segment.next_offset))
            for segment in log.segments
            if segment.base_offset < self._readable_end
        ]

    def first_at_or_after(self, timestamp_ms: int) -> Found:
        if self._log.failure is not None:
            return Offline(self._log.failure)
        for segment, end in self._segments:
            if segment.max_timestamp >= timestamp_ms:
                found = self._search(segment, end, timestamp_ms)
                if found is not None:
                    return found
        return None

    def newest(self) -> Found:
        if self._log.failure is not None:
            return Offline(self._log.failure)
        newest_ms = -1
        for segment, end in self._segments:
            if segment.max_timestamp > newest_ms:
                found_ms = self._newest_in(segment, end, segment.max_timestamp)
                # Its newest may be damaged, or lie past the readable end or below the log's start: then all of it is
                # looked at.
                if found_ms < segment.max_timestamp:
                    found_ms = self._newest_in(segment, end, 0)
                newest_ms = max(newest_ms, found_ms)
        return self.first_at_or_after(newest_ms) if newest_ms >= 0 else None

    def _newest_in(self, segment: Segment, end: Boundary, timestamp_ms: int) -> int:
        newest_ms = -1
        file = self._open(segment)
        for position, header in self._headers(segment, file, end, timestamp_ms):
            if header.base_offset >= self._log_start:
                newest_ms = max(newest_ms, header.max_timestamp)
            elif header.next_offset > self._log_start:
                records = self._records(segment, file, position, header)
                held = [record.timestamp_ms for record in records if record.offset >= self._log_start]
                newest_ms = max(newest_ms, *held, -1)
        return newest_ms

    def _search(self, segment: Segment, end: Boundary, timestamp_ms: int) -> TimestampOffset | None:
        file = self._open(segment)
        for position, header in self._headers(segment, file, end, timestamp_ms):
            if header.max_timestamp >= timestamp_ms:
                found = self._search_batch(segment, file, position, header, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _headers(
        self, segment: Segment, file: File | None, end: Boundary, timestamp_ms: int
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Readable batches from the last place before which everything is older."""
        if file is None:
            return
        index = self._log.context.indexes.index_of(segment, file)
        floor, position, _ = index.floor(index.offset_before_time(timestamp_ms))
        start = (position, segment.base_offset + floor)
        for place, header, _ in scan_past_damage(
            file, segment, index, start=start, end=end, on_damage=self._log.note_damage
        ):
            if header.base_offset >= self._readable_end:
                return
            yield place, header

    def _search_batch(
        self, segment: Segment, file: File | None, position: int, header: BatchHeader, timestamp_ms: int
    ) -> TimestampOffset | None:
        for record in self._records(segment, file, position, header):
            if record.timestamp_ms >= timestamp_ms and record.offset >= self._log_start:
                return TimestampOffset(record.offset, record.timestamp_ms, header.leader_epoch)
        return None

    def _records(
        self, segment: Segment, file: File | None, position: int, header: BatchHeader
    ) -> Sequence[StoredRecord]:
        """Of one batch; none, and the damage noted, if its checksum is wrong."""
        assert file is not None
        data = file.read_at(position, header.size_bytes)
        checked = check_batch(data)
        records = checked if isinstance(checked, BatchProblem) else read_records(data)
        if isinstance(checked, BatchProblem):
            end = (position + header.size_bytes, header.next_offset)
            self._log.note_damage(
                find_damage(
                    file, segment, None, position=position, offset=header.base_offset, end=end, reason=checked.reason
                )
            )
        if isinstance(records, BatchProblem):
            return ()
        return records

    def _open(self, segment: Segment) -> File | None:
        try:
            file = self._log.context.files.open(segment.path)
        except FileNotFoundError:
            file = None  # retired since we began
        # After the file is open: before a cleaned segment takes the name, the old one is told.
        if segment.is_replaced:
            raise SegmentReplaced
        return file
