"""Where the replay of a queue journal begins: one number in a small file beside the log.

It is only ever a lower bound: a file that is missing or damaged costs a longer replay and nothing else.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.storage.files.protocols import Files
from penstock.storage.files.small import read_small_file, write_small_file

FILE_NAME: Final = "queues.start"
_MAGIC: Final = b"PSQSTRT1"
_OFFSET: Final = struct.Struct("<q")


def read_replay_start(files: Files, directory: str) -> int | None:
    """Blocking. None: missing, damaged, or not to be read."""
    try:
        payload = read_small_file(files, directory, FILE_NAME, _MAGIC)
    except OSError:
        return None
    if payload is None or len(payload) != _OFFSET.size:
        return None
    (offset,) = _OFFSET.unpack(payload)
    return int(offset)


def write_replay_start(files: Files, directory: str, offset: int) -> None:
    """Blocking; durable when it returns. Raises OSError."""
    write_small_file(files, directory, FILE_NAME, _MAGIC, _OFFSET.pack(offset))
