"""A thread for long and slow work on logs, which ends when whoever waits for it is cancelled.

Nothing of ours may touch the disk after the store was closed: a cancelled wait stops the work by its throttle and comes
back when the thread has let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.storage.segment.throttle import Throttle

Result = TypeVar("Result")


class PatientThread:
    def __init__(self, name: str, throttle: Throttle) -> None:
        self._name = name
        self._throttle = throttle
        # Made when there is something to do: most nodes have no work for some of them.
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, work: Callable[[], Result]) -> Result:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._throttle.stop()
            await asyncio.wait([future])
            self._throttle.resume()
            raise
