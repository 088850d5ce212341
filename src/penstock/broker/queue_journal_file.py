"""Where the replay of a companion log begins: one number in a small file beside it.

Only ever a lower bound: a file that is missing or damaged costs a longer replay and nothing else.
"""

from __future__ import annotations

import struct
from typing import Final

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
