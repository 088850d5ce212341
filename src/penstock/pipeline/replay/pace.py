"""When which rows of a replay are due: at a rate, or at a multiple of the speed at which they came. Pure.

A replay goes in ticks. The rows of one tick are sent together, in one transaction, when the first of them is due: five
transactions a second cost nothing, and nobody sees the difference.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Moments = npt.NDArray[np.float64]

TICK_MS: Final = 200
# One transaction: at 1 KB a message some 10 MB, far from every limit.
TICK_ROWS_MAX: Final = 10_000

_RATE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:/\s*(s|sec|second|m|min|minute|h|hour))?\s*")
_SPEED: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*x\s*")
_SECONDS: Final = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600}


class Pace(msgspec.Struct, frozen=True):
    """At most one of the two; neither: as fast as it goes."""

    rows_per_second: float | None = None
    # 2.0: an hour in half an hour.
    speed: float | None = None


class BadPace(msgspec.Struct, frozen=True):
    reason: str


def parse_pace(*, rate: str | None, speed: str | None) -> Pace | BadPace:
    """`5000/s`, `100/min`; `2x`, `0.5x`."""
    if rate is not None and speed is not None:
        return BadPace("--rate or --speed, not both")
    if rate is not None:
        found = _RATE.fullmatch(rate.lower())
        if found is None or float(found[1]) <= 0:
            return BadPace(f"--rate is {rate!r}, such as 5000/s is meant")
        return Pace(rows_per_second=float(found[1]) / _SECONDS[found[2] or "s"])
    if speed is not None:
        found = _SPEED.fullmatch(speed.lower())
        if found is None or float(found[1]) <= 0:
            return BadPace(f"--speed is {speed!r}, such as 2x is meant")
        return Pace(speed=float(found[1]))
    return Pace()


def moments_ms(pace: Pace, due_ms: npt.NDArray[np.int64], *, rows_before: int, first_due_ms: int) -> Moments:
    """When each row is to be sent, in milliseconds since the first of the replay. `due_ms` never falls."""
    import numpy as np

    if pace.rows_per_second is not None:
        return (np.arange(len(due_ms), dtype=np.float64) + rows_before) * (1000 / pace.rows_per_second)
    if pace.speed is not None:
        return (due_ms - first_due_ms) / pace.speed
    return np.zeros(len(due_ms), dtype=np.float64)


def ticks(moments: Moments) -> list[tuple[int, int]]:
    """Ranges of rows that are sent together."""
    import numpy as np

    found: list[tuple[int, int]] = []
    start = 0
    while start < len(moments):
        # The row that is due last within the tick of the first one.
        end = int(np.searchsorted(moments, moments[start] + TICK_MS, side="left"))
        end = min(max(end, start + 1), start + TICK_ROWS_MAX)
        found.append((start, end))
        start = end
    return found
