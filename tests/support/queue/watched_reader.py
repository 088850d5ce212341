"""A queue's reader that counts its looks, and may have something happen at the end of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.broker.queue.reader import QueueReader


class WatchedReader(QueueReader):
    """In the place of a shell's reader, which it asks: `shell.reader = WatchedReader(shell.reader)`."""

    def __init__(self, true: QueueReader, after: Callable[[WatchedReader], None] | None = None) -> None:
        self.true = true
        self.look_count = 0
        self._after = after

    def __getattribute__(self, name: str) -> Any:
        if name in ("true", "look_count", "_after", "look", "__class__"):
            return object.__getattribute__(self, name)
        return getattr(self.true, name)

    async def look(self, *arguments: Any, **more: Any) -> Any:
        self.look_count += 1
        sight = await self.true.look(*arguments, **more)
        if self._after is not None:
            self._after(self)
        return sight
