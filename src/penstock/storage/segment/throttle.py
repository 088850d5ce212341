"""How fast the cleaner may read and write: so many bytes a second, and an end at any moment.

The cleaner's thread comes by after every piece of work. It sleeps there if it was too fast, and it lets others have
the interpreter in any case: a thread that computes in Python would otherwise keep the event loop waiting for 5 ms.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

from penstock.base.clock import Clock

# What was not used is forgotten after this time: no burst after a pause.
_WINDOW_MS: Final = 500
# Longest sleep without a look at whether to stop.
_SLEEP_MS_MAX: Final = 100


class CleaningStopped(Exception):  # noqa: N818  not an error: the node stops, or the log is needed for something else
    pass


class Throttle:
    def __init__(self, clock: Clock, sleep: Callable[[float], None], *, bytes_per_second: int) -> None:
        assert bytes_per_second > 0
        self._clock = clock
        self._sleep = sleep
        self._bytes_per_second = bytes_per_second
        # When everything that was done so far would be done at the allowed speed.
        self._free_at_ms = -math.inf
        self._is_stopped = threading.Event()

    def stop(self) -> None:
        """From another thread: the next call of `take` raises CleaningStopped."""
        self._is_stopped.set()

    def resume(self) -> None:
        self._is_stopped.clear()

    def breathe(self) -> None:
        """After every millisecond or so of Python code. A sleep of nothing takes a tenth of one, in which others can
        have the interpreter: where it is let go of for less, who waits for it comes too late."""
        self._sleep(0)

    def take(self, size_bytes: int) -> None:
        """So many bytes were read or written."""
        now_ms = self._clock.monotonic_ms()
        self._free_at_ms = max(self._free_at_ms, now_ms - _WINDOW_MS) + size_bytes * 1000 / self._bytes_per_second
        self.breathe()
        while (wait_ms := self._free_at_ms - self._clock.monotonic_ms()) > 0 or self._is_stopped.is_set():
            if self._is_stopped.is_set():
                raise CleaningStopped
            self._sleep(min(wait_ms, _SLEEP_MS_MAX) / 1000)
