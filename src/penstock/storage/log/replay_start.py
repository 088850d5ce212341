"""Where the replay of a queue journal begins: an offset in a small file beside the log, and the epoch before it.

It is only ever a lower bound: a file that is missing or damaged costs a longer replay and nothing else.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.storage.files.protocols import Files
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.log.epochs import NO_EPOCH
from penstock.storage.log.saved_place import SavedPlace

FILE_NAME: Final = "queues.start"
_MAGIC: Final = b"PSQSTRT1"
# The offset, and the epoch of the record before it; once there was the offset alone.
_PLACE: Final = struct.Struct("<qi")
_OFFSET: Final = struct.Struct("<q")


def read_replay_place(files: Files, directory: str) -> SavedPlace | None:
    """Blocking. None: missing, damaged, or not to be read."""
    try:
        payload = read_small_file(files, directory, FILE_NAME, _MAGIC)
    except OSError:
        return None
    if payload is None or len(payload) not in (_PLACE.size, _OFFSET.size):
        return None
    return SavedPlace(*(_PLACE if len(payload) == _PLACE.size else _OFFSET).unpack(payload))


def read_replay_start(files: Files, directory: str) -> int | None:
    """Blocking: the offset alone."""
    place = read_replay_place(files, directory)
    return None if place is None else place.offset


def write_replay_start(files: Files, directory: str, offset: int, epoch: int = NO_EPOCH) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    write_small_file(files, directory, FILE_NAME, _MAGIC, _PLACE.pack(offset, epoch))
