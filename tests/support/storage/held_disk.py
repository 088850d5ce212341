"""A gated disk whose files a test can hold back, refuse to open, and follow."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import Final

from penstock.storage.files.memory import MemoryFile
from support.door.conversation import PATIENCE_SECONDS
from support.storage.gated_disk import GatedDisk

_NOWHERE: Final = "\0"


class HeldDisk(GatedDisk):
    def __init__(self) -> None:
        super().__init__()
        self._held = _NOWHERE
        self._arrived_at_held = threading.Event()
        self._may_go = threading.Event()
        self._refused = _NOWHERE
        self.refusals_left = 0
        self._followed = _NOWHERE
        self.events: list[str] = []

    # Holding: threads alone, for a loop that waited would never let them go.

    def hold(self, part: str) -> None:
        """Threads that look at what has this in its path wait from now on."""
        self._arrived_at_held.clear()
        self._may_go.clear()
        self._held = part

    def let_go(self) -> None:
        self._held = _NOWHERE
        self._may_go.set()

    async def wait_until_held(self) -> None:
        assert await asyncio.to_thread(self._arrived_at_held.wait, PATIENCE_SECONDS), "nobody came"

    def _pass(self, path: str) -> None:
        if self._held in path and threading.current_thread() is not threading.main_thread():
            self._arrived_at_held.set()
            assert self._may_go.wait(PATIENCE_SECONDS), "the test lets nobody go"

    # Refusing

    def refuse_opens(self, part: str, count: int) -> None:
        """The next ones of what has this in its path: the process has too many files open."""
        self._refused, self.refusals_left = part, count

    # Following

    def follow(self, name: str) -> None:
        """`events` tells from now on when a file of that name is "read" and when it is "saved"."""
        self._followed = f"/{name}"
        self.events.clear()

    # What others see

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self._pass(path)
        if self._refused in path and self.refusals_left:
            self.refusals_left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        if path.endswith(self._followed):
            self.events.append("read")
        return super().open(path, create=create)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if target.endswith(self._followed):
            self.events.append("saved")

    def list_directory(self, path: str) -> list[str]:
        self._pass(path)
        return super().list_directory(path)
