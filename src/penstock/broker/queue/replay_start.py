"""Where the replay of a queue journal begins, and how much of it is kept before that for who traces a message."""

from __future__ import annotations

import msgspec

from penstock.base.log_events import get_logger
from penstock.broker.machine.portions import check_reaches
from penstock.broker.partition.shell import PartitionShell
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.log.replay_start import FILE_NAME, read_replay_place, write_replay_start
from penstock.storage.log.saved_place import agrees, place_in

log_events = get_logger("queues")


def read_start(journal: PartitionShell) -> int:
    """Blocking. JournalDamagedError: the log ends before it, so its end was lost."""
    log = journal.log
    place = read_replay_place(log.context.files, log.home.directory)
    if place is None:
        if log.context.files.exists(f"{log.home.directory}/{FILE_NAME}"):
            log_events.warning(
                "start of the replay is damaged, the whole journal is read",
                topic=journal.topic,
                partition=journal.index,
            )
        return 0
    if log.damage is None:
        check_reaches(journal, place.offset, FILE_NAME)
    # Below it: of a log that was made anew.
    if log.log_start <= place.offset and agrees(log, place):
        return place.offset
    log_events.info(
        "start of the replay not used",
        topic=journal.topic,
        partition=journal.index,
        offset=place.offset,
        epoch=place.epoch,
        log_start=log.log_start,
    )
    return 0


def write_start(log: PartitionLog, offset: int) -> bool:
    """Blocking. False: not written, and tried again the next time."""
    try:
        write_replay_start(log.context.files, log.home.directory, offset, place_in(log, offset).epoch)
    except OSError:
        return False
    return True


class Kept(msgspec.Struct, frozen=True):
    """What is not needed to rebuild the queues tells what became of messages: for so long, and not more than so much.
    The node's settings are `[broker] trace_horizon_ms` and `trace_bytes_max`."""

    horizon_ms: int = 24 * 3_600_000
    bytes_max: int = 1024 * 1024 * 1024


def removable_below(log: PartitionLog, *, start: int, now_ms: int, kept: Kept) -> int:
    """Everything below is of no use any more: neither to a start, which reads from `start` on, nor to a trace."""
    below, left_bytes = log.log_start, log.size_bytes
    for segment in log.segments[:-1]:
        newest_ms = segment.max_timestamp if segment.max_timestamp >= 0 else segment.begun_ms
        is_kept = newest_ms >= now_ms - kept.horizon_ms and left_bytes <= kept.bytes_max
        if segment.next_offset > start or is_kept:
            break
        below = segment.next_offset
        left_bytes -= segment.size
    return below
