"""How fast the movers of a node go, all together, and what they have released."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

# Between two intents of one mover: a stream of messages goes in batches, not one by one. Where many are at work there
# are not more intents for it, but larger ones: each costs half a millisecond, whatever is in it.
INTENT_MS_MIN: Final = 5
INTENT_MS_MAX: Final = 30
INTENT_MS_EACH: Final = 2
PACE_WINDOW_MS: Final = 100
# Of messages: an intent that makes the loop and the threads work for tens of milliseconds. After a night of downtime
# every partition has them, and whoever else uses the node would stand behind all of them; so they take turns.
HEAVY_COUNT: Final = 300
HEAVY_AT_ONCE_MAX: Final = 2
LATENESS_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 5_000, 60_000)


class MoverPace:
    """How many movers of a node are at work, and how long each should wait for more to do."""

    __slots__ = ("_before_count", "_heavy", "_intent_ms_max", "_movers", "_since_ms")

    def __init__(self, *, intent_ms_max: int = INTENT_MS_MAX) -> None:
        self._intent_ms_max = intent_ms_max
        self._heavy = asyncio.Semaphore(HEAVY_AT_ONCE_MAX)
        self._since_ms = 0
        # In the window that is open, and in the one before it.
        self._movers: set[int] = set()
        self._before_count = 0

    def interval_ms(self, mover: int, now_ms: int) -> int:
        if now_ms - self._since_ms >= PACE_WINDOW_MS:
            self._before_count = len(self._movers) if now_ms - self._since_ms < 2 * PACE_WINDOW_MS else 0
            self._movers.clear()
            self._since_ms = now_ms
        self._movers.add(mover)
        count = max(self._before_count, len(self._movers))
        return min(max(INTENT_MS_MIN, count * INTENT_MS_EACH), self._intent_ms_max)

    def turn(self, count: int) -> AbstractAsyncContextManager[None]:
        """To be held while so many messages are moved."""
        return self._heavy if count >= HEAVY_COUNT else nullcontext()


class ReleaseCounts:
    """Since the start."""

    __slots__ = ("by_lateness", "lateness_ms", "released", "throttled")

    def __init__(self) -> None:
        self.released = 0
        # How often something had to wait because too much was released just then.
        self.throttled = 0
        self.by_lateness = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.lateness_ms = 0

    def note(self, dues_ms: Sequence[int], now_ms: int) -> None:
        self.released += len(dues_ms)
        for due_ms in dues_ms:
            late_ms = max(now_ms - due_ms, 0)
            self.lateness_ms += late_ms
            # A bucket holds what is as late as its bound.
            self.by_lateness[bisect_right(LATENESS_BOUNDS_MS, late_ms - 1)] += 1
