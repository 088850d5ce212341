"""Reads a whole log from its files and says what is whole, what is damaged and what is a torn end. Changes nothing."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.codec.batch.header import BatchHeader, BatchProblem
from penstock.domain.log.producer_sequence import PRODUCERS_MAX_DEFAULT
from penstock.storage.files.protocols import File, Files
from penstock.storage.log.damage import is_head_missing, read_places
from penstock.storage.log.files import read_log_start
from penstock.storage.log.producers import LogProducers
from penstock.storage.segment.facts import LOG_SUFFIX, base_offset_of
from penstock.storage.segment.scan import BatchScan
from penstock.storage.segment.search import find_next_batch

# What may have been given out since the checkpoint, at most: 64 MiB (checkpoint_sum_bytes) have no room for as many of
# the smallest records (7 bytes). An offset that is used twice costs a consumer its message.
OFFSETS_SKIPPED: Final = 1 << 24


class ProblemKind(enum.StrEnum):
    DAMAGE = "damage"  # something whole follows
    GAP = "gap"  # a segment, or the end of one, is missing
    TORN_TAIL = "torn tail"  # nothing whole follows


class LogProblem(msgspec.Struct, frozen=True):
    """Bytes [start, end) of a segment are no batches; offsets [offset_start, offset_end) are lost with them."""

    kind: ProblemKind
    segment_base_offset: int
    start: int
    end: int
    offset_start: int
    offset_end: int
    reason: str
    # Of the batch before.
    leader_epoch: int = 0

    @property
    def is_before_first_segment(self) -> bool:
        """Such offsets need no place in the log: it starts after them."""
        return self.kind is ProblemKind.GAP and self.offset_end <= self.segment_base_offset

    def describe(self) -> str:
        lost = self.offset_end - self.offset_start
        return (
            f"segment {self.segment_base_offset:020}{LOG_SUFFIX}: {self.kind}: bytes {self.start} to {self.end}, "
            f"{lost} offsets from {self.offset_start}: {self.reason}"
        )


class LogSurvey:
    """Iterate `batches` once; then the rest is filled in."""

    def __init__(
        self, files: Files, directory: str, *, known_start: int = 0, known_end: int = 0, known_last: int | None = None
    ) -> None:
        """`known_start` and `known_end` are what the checkpoint says the log held, `known_last` its last segment."""
        self._files = files
        self.directory = directory
        self.problems: list[LogProblem] = []
        self.segment_count = 0
        self.batch_count = 0
        self.record_count = 0
        self.size_bytes = 0
        self.log_end = 0
        self.transactional_count = 0
        self.marker_count = 0
        # As the batches that are left tell it; what retention took is not in it.
        self.producers = LogProducers.empty(PRODUCERS_MAX_DEFAULT)
        self._epoch = 0
        self._known_end = known_end
        self._known_last = known_last
        self._remembered = read_places(files, directory)
        segments = sorted(
            (base_offset, size)
            for name, size in files.file_sizes(directory).items()
            if (base_offset := base_offset_of(name)) is not None
        )
        first_offset = segments[0][0] if segments else 0
        saved_start = read_log_start(files, directory)
        if is_head_missing(self._remembered, known_start):
            known_start = 0
        self.log_start = max(first_offset if saved_start is None else saved_start, known_start)
        # A segment that ends at or below the start was retired, and the crash came before it was removed.
        bases_after = [base_offset for base_offset, _ in segments[1:]]
        retired_count = sum(base_offset <= self.log_start for base_offset in bases_after)
        self._segments = segments[retired_count:]

    def batches(self) -> Iterator[tuple[int, int, BatchHeader]]:
        """(base offset of the segment, position, header) of every whole batch, in order."""
        next_offset = self.log_start
        if self._segments:
            next_offset = self._note_missing_head()
        last_place = 0
        for place, (base_offset, size) in enumerate(self._segments):
            if base_offset != next_offset and size == 0:
                continue  # rolled to, never written to; the next start removes it
            if base_offset > next_offset:
                self._note_gap(place, last_place, next_offset)
                next_offset = base_offset
            last_place = place
            file = self._files.open(segment_path(self.directory, base_offset))
            self.segment_count += 1
            self.size_bytes += size
            position = 0
            while position < size:
                scan = BatchScan(file, start=position, end=size, next_offset=next_offset)
                for batch_position, header in scan:
                    self.batch_count += 1
                    self.record_count += header.record_count
                    if header.producer_id >= 0:
                        self._note_producer(header, scan)
                    self._epoch = header.leader_epoch
                    yield base_offset, batch_position, header
                    next_offset = header.next_offset
                position = scan.position
                if scan.problem is not None:
                    position, next_offset = self._skip(place, file, position, next_offset, scan.problem)
        self.log_end = self._note_missing_end(next_offset)

    def _note_producer(self, header: BatchHeader, scan: BatchScan) -> None:
        self.transactional_count += header.is_transactional and not header.is_control
        self.marker_count += header.is_control
        self.producers.apply(header, scan.batch(header) if header.is_control else b"")
        # Nothing is ever undone here, so nothing need be remembered for it.
        self.producers.transactions.advance(header.next_offset)

    def _skip(self, place: int, file: File, position: int, next_offset: int, problem: BatchProblem) -> tuple[int, int]:
        """Past the bad bytes: where the next whole batch stands, and its offset."""
        base_offset, size = self._segments[place]
        known = next((damage for damage in self._remembered if damage.offset == next_offset), None)
        if known is not None and known.position == position < known.position_end <= size:
            reason = problem.reason
            self.problems.append(
                LogProblem(
                    ProblemKind.DAMAGE,
                    base_offset,
                    position,
                    known.position_end,
                    next_offset,
                    known.offset_end,
                    reason,
                    self._epoch,
                )
            )
            return known.position_end, known.offset_end
        found = find_next_batch(file, position=position, end=size, offset_min=next_offset + 1)
        later = [base for base, later_size in self._segments[place + 1 :] if later_size > 0]
        if found is not None and found.base_offset >= 0 and not (later and found.base_offset >= later[0]):
            kind, end, offset_end = ProblemKind.DAMAGE, found.position, found.base_offset
        else:
            kind = ProblemKind.DAMAGE if later or found is not None else ProblemKind.TORN_TAIL
            end, offset_end = size, later[0] if later else next_offset
        reason = problem.reason
        self.problems.append(LogProblem(kind, base_offset, position, end, next_offset, offset_end, reason, self._epoch))
        return end, offset_end

    def _note_missing_head(self) -> int:
        first = self._segments[0][0]
        if first > self.log_start:
            reason = f"nothing holds the offsets before segment {first}"
            self.problems.append(LogProblem(ProblemKind.GAP, first, 0, 0, self.log_start, first, reason))
            self.log_start = first
        return first

    def _note_missing_end(self, next_offset: int) -> int:
        bases = [base_offset for base_offset, _ in self._segments]
        is_last_missing = self._known_last is not None and self._known_last > max(bases, default=-1)
        if next_offset >= self._known_end and not is_last_missing:
            return max(next_offset, self.log_start)
        # Not one that was rolled to and never written to: it begins behind what is missing.
        held = [segment for segment in self._segments if segment[0] <= next_offset]
        base_offset, size = held[-1] if held else (next_offset, 0)
        known_end = max(self._known_end, next_offset)
        reason = (
            f"the log ends at offset {next_offset}; it was saved up to offset {known_end}, and more may have been "
            f"written: {OFFSETS_SKIPPED} offsets are left out, so that none is given out twice"
        )
        offset_end = known_end + OFFSETS_SKIPPED
        self.problems.append(
            LogProblem(ProblemKind.GAP, base_offset, size, size, next_offset, offset_end, reason, self._epoch)
        )
        return offset_end

    def _note_gap(self, place: int, last_place: int, next_offset: int) -> None:
        base_offset = self._segments[place][0]
        before, size = self._segments[last_place]
        reason = f"nothing holds the offsets before segment {base_offset}"
        self.problems.append(
            LogProblem(ProblemKind.GAP, before, size, size, next_offset, base_offset, reason, self._epoch)
        )


def segment_path(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020}{LOG_SUFFIX}"
