"""A little room that the node gives back to itself on a full disk, so that it can save what frees more of it."""

from __future__ import annotations

import threading
from typing import Final

from penstock.storage.file_protocols import Files
from penstock.storage.small_file import write_fully

RESERVE_FILE: Final = "reserve"
# A few hundred small files of one block each.
RESERVE_BYTES: Final = 1 << 20


class DiskReserve:
    def __init__(self, files: Files, root: str) -> None:
        self._files = files
        self._path = f"{root}/{RESERVE_FILE}"
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Takes the room, if there is any to take."""
        if not self._files.is_durable:
            return
        with self._lock:
            try:
                file = self._files.open(self._path, create=True)
                if file.size() < RESERVE_BYTES:
                    write_fully(file, bytes(RESERVE_BYTES), 0)
            except OSError:
                self._files.remove(self._path)

    def release(self) -> bool:
        """False: it is in use already."""
        with self._lock:
            if not self._files.exists(self._path):
                return False
            self._files.remove(self._path)
            return True
