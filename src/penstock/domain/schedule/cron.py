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

from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from cronsim import CronSim, CronSimError

# Of clocks, not of a zone: whatever they show is taken as it is.
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001
_FIELDS_WITHOUT_SECONDS: Final = 5
_DAY_S: Final = 86_400
_SECOND_MS: Final = 1_000
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
    dues = _fixed_dues if _is_fixed(expression) else _shown_dues
    for due_s in dues(expression, zone, after_ms // 1000):
        yield due_s * 1000


def _is_fixed(expression: str) -> bool:
    fields = expression.split()
    return len(fields) == _FIELDS_WITHOUT_SECONDS and not fields[0].startswith("*") and not fields[1].startswith("*")


def _fixed_dues(expression: str, zone: tzinfo, after_s: int) -> Iterator[int]:
    for due in CronSim(expression, datetime.fromtimestamp(after_s, zone)):
        due_s = round(due.timestamp())
        # In the hour that comes twice, it starts from what the clock shows, which may be an hour earlier.
        if due_s > after_s:
            after_s = due_s
            yield due_s


def _shown_dues(expression: str, zone: tzinfo, after_s: int) -> Iterator[int]:
    """From one change of the clocks to the next: in between, a zone is a number of seconds.

    The library has a way of its own for this, which loses times where clocks change by half an hour.
    """
    while True:
        offset_s = _offset_s(zone, after_s + 1)
        # It is the same up to here, at least.
        same_s = after_s
        for due in CronSim(expression, _EPOCH + timedelta(seconds=after_s + offset_s)):
            due_s = (due - _EPOCH) // timedelta(seconds=1) - offset_s
            same_s = _same_until(zone, offset_s, same_s, due_s)
            if same_s < due_s:
                break
            yield due_s
        else:
            return
        after_s = same_s


def _same_until(zone: tzinfo, offset_s: int, since_s: int, until_s: int) -> int:
    """The last second up to `until_s` before the clocks change. They never do so twice in a day."""
    while since_s < until_s:
        next_s = min(since_s + _DAY_S, until_s)
        if _offset_s(zone, next_s) != offset_s:
            changes = range(since_s + 1, next_s + 1)
            return since_s + bisect_left(changes, True, key=lambda second: _offset_s(zone, second) != offset_s)
        since_s = next_s
    return until_s


def _offset_s(zone: tzinfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, zone).utcoffset()
    assert offset is not None, f"{zone} tells no time"
    return offset // timedelta(seconds=1)


def last_due(
    expression: str, zone: tzinfo, *, after_ms: int, before_ms: int, first_between: FirstBetween | None = None
) -> int | None:
    """The last time between the two, without them."""
    first_between = first_between or find_first_between
    last_ms = first_between(expression, zone, after_ms, before_ms)
    if last_ms is None:
        return None
    # There may be millions in between, or one: halved again and again, and behind `empty_ms` there is none.
    empty_ms = before_ms
    while empty_ms - last_ms >= _SECOND_MS:
        middle_ms = (last_ms + empty_ms) // 2
        later_ms = first_between(expression, zone, middle_ms, before_ms)
        if later_ms is None:
            empty_ms = middle_ms
        else:
            last_ms = later_ms
    return last_ms


FirstBetween = Callable[[str, tzinfo, int, int], int | None]


def find_first_between(expression: str, zone: tzinfo, after_ms: int, before_ms: int) -> int | None:
    due_ms = next(dues_after(expression, zone, after_ms), None)
    return due_ms if due_ms is not None and due_ms < before_ms else None
