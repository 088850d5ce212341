"""Files that nobody reads any more and that stay on the disk for a while, under another name.

    00000000000000004096.log.deleted       of a segment that was retired, with its index; beside it
    <topic id>.removed/                    of a topic that was deleted: it has its name from whoever deleted it

No start takes them for what they were: it removes them (`log/recovery`, `LogStore`). So which they are, and until when,
is known in memory alone. Whoever lacks room on the disk has them removed at once.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from itertools import count
from typing import Final

from penstock.base.log_events import get_logger
from penstock.storage.files.protocols import Files

_log = get_logger("storage")

RETIRED_SUFFIX: Final = ".deleted"
# Segments and topics. Over it the first that is due goes before its time: some megabytes of memory.
WAITING_MAX: Final = 50_000

# When they are due, a number for those of one moment, and which they are.
_Waiting = tuple[int, int, tuple[str, ...]]


class RetiredFiles:
    """Called by threads: everything here is blocking, but `give_way`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._numbers = count()
        self._must_give_way = False

    def __len__(self) -> int:
        return len(self._waiting)

    def give_way(self) -> None:
        """A write found no room: the next sweep leaves nothing."""
        self._must_give_way = True

    def keep_files(self, paths: Iterable[str], *, until_ms: int) -> None:
        """Of one segment, those that exist, renamed in this order. OSError: some of them have their old names."""
        kept: list[str] = []
        try:
            for path in paths:
                if self._files.exists(path):
                    self._files.rename(path, path + RETIRED_SUFFIX)
                    kept.append(path + RETIRED_SUFFIX)
        finally:
            self._keep(tuple(kept), until_ms)

    def keep_tree(self, path: str, *, until_ms: int) -> None:
        """Of a topic, which has another name already."""
        self._keep((path,), until_ms)

    def sweep(self, now_ms: int, *, is_room_wanted: bool) -> int:
        """Removes what is due, or everything if there is no room: how many segments and topics that were."""
        with self._lock:
            takes_all = is_room_wanted or self._must_give_way
            self._must_give_way = False
            due: list[_Waiting] = []
            while self._waiting and (takes_all or self._waiting[0][0] <= now_ms):
                due.append(heapq.heappop(self._waiting))
        for _, _, paths in due:
            self._remove(paths)
        return len(due)

    def _keep(self, paths: tuple[str, ...], until_ms: int) -> None:
        with self._lock:
            heapq.heappush(self._waiting, (until_ms, next(self._numbers), paths))
            surplus = heapq.heappop(self._waiting) if len(self._waiting) > WAITING_MAX else None
        if surplus is not None:
            self._remove(surplus[2])

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            remove = self._files.remove if path.endswith(RETIRED_SUFFIX) else self._files.remove_tree
            try:
                remove(path)
            except OSError as error:
                # Not tried again: the next start does.
                _log.warning("retired file not removed", path=path, error=str(error))
