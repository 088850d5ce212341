"""A disk in memory on which no journal can be read back while its gate is closed.

A machine is loaded from its journal, and a load begins with the small file beside it that says where: there it stands
until the test opens the gate. Everything else goes on.
"""

from __future__ import annotations

import threading

from penstock.storage.files.memory import MemoryFile, MemoryFiles
from penstock.storage.log.journal_snapshot import SNAPSHOT_FILE
from penstock.storage.log.replay_start import FILE_NAME as START_FILE
from support.door.conversation import PATIENCE_SECONDS


class GatedLoads(MemoryFiles):
    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Event()
        self._gate.set()
        # Since the gate was closed last.
        self.load_count = 0

    def close_gate(self) -> None:
        self.load_count = 0
        self._gate.clear()

    def open_gate(self) -> None:
        self._gate.set()

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        # Only a reader's thread comes here: nobody waits on the loop.
        if path.endswith((f"/{SNAPSHOT_FILE}", f"/{START_FILE}")) and not create:
            self.load_count += 1
            assert self._gate.wait(PATIENCE_SECONDS), "the test has left the gate closed"
        return super().open(path, create=create)
