"""A little room that the node gives back to itself on a full disk, so that it can save what frees more of it."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from typing import Final

from penstock.storage.files.protocols import Files
from penstock.storage.files.small import write_fully

RESERVE_FILE: Final = "reserve"
# A few hundred small files of one block each.
RESERVE_BYTES: Final = 1 << 20


class DiskReserve:
    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._path = f"{root}/{RESERVE_FILE}"
        self._lock = threading.Lock()

    def fill(self) -> bool:
        """Takes the room, if there is any to take. False: the file system takes no writes at all."""
        if not self._files.is_durable:
            return True
        with self._lock:
            try:
                file = self._files.open(self._path, create=True)
                if file.size() < RESERVE_BYTES:
                    write_fully(file, bytes(RESERVE_BYTES), 0)
            except OSError as error:
                # Half a reserve would be taken for a whole one's beginning, so it goes; where even that fails, the next
                # attempt writes it to its end.
                with suppress(OSError):
                    self._files.remove(self._path)
                return error.errno != errno.EROFS
        return True

    def release(self) -> bool:
        """False: it is in use already, or cannot be had."""
        with self._lock:
            if not self._files.exists(self._path):
                return False
            try:
                self._files.remove(self._path)
            except OSError:
                return False
            return True
