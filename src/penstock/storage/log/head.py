"""What leaves a log at its head: by the topic's retention, or because somebody said so.

On the loop, and without a wait: memory lets go of the segments first, and `removal` of the files in a thread. Only what
a checkpoint has saved goes: until then the producers of what goes would be forgotten by a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.base.log_events import get_logger
from penstock.domain.log.retention import jittered_ms, roll_is_due
from penstock.storage.log.removal import LogRemoval, retirement_of

if TYPE_CHECKING:
    from penstock.storage.log.partition_log import PartitionLog

_log = get_logger("storage")


def delete_before(log: PartitionLog, offset: int) -> LogRemoval:
    assert log.log_start <= offset <= log.readable_end, (log.log_start, offset, log.readable_end)
    return _take_head(log, _count_below(log, offset), offset, "deleted")


def follow(log: PartitionLog, offset: int) -> LogRemoval | None:
    # Not past what is readable here: the leader's start is committed, and word of it comes with the next answer.
    offset = max(min(offset, log.readable_end), log.log_start)
    # Also where the start is right: segments below it may have waited for a checkpoint.
    is_head_left = len(log.segments) > 1 and log.segments[0].next_offset <= offset
    if (offset == log.log_start and not is_head_left) or not log.is_healthy:
        return None
    count = _count_below(log, offset)
    return _take_head(log, count, offset, "leader's start") if count or offset > log.log_start else None


def apply_retention(log: PartitionLog, now_ms: int, archived_end: int | None) -> LogRemoval | None:
    if not log.segments or not log.is_healthy:
        return None
    roll_if_due(log, now_ms)
    retirement = retirement_of(log, now_ms, archived_end)
    held = log.segments[retirement.count : retirement.count + retirement.held]
    log.held_bytes = sum(segment.size for segment in held)
    log_start = log.log_start
    if retirement.count:
        log_start = max(log_start, log.segments[retirement.count - 1].next_offset)
    count = _count_below(log, log_start)
    if count == 0:
        return None
    log_start = max(log.log_start, log.segments[count - 1].next_offset)
    return _take_head(log, count, log_start, retirement.reason)


def roll_if_due(log: PartitionLog, now_ms: int) -> None:
    if not log.segments or not log.is_healthy:
        return
    active = log.segments[-1]
    seed = f"{log.home.topic}-{log.home.partition}-{active.base_offset}"
    segment_ms = jittered_ms(log.config.segment_ms, log.config.segment_jitter_ms, seed)
    if roll_is_due(begun_ms=active.begun_ms, size_bytes=active.size, segment_ms=segment_ms, now_ms=now_ms):
        _try_to_roll(log)
    if active.size == 0:
        active.begun_ms = now_ms


def _count_below(log: PartitionLog, offset: int) -> int:
    """How many segments lie wholly below the offset and may be removed now; the rest waits for a checkpoint."""
    if log.segments and offset == log.log_end and log.segments[-1].size > 0:
        _try_to_roll(log)
    # The last segment stays in any case: it says where the log ends.
    below = [segment for segment in log.segments[:-1] if segment.next_offset <= offset]
    saved = [segment for segment in below if segment.next_offset <= log.saved_end]
    log.is_save_wanted |= len(saved) < len(below)
    return len(saved)


def _take_head(log: PartitionLog, count: int, log_start: int, reason: str) -> LogRemoval:
    removed, log.segments = log.segments[:count], log.segments[count:]
    for segment in removed:
        log.context.handles.forget(segment)
        log.context.indexes.release(segment)
        log.size_bytes -= segment.size
        log.unsynced.forget(segment)
    log.log_start = log_start
    log.epochs.truncate_start(log_start)
    has_less_damage = log.damages.keep_from(log_start)
    log.move_transactions()
    directories = [log.home.directory] if log.segments else []
    directories += [path for path in log.unsynced.directories if path not in directories]
    return LogRemoval(
        log,
        removed,
        log_start=log_start,
        reason=reason,
        directories=directories,
        damages=log.damages if has_less_damage else None,
    )


def _try_to_roll(log: PartitionLog) -> None:
    try:
        log.roll()
    except OSError as error:
        _log.warning("log did not roll", topic=log.home.topic, partition=log.home.partition, error=str(error))
