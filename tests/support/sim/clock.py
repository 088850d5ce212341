"""The clock of one node: virtual time, skewed, and stepped when the story says so."""

from __future__ import annotations

from random import Random
from typing import Final

from support.sim.loop import SimLoop

EPOCH_MS: Final = 1_700_000_000_000
# What passes between two looks at the fine clock: some slices of long work end early, others late.
LOOK_SECONDS_MAX: Final = 0.000_4


class SimClock:
    def __init__(self, loop: SimLoop, random: Random, *, skew_ms: int = 0) -> None:
        self._loop = loop
        self._random = random
        # Every one that it had, and until when; the last one holds.
        self._skews_ms = [skew_ms]
        self._steps_at: list[float] = []
        self._looks_seconds = 0.0

    def now_ms(self) -> int:
        return EPOCH_MS + self._skews_ms[-1] + int(self._loop.time() * 1000)

    def monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def monotonic_seconds(self) -> float:
        """Nothing takes time in a simulation: so that work is interrupted all the same, each look takes some."""
        self._looks_seconds += self._random.random() * LOOK_SECONDS_MAX
        return self._loop.time() + self._looks_seconds

    def step_ms(self, milliseconds: int) -> None:
        """The wall clock jumps, as after an NTP correction; waits are not disturbed."""
        self._steps_at.append(self._loop.time())
        self._skews_ms.append(self._skews_ms[-1] + milliseconds)

    @property
    def is_set(self) -> bool:
        """It was, at some time."""
        return bool(self._steps_at)

    def lowest_ms(self, since_seconds: float) -> int:
        """Nobody can have read less on it since then."""
        return EPOCH_MS + min(self._skews_since(since_seconds)) + int(since_seconds * 1000)

    def highest_ms(self, since_seconds: float = 0.0) -> int:
        """Nor more: also on one that was started by it, and is not disturbed by steps."""
        return EPOCH_MS + max(self._skews_since(since_seconds)) + int(self._loop.time() * 1000)

    def _skews_since(self, since_seconds: float) -> list[int]:
        past_count = sum(at < since_seconds for at in self._steps_at)
        return self._skews_ms[past_count:]
