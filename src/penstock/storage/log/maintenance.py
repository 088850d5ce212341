"""Who works on the files of one log, besides those who append and read. On the loop; `is_wanted` is for threads too.

together    cleaner, scrubber: they go on beside each other and let go soon when somebody wants the log alone
alone       cutting off the end, beginning anew, reading again what failed
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


def always() -> bool:
    """Whether work is due, for whoever need not ask."""
    return True


class LogMaintenance:
    __slots__ = ("_alone", "_idle", "_workers", "is_wanted")

    def __init__(self) -> None:
        # Whoever works on the log ends it at the next good moment, and nobody else begins.
        self.is_wanted = False
        self._alone = asyncio.Lock()
        self._workers = 0
        self._idle: asyncio.Future[None] | None = None

    def join(self) -> bool:
        """False: somebody has the log alone, or waits for it. True: `leave` must follow."""
        if self.is_wanted:
            return False
        self._workers += 1
        return True

    def leave(self) -> None:
        self._workers -= 1
        if self._workers == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Waits for those who are there; one after the other, in the order of asking."""
        async with self._alone:
            self.is_wanted = True
            try:
                if self._workers:
                    self._idle = asyncio.get_running_loop().create_future()
                    await self._idle
                yield
            finally:
                self.is_wanted, self._idle = False, None
