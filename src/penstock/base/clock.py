"""Where time comes from.

Two clocks, never mixed: the wall clock dates records and may jump; the monotonic clock measures waits and never
goes back. Everything that needs either is handed a `Clock`, so a test moves time instead of sleeping.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, in milliseconds since the epoch: what a record is dated with."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary moment: what a wait is measured with."""
        ...

    def monotonic_seconds(self) -> float:
        """Since another arbitrary moment, as fine as it goes: what work is measured with that takes less than one."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        return time.perf_counter()


class ManualClock:
    """A clock that stands still until it is told to move. For tests and simulations."""

    def __init__(self, *, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def monotonic_seconds(self) -> float:
        return self._monotonic_ms / 1000

    def advance_ms(self, milliseconds: int) -> None:
        assert milliseconds >= 0, "use step_wall_ms for a wall clock that jumps back"
        self._now_ms += milliseconds
        self._monotonic_ms += milliseconds

    def step_wall_ms(self, milliseconds: int) -> None:
        """The wall clock jumps, as after an NTP correction; waits are not disturbed."""
        self._now_ms += milliseconds


class SteadyClock:
    """The wall clock as it was at the start, carried on by the monotonic one: it never jumps.

    For what is dated and waited for at once, such as sessions of members: an NTP step must not end them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ms = clock.now_ms() - clock.monotonic_ms()

    def now_ms(self) -> int:
        return self._offset_ms + self._clock.monotonic_ms()

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def monotonic_seconds(self) -> float:
        return self._clock.monotonic_seconds()
