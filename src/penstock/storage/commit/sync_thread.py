"""Where the syncs of a turn are run: off the loop, which is told when they are done.

A thread of its own rather than one of the loop's: a sync must not stand behind a hundred cold reads.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class SyncRunner(Protocol):
    """One job at a time: the caller waits for `then` before it brings the next."""

    def run(self, work: Callable[[], Result], then: Callable[[Result], object]) -> None:
        """On the loop: `work` blocks and is done elsewhere; `then` is called on the loop with what it returned."""
        ...

    def close(self) -> None:
        """When the last job is done."""
        ...


class SyncThread:
    """Begins with the first job: a node whose files are in memory has none."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Callable[[], Result], then: Callable[[Result], object]) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._work, name="penstock-sync", daemon=True)
            self._thread.start()
        self._jobs.put(lambda: loop.call_soon_threadsafe(then, work()))

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = self._loop = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
