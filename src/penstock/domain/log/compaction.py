"""Compaction: of all records with one key only the last one stays. Pure: facts in, decisions out.

    log start       clean end            dirty end            readable end
        |==============|====================|====================|
         one record     looked at now:       too young, not sealed,
         of each key    the last of each     or in a transaction
                        key is noted         that is under way

Rules:
- Offsets never change. A record that goes leaves a hole; batches that lose all their records become one empty batch.
- Whole sealed segments only, and only what every reader may see and every transaction has decided about.
- A tombstone (no value) stays for `delete_retention_ms` after the cleaning that first met it, so that whoever reads on
  in that time learns of the deletion. That moment, the horizon, is written into its batch, as Kafka does.
- A transaction's marker stays while a record of the transaction does, then as long as a tombstone. The last marker of a
  producer that is still known stays in any case: it holds the epoch that shuts out the ones before.
- The last batch of a producer that is still known stays, if need be without records: it holds its last sequence.
- Records of aborted transactions and records without a key go.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, Self, TypeVar

import msgspec

from penstock.domain.log.aborted_index import AbortedTransaction

NO_HORIZON: Final = -1
LAG_UNLIMITED_MS: Final = 2**63 - 1
# An offset in a segment is kept in 32 bits, relative to the segment's first one; half of it, as Kafka does.
GROUP_OFFSETS_MAX: Final = 2**31 - 1
# Their files are held open until the new one has taken their place.
GROUP_SEGMENTS_MAX: Final = 64


class CompactionRules(msgspec.Struct, frozen=True):
    """Of one topic, by Kafka's names."""

    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LAG_UNLIMITED_MS
    delete_retention_ms: int = 24 * 3600 * 1000


# --- which log, which segments ---------------------------------------------------------------------------------------


class SealedSegment(msgspec.Struct, frozen=True):
    base_offset: int
    next_offset: int
    size_bytes: int
    # Of its newest record; when it was begun, if its records have no dates.
    newest_ms: int
    begun_ms: int


class CleanablePart(msgspec.Struct, frozen=True):
    """The head of a log that may be rewritten: so many segments, of which the ones past `clean_end` are dirty."""

    segment_count: int
    clean_end: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    # Something in it has waited for longer than the topic's `max_compaction_lag_ms`.
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    def is_due(self, rules: CompactionRules) -> bool:
        return self.is_overdue or self.dirty_ratio > rules.min_cleanable_dirty_ratio


def find_cleanable(
    segments: Sequence[SealedSegment], rules: CompactionRules, *, clean_end: int, offset_limit: int, now_ms: int
) -> CleanablePart | None:
    """None if nothing is dirty. `segments` are those that nobody writes to any more, from the head on; nothing at or
    past `offset_limit` may be touched."""
    count = clean_bytes = dirty_bytes = 0
    dirty_since_ms = now_ms
    for segment in segments:
        is_dirty = segment.next_offset > clean_end
        # Without a lag nothing is too young, records dated in the future neither.
        is_young = 0 < rules.min_compaction_lag_ms > now_ms - segment.newest_ms
        if segment.next_offset > offset_limit or (is_dirty and is_young):
            break
        count += 1
        if is_dirty:
            dirty_bytes += segment.size_bytes
            dirty_since_ms = min(dirty_since_ms, segment.begun_ms)
        else:
            clean_bytes += segment.size_bytes
    if dirty_bytes == 0:
        return None
    is_overdue = now_ms - dirty_since_ms > rules.max_compaction_lag_ms
    return CleanablePart(count, clean_end, segments[count - 1].next_offset, clean_bytes, dirty_bytes, is_overdue)


Name = TypeVar("Name")


def most_due(candidates: Iterable[tuple[Name, CleanablePart, CompactionRules]]) -> tuple[Name, CleanablePart] | None:
    """The overdue before the others, then the one with the largest dirty share; of equals the first."""
    due = [(name, part) for name, part, rules in candidates if part.is_due(rules)]
    return max(due, key=lambda each: (each[1].is_overdue, each[1].dirty_ratio), default=None)


def joins_group(
    segment: SealedSegment, *, base_offset: int, size_bytes: int, segment_count: int, segment_bytes_max: int
) -> bool:
    """Whether the next segment goes into the new one that so many before it were written to, from `base_offset` on.
    They shrink with every cleaning: without this a log of few keys would end as thousands of tiny files."""
    return (
        size_bytes + segment.size_bytes <= segment_bytes_max
        and segment.next_offset - base_offset <= GROUP_OFFSETS_MAX
        and segment_count < GROUP_SEGMENTS_MAX
    )


