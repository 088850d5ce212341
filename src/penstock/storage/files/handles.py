"""A bound on open files: 10,000 partitions fit into one process's descriptors.

A segment asks for its file when it has none. Over the bound the longest unused one is let go ("clock": a used one gets
a second chance), and closes when the last reader that still holds it is done. Files with unsynced writes are kept,
because a writeback error is reported to the descriptors that are open; if all of them are unsynced the oldest goes
nevertheless, and the next turn syncs the whole disk. Used from the event loop only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Protocol

from penstock.storage.files.protocols import File, Files

# Unsynced files looked at before one of them is let go: a node with thousands of them must not search them all.
_SEARCH_MAX: Final = 64


class FileOwner(Protocol):
    file: File | None
    is_dirty: bool
    was_used: bool
    path: str


class HandleCache:
    def __init__(self, files: Files, handles_max: int) -> None:
        assert handles_max > 0
        self._files = files
        self._handles_max = handles_max
        self._owners: OrderedDict[FileOwner, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def open(self, owner: FileOwner, *, create: bool = False) -> File:
        assert owner.file is None
        while len(self._owners) >= self._handles_max:
            self._let_one_go()
        file = self._files.open(owner.path, create=create)
        owner.file = file
        owner.was_used = True
        self._owners[owner] = None
        return file

    def forget(self, owner: FileOwner) -> None:
        """Its file is gone from the disk, or the log is closed."""
        if owner.file is not None:
            owner.file = None
            del self._owners[owner]

    def _let_one_go(self) -> None:
        for _ in range(min(2 * len(self._owners), _SEARCH_MAX)):
            owner = next(iter(self._owners))
            if not owner.is_dirty and not owner.was_used:
                break
            owner.was_used = False
            self._owners.move_to_end(owner)
        owner, _ = self._owners.popitem(last=False)
        owner.file = None
