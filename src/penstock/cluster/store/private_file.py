"""A file that its owner alone may read: the metadata holds what proves users' passwords."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

PRIVATE_MODE: Final = 0o600
# What SQLite keeps beside its file. New ones get the mode of the file itself.
_SIDE_FILES: Final = ("", "-wal", "-shm", "-journal")


def make_private(path: str) -> None:
    """Made with that mode where it is missing, and given it where it is ours. What cannot be done here, such as on a
    file system that is read-only, is left to whoever opens the file to complain about."""
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE))
    for ending in _SIDE_FILES:
        with contextlib.suppress(OSError):
            file = Path(path + ending)
            if file.stat().st_mode & 0o777 != PRIVATE_MODE:
                file.chmod(PRIVATE_MODE)
