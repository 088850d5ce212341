"""What the text of an option means. One that is not understood is a mistake of usage, told with the option's name."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from penstock.cli.cells import moment
from penstock.cli.failure import EXIT_USAGE, CommandError
from penstock.cli.moments import NotUnderstood, Start, parse_duration_ms, parse_future_ms, parse_moment_ms, parse_start


def duration_ms(text: str, option: str) -> int:
    return _understood(parse_duration_ms(text), option)


def moment_ms(text: str, option: str, *, now_ms: int, zone: tzinfo | None = None) -> int:
    """Never below 0: a negative time has a meaning of its own on the wire (-1 is the latest, -2 the earliest)."""
    return max(_understood(parse_moment_ms(text, now_ms=now_ms, zone=zone), option), 0)


def moment_ms_if_given(text: str | None, option: str, *, now_ms: int) -> int | None:
    return None if text is None else moment_ms(text, option, now_ms=now_ms)


def future_ms(text: str, option: str, *, now_ms: int) -> int:
    found = _understood(parse_future_ms(text, now_ms=now_ms), option)
    if found < now_ms:
        raise CommandError(f"{option}: {text!r} is past, it was {moment(found)}", exit_code=EXIT_USAGE)
    return found


def start_of(text: str, option: str, *, now_ms: int, zone: tzinfo | None = None) -> Start:
    found = parse_start(text, now_ms=now_ms, zone=zone)
    if isinstance(found, NotUnderstood):
        raise _mistake(found, option)
    return found


def partitions_by_topic(texts: Sequence[str]) -> dict[str, list[int]]:
    """`["orders", "audit:0,3"]` of `--topic`: no numbers stand for all partitions."""
    chosen: dict[str, list[int]] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not name or not all(part.isascii() and part.isdigit() for part in parts):
            raise CommandError(f"--topic {text!r} is not of the form TOPIC or TOPIC:0,1,2", exit_code=EXIT_USAGE)
        chosen[name] = [] if not parts else sorted({*chosen.get(name, ()), *map(int, parts)})
    return chosen


def _understood(found: int | NotUnderstood, option: str) -> int:
    if isinstance(found, NotUnderstood):
        raise _mistake(found, option)
    return found


def _mistake(found: NotUnderstood, option: str) -> CommandError:
    return CommandError(f"{option}: {found.reason}", exit_code=EXIT_USAGE)
