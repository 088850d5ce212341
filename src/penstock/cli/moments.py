"""Moments as people write them: `10 minutes ago`, `2026-11-15 10:00`, `yesterday 10:00`, `1763200000000`, `earliest`,
`@42`.

Pure but for one thing: a text without a time zone is read in the machine's own, unless a zone is passed in.
The present is always passed in.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo
from typing import Final

import msgspec

# An offset and a time in ms are both plain numbers. Nobody has ten billion records before 1970 was four
# months old: from here on a number is a time, below it is an offset. `@N` is always an offset.
TIMESTAMP_MS_MIN: Final = 10_000_000_000

_UNIT_MS: Final = {
    "ms": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1_000, "sec": 1_000, "second": 1_000, "seconds": 1_000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
    "w": 604_800_000, "week": 604_800_000, "weeks": 604_800_000,
}  # fmt: skip

_DAYS_BACK: Final = {"today": 0, "yesterday": 1}

_PART = re.compile(r"(\d+(?:\.\d+)?|an?)\s*([a-z]+)")
_SEPARATOR = re.compile(r"(?:\s|,|and\b)*")


class Earliest(msgspec.Struct, frozen=True):
    pass


class Latest(msgspec.Struct, frozen=True):
    pass


class AtOffset(msgspec.Struct, frozen=True):
    offset: int


class AtTime(msgspec.Struct, frozen=True):
    timestamp_ms: int


Start = Earliest | Latest | AtOffset | AtTime


class NotUnderstood(msgspec.Struct, frozen=True):
    reason: str


def parse_start(text: str, *, now_ms: int, zone: tzinfo | None = None) -> Start | NotUnderstood:
    """Where to begin reading."""
    cleaned = text.strip().lower()
    if cleaned in {"earliest", "beginning", "start"}:
        return Earliest()
    if cleaned in {"latest", "end", "now"}:
        return Latest()
    if cleaned.startswith("@") and _is_digits(cleaned[1:]):
        return AtOffset(int(cleaned[1:]))
    if _is_digits(cleaned) and int(cleaned) < TIMESTAMP_MS_MIN:
        return AtOffset(int(cleaned))
    moment = parse_moment_ms(text, now_ms=now_ms, zone=zone)
    if isinstance(moment, NotUnderstood):
        return NotUnderstood(
            f"{text!r} is not a place to start from: expected earliest, latest, an offset, a time such as "
            "'2026-11-15 10:00', or '10 minutes ago'"
        )
    return AtTime(moment)


def parse_moment_ms(text: str, *, now_ms: int, zone: tzinfo | None = None) -> int | NotUnderstood:
    """Milliseconds since the epoch: a number of them, an ISO date or time, a time of day, so long ago."""
    cleaned = text.strip().lower()
    if _is_digits(cleaned):
        return int(cleaned)
    if cleaned == "now":
        return now_ms
    if cleaned.endswith("ago"):
        duration = parse_duration_ms(cleaned.removesuffix("ago"))
        return duration if isinstance(duration, NotUnderstood) else now_ms - duration
    if cleaned.startswith("-") and not isinstance(duration := parse_duration_ms(cleaned[1:]), NotUnderstood):
        return now_ms - duration
    moment = _calendar_moment(text.strip(), now=datetime.fromtimestamp(now_ms / 1000, zone))
    if moment is None:
        return NotUnderstood(
            f"{text!r} is not a time: expected such as '2026-11-15 10:00', '10:00', 'yesterday 10:00' or '-2h'"
        )
    if moment.tzinfo is None and zone is not None:
        moment = moment.replace(tzinfo=zone)
    return round(moment.timestamp() * 1000)


def parse_future_ms(text: str, *, now_ms: int, zone: tzinfo | None = None) -> int | NotUnderstood:
    """The same of a time that is to come: `in 5 minutes`, `tomorrow 08:00`, an ISO date or time, a time of today."""
    cleaned = text.strip().lower()
    if cleaned.startswith("in "):
        duration = parse_duration_ms(cleaned.removeprefix("in "))
        return duration if isinstance(duration, NotUnderstood) else now_ms + duration
    first, _, rest = cleaned.partition(" ")
    if first == "tomorrow":
        tomorrow = datetime.fromtimestamp(now_ms / 1000, zone).date() + timedelta(days=1)
        text = f"{tomorrow.isoformat()} {rest.strip() or '00:00'}"
    moment = parse_moment_ms(text, now_ms=now_ms, zone=zone)
    if isinstance(moment, NotUnderstood):
        return NotUnderstood(
            f"{text!r} is not a time in the future: expected such as '2026-12-24 18:00', '18:00', "
            "'tomorrow 08:00' or 'in 5m'"
        )
    return moment


def _calendar_moment(text: str, *, now: datetime) -> datetime | None:
    """An ISO date with or without a time; or a time of day (none: midnight) of today, or of the named day."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    first, _, rest = text.partition(" ")
    days_back = _DAYS_BACK.get(first.lower())
    if days_back is not None:
        text = rest.strip() or "00:00"
    if ":" not in text:
        # `time` alone would read "10" and "1030" as times of day; here they are more likely a mistake.
        return None
    try:
        time_of_day = time.fromisoformat(text)
    except ValueError:
        return None
    # "10:00Z" is ten o'clock there, on the day that it is there.
    here = now if time_of_day.tzinfo is None else now.astimezone(time_of_day.tzinfo)
    day = here.date() - timedelta(days=days_back or 0)
    return datetime.combine(day, time_of_day)


def parse_duration_ms(text: str) -> int | NotUnderstood:
    """`1h 30m`, `90 seconds`, `an hour and 5 minutes`: parts with units, added up."""
    cleaned = text.strip().lower()
    total = 0.0
    position = 0
    while position < len(cleaned):
        part = _PART.match(cleaned, position)
        unit_ms = _UNIT_MS.get(part.group(2)) if part else None
        if part is None or unit_ms is None:
            return NotUnderstood(f"{text.strip()!r} is not a duration, expected such as '10 minutes' or '1h 30m'")
        count = 1.0 if part.group(1).startswith("a") else float(part.group(1))
        total += count * unit_ms
        separator = _SEPARATOR.match(cleaned, part.end())
        assert separator is not None
        position = separator.end()
    if not cleaned:
        return NotUnderstood("the duration is empty")
    return round(total)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
