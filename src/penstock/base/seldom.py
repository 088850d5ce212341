"""What is told seldom: once in a while for each thing, however often it happens. For logs that strangers could fill."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from penstock.base.clock import Clock

SELDOM_MS: Final = 60_000
# Far more than anybody reads; from then on some are told again too early.
THINGS_MAX: Final = 10_000


class Seldom:
    def __init__(self, clock: Clock, *, interval_ms: int = SELDOM_MS) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._told_ms: dict[Hashable, int] = {}

    def is_due(self, thing: Hashable) -> bool:
        """Whether to tell of it now; who asks tells."""
        now_ms, told_ms = self._clock.monotonic_ms(), self._told_ms.get(thing)
        if told_ms is not None and now_ms - told_ms < self._interval_ms:
            return False
        if len(self._told_ms) >= THINGS_MAX:
            self._told_ms.clear()
        self._told_ms[thing] = now_ms
        return True
