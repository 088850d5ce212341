"""Durations and moments of a pipeline file: `10 seconds`, `1h 30m`, `2026-11-15T10:00:00Z`, `earliest`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

AVAILABLE_NOW: Final = "available_now"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_UNIT_MS: Final = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1_000, "sec": 1_000, "second": 1_000, "seconds": 1_000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_PART: Final = re.compile(r"\s*(\d+)\s*([a-z]+)\s*", re.IGNORECASE)


def duration_ms(text: str) -> int | None:
    """None: it is none."""
    total, position = 0, 0
    while position < len(text):
        part = _PART.match(text, position)
        unit_ms = _UNIT_MS.get(part[2].lower()) if part else None
        if part is None or unit_ms is None:
            return None
        total += int(part[1]) * unit_ms
        position = part.end()
    return total if text.strip() else None


def moment_ms(text: str) -> int | None:
    """An ISO date or time, in UTC where it names no zone; or milliseconds since 1970."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
