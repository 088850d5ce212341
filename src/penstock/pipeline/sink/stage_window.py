"""A few sends under way while the next is being put together; their results come in the order of the sends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Final, Generic, TypeVar

# As many as the broker remembers of a producer in a partition, less the one that is being made.
SENDS_MAX: Final = 4

Result = TypeVar("Result")


class SendWindow(Generic[Result]):
    """Caller's duties: `finish`, and `close` on every way out."""

    def __init__(self) -> None:
        self._under_way: deque[asyncio.Future[Result]] = deque()

    async def add(self, send: Coroutine[Any, Any, Result]) -> list[Result]:
        """Lets it leave at once, and waits for older ones when there are many; the results of those."""
        self._under_way.append(asyncio.ensure_future(send))  # noqa: TID251  held here, and its error is awaited
        # Its first step: the broker works while the caller makes the next one.
        await asyncio.sleep(0)
        return [await self._under_way.popleft() for _ in range(len(self._under_way) - SENDS_MAX)]

    async def finish(self) -> list[Result]:
        return [await self._under_way.popleft() for _ in range(len(self._under_way))]

    def close(self) -> None:
        """What is still under way is not waited for."""
        for sending in self._under_way:
            # One that has failed is not told: the first of them was.
            if not sending.cancel() and not sending.cancelled():
                sending.exception()
        self._under_way.clear()
