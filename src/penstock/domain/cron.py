"""Cron expressions: when they are due, in a time zone with its summer time.

Five fields as cron has them (minute, hour, day of the month, month, day of the week), or six with seconds in front.
Days that are given both ways are either of both, as cron does; L, LW and MON#2 are known. The rules of Debian's cron
when clocks are put forward or back:

- Times that are given as such ("30 2 * * *") come once a day. If clocks jump over one, it is due when they have
  jumped; if they show it twice, it is due the first time.
- Expressions whose minutes or hours begin with a star ("*/15 * * * *"), and those with seconds, follow the clock: what
  it jumps over does not come, what it shows twice comes twice.

The zone is handed in: where its rules come from is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Final

from cronsim import CronSim, CronSimError

_EPOCH_MS: Final = 1_000
# No sane expression is longer, and every field of it is looked at.
EXPRESSION_CHARACTERS_MAX: Final = 200


def check_expression(expression: str) -> str | None:
    """What is wrong with it."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        return f"{len(expression)} characters, at most {EXPRESSION_CHARACTERS_MAX}"
    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        return str(error)
    return None


def dues_after(expression: str, zone: tzinfo, after_ms: int) -> Iterator[int]:
    """All times after that one, in order. Ends if there is none for fifty years."""
    last_ms = after_ms
    for due in CronSim(expression, datetime.fromtimestamp(after_ms // _EPOCH_MS, zone)):
        due_ms = round(due.timestamp()) * _EPOCH_MS
        # In the hour that comes twice, it starts from what the clock shows, which may be an hour earlier.
        if due_ms > last_ms:
            last_ms = due_ms
            yield due_ms


def last_due(expression: str, zone: tzinfo, *, after_ms: int, before_ms: int) -> int | None:
    """The last time between the two, without them."""
    # From the end, in steps that grow: there may be millions in between, or one.
    for start_ms in _starts(after_ms, before_ms):
        last: int | None = None
        for due_ms in dues_after(expression, zone, start_ms):
            if due_ms >= before_ms:
                break
            last = due_ms
        if last is not None:
            return last
    return None


def _starts(after_ms: int, before_ms: int) -> Iterator[int]:
    for back_ms in (60_000, 3_600_000, 86_400_000, 40 * 86_400_000):
        if before_ms - back_ms > after_ms:
            yield before_ms - back_ms
    yield after_ms
