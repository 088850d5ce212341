"""Where the replay of a companion log begins, and how much of it is kept before that for who traces a message.

The first is one number in a small file beside the log. It is only ever a lower bound: a file that is missing or damaged
costs a longer replay and nothing else.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from penstock.storage.partition_log import PartitionLog
from penstock.storage.small_file import read_small_file, write_small_file

FILE_NAME: Final = "queues.start"
_MAGIC: Final = b"PSQSTRT1"
_OFFSET: Final = struct.Struct("<q")


def read_start(log: PartitionLog) -> int:
    """Blocking."""
    try:
        payload = read_small_file(log.context.files, log.home.directory, FILE_NAME, _MAGIC)
    except OSError:
        return 0
    if payload is None or len(payload) != _OFFSET.size:
        return 0
    (offset,) = _OFFSET.unpack(payload)
    # A log that was cut since, or made anew.
    return offset if log.log_start <= offset <= log.log_end else 0


def write_start(log: PartitionLog, offset: int) -> bool:
    """Blocking. False: not written, and tried again the next time."""
    try:
        write_small_file(log.context.files, log.home.directory, FILE_NAME, _MAGIC, _OFFSET.pack(offset))
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
