"""One timer for a machine: it rings at the earliest time that somebody has set it to.

    set(30) set(20) set(25) ──► rings at 20, once; whoever owns it looks what is due and sets the next

A machine has any number of deadlines and knows the earliest. Deadlines that go away are not taken back: a ring that
comes too early finds nothing due, and that costs less than to look for the next one at every command. So whoever is
rung must not believe that something is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.base.clock import Clock

# Whatever is due later is looked at once in between: a timer of the loop takes no more than some weeks.
DELAY_MS_MAX: Final = 3_600_000


class Alarm:
    __slots__ = ("_clock", "_due_ms", "_loop", "_ring", "_timer")

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        """`clock` is the one that the machine's deadlines are dated with."""
        self._clock = clock
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def set(self, due_ms: int | None) -> None:
        """Rings then, or before. None: nothing is due, and it stays as it is."""
        if due_ms is None or (self._timer is not None and self._due_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = min(max(0, due_ms - self._clock.now_ms()), DELAY_MS_MAX)
        self._due_ms = due_ms
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_time)

    def cancel(self) -> None:
        """Until it is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    def _on_time(self) -> None:
        # Before it rings: whoever is rung sets it anew.
        self._timer = None
        self._ring()
