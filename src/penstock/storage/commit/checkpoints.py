"""What of each log is saved in the node's checkpoint, and whose turn it is to write that file.

One checkpoint runs at a time. Whoever changes what the file says of one log, because its end goes, waits for it.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable

import msgspec

from penstock.base.log_events import get_logger
from penstock.storage.commit.checkpoint_work import (
    LOGS_MAX,
    CheckpointWork,
    SavedState,
    capture_log,
    key_of,
    logs_due,
    settle_capture,
)
from penstock.storage.context import StoreContext
from penstock.storage.files.protocols import WholeDiskSync
from penstock.storage.log.checkpoint_file import LogCheckpoint, LogKey, pack_entry, unpack_entries, write_checkpoint
from penstock.storage.log.partition_log import PartitionLog

_log = get_logger("storage")


class Checkpoints:
    def __init__(self, context: StoreContext, root: str) -> None:
        self.entries: dict[LogKey, LogCheckpoint] = {}
        # On the loop: held while a checkpoint runs, and while an entry is replaced.
        self.turn = asyncio.Lock()
        self.is_running = False
        self._context = context
        self._root = root
        self._packed: dict[LogKey, bytes] = {}
        self._saved: dict[LogKey, SavedState] = {}

    def load(self, payload: bytes) -> None:
        self.entries = unpack_entries(payload)
        self._packed = {key: pack_entry(entry) for key, entry in self.entries.items()}

    # --- one checkpoint ------------------------------------------------------------------------------------------

    def begin(self, logs: Iterable[PartitionLog], *, every_log: bool) -> CheckpointWork | None:
        """On the loop: what is due; None if nothing is, or one is under way."""
        if self.is_running:
            return None
        due = logs_due(self._context.config, logs, every_log=every_log)
        if not due:
            return None
        if not every_log:
            due = sorted(due, key=lambda log: log.unsaved_batches, reverse=True)[:LOGS_MAX]
        self.is_running = True
        captures = [capture_log(log, self._saved.get(key_of(log), SavedState())) for log in due]
        return CheckpointWork(self._context.files, self._root, captures, self._packed)

    def run(self, work: CheckpointWork, whole_disk: WholeDiskSync | None) -> None:
        """Blocking: a failure is told, and the checkpoint before it still holds."""
        try:
            try:
                work.run(whole_disk)
            except OSError as error:
                # On a full disk retention is what makes room, and it waits for this.
                if error.errno != errno.ENOSPC or not self._context.reserve.release():
                    raise
                work.run(whole_disk)
        except OSError as error:
            _log.warning("checkpoint failed", error=str(error))

    def end(self, work: CheckpointWork, is_open: Callable[[LogKey], bool]) -> None:
        """On the loop."""
        self.is_running = False
        for capture in work.captures if work.is_written else ():
            key = capture.key
            if is_open(key) and settle_capture(capture):
                self._packed[key] = pack_entry(capture.entry)
                self.entries[key] = capture.entry
                self._saved[key] = capture.saved

    # --- one log -------------------------------------------------------------------------------------------------

    def replace(self, key: LogKey, entry: LogCheckpoint) -> None:
        """Blocking; durable when it returns."""
        assert not self.is_running
        self._drop([key])
        self._packed[key] = pack_entry(entry)
        self.entries[key] = entry
        write_checkpoint(self._context.files, self._root, self._packed.values())

    def forget(self, keys: Iterable[LogKey]) -> None:
        """Blocking; durable when it returns: nothing of these logs is believed without being read."""
        assert not self.is_running
        if self._drop(keys):
            write_checkpoint(self._context.files, self._root, self._packed.values())

    def forget_topic(self, topic_id: bytes) -> None:
        """Its directory is gone, so it does not matter what the file says of it."""
        self._drop([key for key in self._packed if key[0] == topic_id])

    def _drop(self, keys: Iterable[LogKey]) -> bool:
        """Whether there was anything about them."""
        had_any = False
        for key in keys:
            self._saved.pop(key, None)
            self._packed.pop(key, None)
            had_any |= self.entries.pop(key, None) is not None
        return had_any

    # --- a clean end ---------------------------------------------------------------------------------------------

    def write_last(self, is_clean: Callable[[LogKey, LogCheckpoint], bool]) -> bytes:
        """Blocking: the file's content, in which each entry says whether its log need not be read at the next start."""
        for key, entry in self.entries.items():
            if entry.is_clean != is_clean(key, entry):
                self._packed[key] = pack_entry(msgspec.structs.replace(entry, is_clean=not entry.is_clean))
        write_checkpoint(self._context.files, self._root, self._packed.values())
        return b"".join(self._packed.values())