# --- which batches ---------------------------------------------------------------------------------------------------


class CleanedBatch(Protocol):
    """What the rules need of a batch header."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...


class BatchFate(enum.Enum):
    KEEP = "keep"  # as it is
    SIFT = "sift"  # its records are looked at one by one
    EMPTY = "empty"  # its records go
    DATE = "date"  # kept, and given a horizon from which on it may go


class AbortedRanges:
    """Which batches belong to transactions that were aborted."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, tuple[list[int], list[int]]] = {}
        for entry in sorted(aborted, key=lambda entry: entry.first_offset):
            firsts, lasts = self._by_producer.setdefault(entry.producer_id, ([], []))
            firsts.append(entry.first_offset)
            lasts.append(entry.last_offset)

    def hold(self, batch: CleanedBatch) -> bool:
        if not batch.is_transactional or batch.producer_id not in self._by_producer:
            return False
        firsts, lasts = self._by_producer[batch.producer_id]
        place = bisect_right(firsts, batch.base_offset)
        return place > 0 and batch.base_offset <= lasts[place - 1]


class CleaningRules:
    """What one cleaning does with each batch. Asked once for each, in the order of the log, from its first one on."""

    def __init__(
        self,
        *,
        log_start: int,
        end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
        aborted: Iterable[AbortedTransaction] = (),
        last_batches: Mapping[int, int] | None = None,
        last_markers: Mapping[int, int] | None = None,
    ) -> None:
        """`last_batches`, `last_markers`: offset of the last one of each producer that is still known."""
        self.log_start = log_start
        self.end_offset = end_offset
        self.now_ms = now_ms
        self.horizon_ms = now_ms + delete_retention_ms
        self.aborted = AbortedRanges(aborted)
        self._last_batches = last_batches or {}
        self._last_markers = last_markers or {}
        # Producers of whom a batch was seen since their last marker.
        self._open: set[int] = set()
        # Offsets of abort markers of which no batch is left: readers need not be told of them any more. They must not
        # be, once the marker is gone: a reader would wait for it and leave out what the producer committed later.
        self.empty_aborts: list[int] = []

    def fate_of(self, batch: CleanedBatch) -> BatchFate:
        """Of a batch that holds records of users, or none."""
        if batch.next_offset > self.end_offset:
            return BatchFate.KEEP
        if batch.is_transactional and batch.producer_id >= 0:
            self._open.add(batch.producer_id)
        is_deleted = batch.next_offset <= self.log_start
        return BatchFate.EMPTY if is_deleted or self.aborted.hold(batch) else BatchFate.SIFT

    def fate_of_marker(self, batch: CleanedBatch, *, horizon_ms: int, is_commit: bool) -> BatchFate:
        """Of a batch that ends its producer's transaction."""
        if batch.next_offset > self.end_offset:
            return BatchFate.KEEP
        is_needed = batch.producer_id in self._open
        self._open.discard(batch.producer_id)
        if is_needed:
            return BatchFate.KEEP
        if not is_commit:
            self.empty_aborts.append(batch.base_offset)
        if self._last_markers.get(batch.producer_id) == batch.base_offset:
            return BatchFate.KEEP
        if horizon_ms == NO_HORIZON:
            return BatchFate.DATE
        return BatchFate.EMPTY if horizon_ms <= self.now_ms else BatchFate.KEEP

    def is_kept_empty(self, batch: CleanedBatch) -> bool:
        """Of a batch without records left: it holds the last sequence of a producer that may go on with it."""
        return batch.producer_id >= 0 and self._last_batches.get(batch.producer_id) == batch.base_offset

    def keeps_tombstones(self, horizon_ms: int) -> bool:
        """Of a batch with this horizon."""
        return horizon_ms == NO_HORIZON or self.now_ms < horizon_ms


# --- which records ---------------------------------------------------------------------------------------------------


class Logic(Protocol):
    """One truth value, or a column of them."""

    def __and__(self, other: Self, /) -> Self: ...
    def __or__(self, other: Self, /) -> Self: ...


Truth = TypeVar("Truth", bound=Logic)


def survives(*, is_latest: Truth, has_value: Truth, keeps_tombstones: Truth) -> Truth:
    """Of a record: the last one of its key, and a value, or a deletion that is not old enough."""
    return is_latest & (has_value | keeps_tombstones)
