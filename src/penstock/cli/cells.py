"""Values as a table's cell shows them: moments in the machine's own time zone, keys and values as far as they fit."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from penstock.codec.http.fields import MOMENT_MS_MAX

# More than this of a value is seen by --json.
VALUE_CHARACTERS_MAX: Final = 60
_SECOND_MS: Final = 1_000
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000


def moment(at_ms: int | None) -> str | None:
    if at_ms is not None and at_ms > MOMENT_MS_MAX:
        return f"{at_ms:,} ms after 1970"
    return None if not at_ms else datetime.fromtimestamp(at_ms / 1000).astimezone().isoformat(" ", "milliseconds")


def time_left(left_ms: int) -> str:
    """Two units of it: 3d 4h, 5m 03s."""
    if left_ms < _SECOND_MS:
        return "now"
    seconds = left_ms // _SECOND_MS
    if left_ms < _MINUTE_MS:
        return f"{seconds}s"
    if left_ms < _HOUR_MS:
        return f"{seconds // 60}m {seconds % 60:02}s"
    if left_ms < _DAY_MS:
        return f"{seconds // 3600}h {seconds // 60 % 60:02}m"
    return f"{seconds // 86_400:,}d {seconds // 3600 % 24}h"


def short(text: str | None, encoded: str | None) -> str | None:
    """A key or a value, as much as fits a cell."""
    shown = text if text is not None else None if encoded is None else f"base64:{encoded}"
    if shown is None or len(shown) <= VALUE_CHARACTERS_MAX:
        return shown
    return shown[: VALUE_CHARACTERS_MAX - 1] + "…"
