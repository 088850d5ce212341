"""Has the kernel begin to write what is in its memory, so that the sync to come finds little left to do.

A topic with `durability=interval` is synced once in an interval. At 100 MB/s that sync has 100 MB to write, takes 30 to
60 ms, and for as long the event loop's own appends to the same file wait for the file system, up to 17 ms each
(docs/decisions/0024). Written out a megabyte at a time, a sync takes 4 ms and appends hardly ever wait.

Nothing rests on it: it promises nothing, its errors are reported by the sync that follows, and what finds the thread
busy is left to that sync. Its own thread, because the kernel may make the caller wait when the disk's queue is full.
"""

from __future__ import annotations

import queue
import threading
from typing import Final

from penstock.storage.files.protocols import File, Files
from penstock.storage.segment.facts import Segment

# Enough that a hop to the thread costs nothing beside the writing; little enough that a disk takes it in milliseconds.
WRITEBACK_BYTES: Final = 1 << 20
# Asked for and not begun yet. A disk that is further behind is not helped by more.
_ASKED_MAX: Final = 64

_Range = tuple[File, int, int]


class EarlyWriteback:
    """`ask` on the loop, the rest in a thread that begins with the first one."""

    def __init__(self, files: Files) -> None:
        self._is_used = files.has_writeback
        self._asked: queue.SimpleQueue[_Range | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, segment: Segment, file: File) -> None:
        """Everything of the segment that was not asked for before."""
        start, segment.writeback_end = segment.writeback_end, segment.size
        if not self._is_used or self._asked.qsize() >= _ASKED_MAX:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="penstock-writeback", daemon=True)
            self._thread.start()
        self._asked.put((file, start, segment.size - start))

    def close(self) -> None:
        """Waits for what is under way; what was asked for and not begun is left to the sync."""
        if self._thread is None:
            return
        while not self._asked.empty():
            self._asked.get_nowait()
        self._asked.put(None)
        self._thread.join()
        self._thread = None

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            file, start, size = asked
            file.begin_writeback(start, size)
