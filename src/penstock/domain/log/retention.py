"""Which segments at the head of a log have outlived their topic's retention. Pure: facts in, a count out.

Rules, as Kafka's users know them:
- by time: a segment goes when its newest record is older than `retention_ms`;
- by size: the oldest go while what is left without them still holds at least `retention_bytes`;
- only whole segments, only from the head, and only what every reader may have seen (below `readable_end`);
- the last segment is written to, so it goes only by time: the log rolls first, then it is one of the others;
- a topic may ask that only what its archive has goes (below `archived_end`): what would go otherwise is held.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

UNLIMITED: Final = -1


class RetentionReason(enum.StrEnum):
    TIME = "time"
    SIZE = "size"


class SegmentFacts(msgspec.Struct, frozen=True):
    next_offset: int
    size_bytes: int
    # Of its newest record; a segment whose records have no dates counts from when it was begun.
    max_timestamp: int


class Retirement(msgspec.Struct, frozen=True):
    """So many segments go from the head, by time and by size."""

    by_time: int
    by_size: int
    # So many more would go, if the archive had them.
    held: int = 0

    @property
    def count(self) -> int:
        return max(self.by_time, self.by_size)

    @property
    def reason(self) -> RetentionReason:
        return RetentionReason.TIME if self.by_time >= self.by_size else RetentionReason.SIZE


def segments_to_retire(
    segments: Sequence[SegmentFacts],
    *,
    retention_ms: int,
    retention_bytes: int,
    now_ms: int,
    readable_end: int,
    archived_end: int | None = None,
) -> Retirement:
    """The last of `segments` is the one being written to. `archived_end` None: nobody waits for an archive."""
    free = _due(segments, retention_ms, retention_bytes, now_ms, readable_end)
    if archived_end is None or free.count == 0:
        return free
    allowed = _due(segments, retention_ms, retention_bytes, now_ms, min(readable_end, archived_end))
    return Retirement(allowed.by_time, allowed.by_size, free.count - allowed.count)


def _due(
    segments: Sequence[SegmentFacts], retention_ms: int, retention_bytes: int, now_ms: int, readable_end: int
) -> Retirement:
    by_time = 0
    if retention_ms != UNLIMITED:
        horizon = now_ms - retention_ms
        for segment in segments:
            if segment.size_bytes == 0 or segment.max_timestamp >= horizon or segment.next_offset > readable_end:
                break
            by_time += 1
    by_size = 0
    if retention_bytes != UNLIMITED:
        surplus = sum(segment.size_bytes for segment in segments) - retention_bytes
        for segment in segments[:-1]:
            surplus -= segment.size_bytes
            if surplus < 0 or segment.next_offset > readable_end:
                break
            by_size += 1
    return Retirement(by_time, by_size)


def roll_is_due(*, begun_ms: int, size_bytes: int, segment_ms: int, now_ms: int) -> bool:
    """An old segment is closed although it is not full, or its records would stay as long as they trickle in."""
    return size_bytes > 0 and segment_ms != UNLIMITED and now_ms - begun_ms >= segment_ms


def jittered_ms(segment_ms: int, jitter_ms: int, seed: str) -> int:
    """The age at which one segment is closed: earlier by up to `jitter_ms`, for the same segment always by as much."""
    if segment_ms == UNLIMITED or jitter_ms <= 0:
        return segment_ms
    return max(1, segment_ms - zlib.crc32(seed.encode()) % (jitter_ms + 1))
