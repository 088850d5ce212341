"""Long-lived tasks that nobody awaits, kept by a supervisor.

`asyncio.create_task` is banned elsewhere: its task may be collected in mid-flight and its error is told to nobody.
A supervised task is held until it ends; an error in it is a log event, and a periodic task goes on after one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from structlog.typing import FilteringBoundLogger


class TaskSupervisor:
    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        # Not a set: who is cancelled first must not hang on where an object lies in memory.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guard(name, work), name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        # A task that is cancelled before its first step never awaits its work.
        task.add_done_callback(lambda _: work.close())
        return task

    def every(self, interval_ms: int, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Runs `work` again `interval_ms` after it ended, whether or not it failed."""
        assert interval_ms > 0

        async def repeat() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                try:
                    await work()
                except Exception as error:  # noqa: BLE001  edge of a supervised task
                    self._log.error("periodic task failed", task=name, error=repr(error), exc_info=error)

        return self.start(name, repeat())

    async def stop(self) -> None:
        """Cancels what is left and waits until all of it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _guard(self, name: str, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  edge of a supervised task
            self._log.error("task failed", task=name, error=repr(error), exc_info=error)
