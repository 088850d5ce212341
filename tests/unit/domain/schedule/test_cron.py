"""When cron expressions are due. Summer time above all: the rules in `domain.schedule.cron`, and a slow oracle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from penstock.domain.schedule.cron import (
    EXPRESSION_CHARACTERS_MAX,
    check_expression,
    dues_after,
    find_first_between,
    last_due,
)

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = 60_000


def at(text: str, zone: ZoneInfo = BERLIN, *, fold: int = 0) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()) * 1000


def dues(expression: str, after_ms: int, count: int, zone: ZoneInfo = BERLIN) -> list[str]:
    found = islice(dues_after(expression, zone, after_ms), count)
    return [datetime.fromtimestamp(due_ms / 1000, zone).strftime("%d %H:%M%z") for due_ms in found]


def test_every_five_minutes_follows_the_clock() -> None:
    assert dues("*/5 * * * *", at("2026-07-01T10:02:00"), 3) == ["01 10:05+0200", "01 10:10+0200", "01 10:15+0200"]


def test_time_that_is_due_now_is_not_due_after_now() -> None:
    assert dues("0 12 * * *", at("2026-07-01T12:00:00"), 1) == ["02 12:00+0200"]
    assert dues("0 12 * * *", at("2026-07-01T12:00:00") - 1, 1) == ["01 12:00+0200"]


def test_time_that_clocks_jump_over_is_due_when_they_have_jumped() -> None:
    # On the 29th of March 2026, 02:00 is followed by 03:00.
    assert dues("30 2 * * *", at("2026-03-28T12:00:00"), 2) == ["29 03:00+0200", "30 02:30+0200"]


def test_time_that_clocks_show_twice_is_due_the_first_time() -> None:
    # On the 25th of October 2026, 02:59 is followed by 02:00.
    assert dues("30 2 * * *", at("2026-10-24T12:00:00"), 2) == ["25 02:30+0200", "26 02:30+0100"]


def test_time_that_was_due_in_the_first_of_two_hours_is_not_due_in_the_second() -> None:
    assert dues("30 2 * * *", at("2026-10-25T02:10:00", fold=1), 1) == ["26 02:30+0100"]
    assert dues("30 2 * * *", at("2026-10-25T02:30:00", fold=1), 1) == ["26 02:30+0100"]


def test_every_half_hour_comes_in_both_of_two_hours() -> None:
    assert dues("*/30 * * * *", at("2026-10-25T01:45:00"), 5) == [
        "25 02:00+0200",
        "25 02:30+0200",
        "25 02:00+0100",
        "25 02:30+0100",
        "25 03:00+0100",
    ]


def test_every_half_hour_passes_over_the_hour_that_is_not_there() -> None:
    assert dues("*/30 * * * *", at("2026-03-29T01:15:00"), 3) == ["29 01:30+0100", "29 03:00+0200", "29 03:30+0200"]


def test_day_of_month_and_day_of_week_are_either_of_both() -> None:
    assert dues("0 0 13 * FRI", at("2026-02-01T00:00:00"), 3) == ["06 00:00+0100", "13 00:00+0100", "20 00:00+0100"]


def test_last_day_of_the_month_and_second_monday_are_known() -> None:
    assert dues("0 6 L * *", at("2028-02-01T00:00:00"), 1) == ["29 06:00+0100"]
    assert dues("0 6 * * MON#2", at("2026-06-01T00:00:00"), 1) == ["08 06:00+0200"]


def test_six_fields_begin_with_seconds() -> None:
    start_ms = at("2026-07-01T10:00:00")
    found = list(islice(dues_after("*/20 * * * * *", BERLIN, start_ms), 3))
    assert [due_ms - start_ms for due_ms in found] == [20_000, 40_000, 60_000]


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "61 * * * *", "* * 31 2 *", "a b c d e", "*/0 * * * *", "5-1 * * * *"]
)
def test_what_is_no_expression_is_refused_with_a_reason(expression: str) -> None:
    assert check_expression(expression)


def test_expression_that_is_too_long_is_refused() -> None:
    assert check_expression("0," * EXPRESSION_CHARACTERS_MAX + "0 * * * *")
    assert check_expression("*/5 * * * *") is None


def test_expression_that_names_no_time_ends() -> None:
    assert list(dues_after("* * */20 * 1L", UTC, at("2026-01-01T00:00:00"))) == []


@pytest.mark.parametrize("expression", ["* * * * * *", "*/7 * * * *", "30 2 * * *", "*/20 1-3 * * sun", "0 0 1 * *"])
def test_last_time_is_the_last_of_all(expression: str) -> None:
    random = Random(expression)
    for _ in range(20):
        after_ms = random.randrange(at("2026-03-20T00:00:00"), at("2026-03-31T00:00:00"))
        before_ms = after_ms + random.choice((500, 1_000, 90_000, 4_000_000))
        times = list(takewhile(lambda due_ms: due_ms < before_ms, dues_after(expression, BERLIN, after_ms)))  # noqa: B023
        assert last_due(expression, BERLIN, after_ms=after_ms, before_ms=before_ms) == (times[-1] if times else None)


def test_last_of_millions_of_times_is_found_without_looking_at_all() -> None:
    """Every second of New Year's Day, and nobody was there for ten years."""
    calls = 0

    def counted(*arguments: Any) -> int | None:
        nonlocal calls
        calls += 1
        return find_first_between(*arguments)

    span = {"after_ms": at("2016-02-01T00:00:00"), "before_ms": at("2026-07-01T00:00:00")}
    found = last_due("* * * 1 1 *", BERLIN, **span, first_between=counted)
    assert found == at("2026-01-01T23:59:59")
    assert calls < 60


def test_last_time_before_another_is_found_near_and_far() -> None:
    now_ms = at("2026-07-01T10:02:00")
    assert last_due("*/5 * * * *", BERLIN, after_ms=0, before_ms=now_ms) == at("2026-07-01T10:00:00")
    assert last_due("0 4 1 1 *", BERLIN, after_ms=at("2020-06-01T00:00:00"), before_ms=now_ms) == at(
        "2026-01-01T04:00:00"
    )
    assert last_due("0 4 1 1 *", BERLIN, after_ms=at("2026-06-01T00:00:00"), before_ms=now_ms) is None
    # Neither of the two belongs to it.
    noon_ms = at("2026-07-01T12:00:00")
    assert last_due("0 12 * * *", BERLIN, after_ms=noon_ms, before_ms=noon_ms + 24 * 60 * MINUTE) is None


ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kolkata", "UTC")
# Around the days on which at least one of them changes its clocks.
DAYS = ("2026-03-07", "2026-03-28", "2026-04-04", "2026-04-23", "2026-10-03", "2026-10-24", "2026-10-29", "2026-10-31")


@pytest.mark.parametrize("zone_name", ZONES)
@pytest.mark.parametrize("expression", ["*/7 * * * *", "15 * * * *", "0 */3 * * *", "*/20 1-3 * * *"])
def test_expressions_with_stars_are_what_the_clock_shows(zone_name: str, expression: str) -> None:
    """The oracle looks at every minute, and at what the clock shows then."""
    zone = ZoneInfo(zone_name)
    fields = CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
    for day in DAYS:
        start = datetime.fromisoformat(day).replace(tzinfo=UTC)
        minutes = [start + timedelta(minutes=minute) for minute in range(1, 60 * 60)]
        expected = [
            round(minute.timestamp()) * 1000
            for minute in minutes
            if (shown := minute.astimezone(zone)).minute in fields.minutes and shown.hour in fields.hours
        ]
        start_ms = round(start.timestamp()) * 1000
        assert list(islice(dues_after(expression, zone, start_ms), len(expected))) == expected, day


@pytest.mark.parametrize("zone_name", ZONES)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "15 1,2,3 * * *", "45 23 * * *"])
def test_fixed_times_come_once_a_day_in_order_and_from_anywhere(zone_name: str, expression: str) -> None:
    """Wherever the search begins, the next time is the same: a restart neither loses nor repeats one."""
    zone = ZoneInfo(zone_name)
    for day in DAYS:
        start_ms = round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1000
        all_dues = list(islice(dues_after(expression, zone, start_ms), 9))
        assert all_dues == sorted(set(all_dues))
        # Africa's and others' clocks jump over midnight itself: never the same time on one day twice.
        shown = [datetime.fromtimestamp(due_ms / 1000, zone).replace(tzinfo=None, fold=0) for due_ms in all_dues]
        assert len(set(shown)) == len(shown), day
        for after_ms in range(start_ms, all_dues[-1] - 1, 11 * MINUTE):
            expected = next(due_ms for due_ms in all_dues if due_ms > after_ms)
            assert next(dues_after(expression, zone, after_ms)) == expected, (day, after_ms)


def test_hour_that_comes_twice_is_not_missed_from_afar() -> None:
    assert dues("*/30 2 25 10 *", at("2026-01-01T00:00:00"), 4) == [
        "25 02:00+0200",
        "25 02:30+0200",
        "25 02:00+0100",
        "25 02:30+0100",
    ]
