"""How long the loop was busy at a stretch: what everybody else on it had to wait for."""

from __future__ import annotations

import asyncio
import gc
import time
from types import TracebackType


class LoopTurns:
    """Between entering and leaving: the processor time of the longest turn of the loop, whatever else the machine does.

    Without the garbage collector, whose time depends on what other tests have left.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._probe: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopTurns:
        gc.collect()
        gc.disable()
        self._probe = asyncio.ensure_future(self._look())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        gc.enable()
        if self._probe is not None:
            self._probe.cancel()

    async def _look(self) -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.thread_time() - began)
