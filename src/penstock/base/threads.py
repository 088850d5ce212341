"""Work in a thread that nobody leaves behind.

A thread cannot be stopped. Who cancels a task that waits for one would go on while the thread still writes, and the
next one would write between its lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

Outcome = TypeVar("Outcome")


async def finish_in_thread(work: Callable[[], Outcome], executor: Executor | None = None) -> Outcome:
    """Whoever cancels it waits until the work has ended, however it ends; without an executor the loop's own."""
    running = asyncio.get_running_loop().run_in_executor(executor, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise
