from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock.cli.moments import (
    AtOffset,
    AtTime,
    Earliest,
    Latest,
    NotUnderstood,
    Start,
    parse_duration_ms,
    parse_future_ms,
    parse_moment_ms,
    parse_start,
)

NOW_MS = 1_794_700_000_000
MINUTE_MS = 60_000


def instant_ms(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc, arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", 500),
        ("10 minutes", 10 * MINUTE_MS),
        ("1h 30m", 90 * MINUTE_MS),
        ("1h30m", 90 * MINUTE_MS),
        ("an hour and 5 minutes", 65 * MINUTE_MS),
        ("1.5 hours", 90 * MINUTE_MS),
        ("2 days, 3 hours", 51 * 60 * MINUTE_MS),
        ("1 week", 7 * 24 * 60 * MINUTE_MS),
        (" A Minute ", MINUTE_MS),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, expected: int) -> None:
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "10", "minutes", "10 parsecs", "ten minutes", "-5 minutes", "5 minutes later"])
def test_what_is_no_duration_is_told(text: str) -> None:
    assert isinstance(parse_duration_ms(text), NotUnderstood)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 minutes ago", NOW_MS - 10 * MINUTE_MS),
        ("1h 30m ago", NOW_MS - 90 * MINUTE_MS),
        ("-5m", NOW_MS - 5 * MINUTE_MS),
        ("1763200000000", 1_763_200_000_000),
        ("2026-11-15 10:00", instant_ms(2026, 11, 15, 10)),
        ("2026-11-15T10:00:30.5", instant_ms(2026, 11, 15, 10, 0, 30) + 500),
        ("2026-11-15", instant_ms(2026, 11, 15)),
        ("2026-11-15T10:00:00Z", instant_ms(2026, 11, 15, 10)),
        ("2026-11-15 10:00+02:00", instant_ms(2026, 11, 15, 8)),
        ("now", NOW_MS),
        ("10:00", instant_ms(2026, 11, 14, 10)),
        ("10:00:30", instant_ms(2026, 11, 14, 10, 0, 30)),
        ("today 10:00", instant_ms(2026, 11, 14, 10)),
        ("Yesterday 10:00", instant_ms(2026, 11, 13, 10)),
        ("yesterday", instant_ms(2026, 11, 13)),
        # Half past midnight there already.
        ("00:30+02:00", instant_ms(2026, 11, 14, 22, 30)),
    ],
)
def test_moments_are_dates_numbers_or_so_long_ago(text: str, expected: int) -> None:
    assert parse_moment_ms(text, now_ms=NOW_MS, zone=UTC) == expected


def test_a_date_without_zone_is_read_in_the_zone_that_is_given() -> None:
    zone = timezone(timedelta(hours=-3))
    assert parse_moment_ms("2026-11-15 10:00", now_ms=NOW_MS, zone=zone) == instant_ms(2026, 11, 15, 13)


@pytest.mark.parametrize("text", ["1030am", "24:00", "tomorrow 10:00", "yesterday noon", "-2 parsecs"])
def test_what_is_no_moment_is_told_with_examples(text: str) -> None:
    moment = parse_moment_ms(text, now_ms=NOW_MS, zone=UTC)
    assert isinstance(moment, NotUnderstood)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Earliest()),
        ("LATEST", Latest()),
        ("0", AtOffset(0)),
        ("1234567", AtOffset(1234567)),
        ("@1763200000000", AtOffset(1_763_200_000_000)),
        ("1763200000000", AtTime(1_763_200_000_000)),
        ("10 minutes ago", AtTime(NOW_MS - 10 * MINUTE_MS)),
        ("2026-11-15 10:00", AtTime(instant_ms(2026, 11, 15, 10))),
    ],
)
def test_a_start_is_an_end_an_offset_or_a_time(text: str, expected: Start) -> None:
    assert parse_start(text, now_ms=NOW_MS, zone=UTC) == expected


@pytest.mark.parametrize("text", ["", "tomorrow", "@x", "-1", "10 minuets ago", "2026-13-01"])
def test_a_start_that_is_not_understood_says_what_would_be(text: str) -> None:
    start = parse_start(text, now_ms=NOW_MS, zone=UTC)
    assert isinstance(start, NotUnderstood)
    assert "10 minutes ago" in start.reason


@pytest.mark.parametrize(
    ("text", "after_ms"),
    [
        ("in 5 minutes", 300_000),
        ("in 1h 30m", 5_400_000),
        ("tomorrow", 12 * 3_600_000),
        ("tomorrow 08:00", 20 * 3_600_000),
        ("18:00", 6 * 3_600_000),
        ("2026-11-15T12:00:01Z", 1_000),
    ],
)
def test_times_to_come_are_said_as_people_say_them(text: str, after_ms: int) -> None:
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    now_ms = round(noon.timestamp() * 1000)
    assert parse_future_ms(text, now_ms=now_ms, zone=UTC) == now_ms + after_ms


@pytest.mark.parametrize("text", ["soon", "in a while", "tomorrow evening", "in"])
def test_what_is_no_time_to_come_is_told_with_examples(text: str) -> None:
    assert isinstance(parse_future_ms(text, now_ms=0, zone=UTC), NotUnderstood)
