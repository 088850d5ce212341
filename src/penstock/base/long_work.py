"""Long work on the event loop, done in slices, so that everybody else has a turn in between.

    a slice of 2 ms ─► everybody else ─► the next slice ─► …

Work is a generator that yields wherever it may be interrupted and returns its result (`Steps`); who can wait while it
works asks a `Pace` instead. However much long work there is, one slice of it is done in a turn of the loop: they take
turns. What is decided by what was read before a step may have changed after it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Generator
from enum import Enum
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]

# A request of a hundred microseconds that waits for a few of these in its life is still answered in a few milliseconds;
# half as long would spend more on changing over than it gives to others.
SLICE_SECONDS: Final = 0.002


class Unfinished(Enum):
    UNFINISHED = "there is more to do"


UNFINISHED: Final = Unfinished.UNFINISHED


class LongWork:
    """The line of those who have long work to do on one loop."""

    def __init__(self, now: Callable[[], float] = time.perf_counter, slice_seconds: float = SLICE_SECONDS) -> None:
        self.now = now
        self.slice_seconds = slice_seconds
        self._line: deque[asyncio.Future[None]] = deque()
        self._is_calling = False

    def begin(self, steps: Steps[T]) -> T | Unfinished:
        """One slice of it, now. Most work is done by then."""
        until = self.now() + self.slice_seconds
        try:
            while True:
                next(steps)
                if self.now() >= until:
                    return UNFINISHED
        except StopIteration as end:
            result: T = end.value
            return result

    async def finish(self, steps: Steps[T]) -> T:
        """What `begin` has left, in turn with the others."""
        while True:
            await self.turn()
            result = self.begin(steps)
            if not isinstance(result, Unfinished):
                return result

    async def run(self, steps: Steps[T]) -> T:
        result = self.begin(steps)
        return await self.finish(steps) if isinstance(result, Unfinished) else result

    def pace(self) -> Pace:
        return Pace(self)

    async def turn(self) -> None:
        """Waits for its place in the line, at the front of which one is called in each turn of the loop."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._line.append(place)
        if not self._is_calling:
            self._is_calling = True
            loop.call_soon(self._call_next)
        await place

    def _call_next(self) -> None:
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                break
        if self._line:
            asyncio.get_running_loop().call_soon(self._call_next)
        else:
            self._is_calling = False


class Pace:
    """For a loop that can wait: asked after each round, it makes it rest when its slice is over."""

    __slots__ = ("_until", "_work")

    def __init__(self, work: LongWork) -> None:
        self._work = work
        self._until = work.now() + work.slice_seconds

    async def rest_if_due(self) -> None:
        if self._work.now() >= self._until:
            await self._work.turn()
            self._until = self._work.now() + self._work.slice_seconds


def all_at_once(steps: Steps[T]) -> T:
    """Without a pause, for whoever keeps nobody waiting."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
