"""A disk in memory whose syncs wait for the test's word, and fail where the test says so.

Nothing is lost by it: what a failed sync does to the bytes is faulty_files' business. This one is for the doors: who is
answered when, and with what.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading

from penstock.storage.files.memory import MemoryFile, MemoryFiles
from support.door.conversation import PATIENCE_SECONDS


class GatedFile(MemoryFile):
    __slots__ = ("disk",)

    disk: GatedDisk

    def sync(self) -> None:
        self.disk.wait_for_sync(self.path)


class GatedDisk(MemoryFiles):
    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Event()
        self._gate.set()
        self._arrived = threading.Event()
        self._failing: list[str] = []
        self.synced: list[str] = []

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        file = self._contents.get(path)
        if file is None and create:
            gated = GatedFile(self, path)
            gated.disk = self
            self._link(path, gated)
            return gated
        return super().open(path)

    def close_gate(self) -> None:
        """Syncs wait from now on."""
        self._arrived.clear()
        self._gate.clear()

    def open_gate(self) -> None:
        self._gate.set()

    def fail(self, topic_id: bytes, partition: int) -> None:
        """Syncs of this partition's log fail from now on."""
        self._failing.append(f"{topic_id.hex()}/{partition}/")

    def heal(self) -> None:
        self._failing.clear()

    async def wait_until_syncing(self) -> None:
        """A sync has begun and stands before the gate."""
        assert await asyncio.to_thread(self._arrived.wait, PATIENCE_SECONDS), "nobody syncs"

    def wait_for_sync(self, path: str) -> None:
        self._arrived.set()
        assert self._gate.wait(PATIENCE_SECONDS), "the test has left the gate closed"
        if any(part in path for part in self._failing):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.synced.append(path)
