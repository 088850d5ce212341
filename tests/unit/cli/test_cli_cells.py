"""Values in the cells of tables."""

from __future__ import annotations

import pytest

from penstock.cli.cells import VALUE_CHARACTERS_MAX, moment, short, time_left
from penstock.codec.http.fields import MOMENT_MS_MAX


@pytest.mark.parametrize(
    ("left_ms", "text"),
    [
        (-5, "now"),
        (999, "now"),
        (1_000, "1s"),
        (303_000, "5m 03s"),
        (7_500_000, "2h 05m"),
        (273_600_000, "3d 4h"),
    ],
)
def test_the_time_left_is_told_in_two_units(left_ms: int, text: str) -> None:
    assert time_left(left_ms) == text


def test_a_moment_that_no_calendar_has_is_told_as_a_number() -> None:
    assert moment(MOMENT_MS_MAX + 1) == f"{MOMENT_MS_MAX + 1:,} ms after 1970"
    assert moment(None) is None
    assert moment(0) is None


def test_a_long_value_ends_where_the_cell_does() -> None:
    assert short("a" * VALUE_CHARACTERS_MAX, None) == "a" * VALUE_CHARACTERS_MAX
    assert short("a" * (VALUE_CHARACTERS_MAX + 1), None) == "a" * (VALUE_CHARACTERS_MAX - 1) + "…"


def test_bytes_are_told_from_text() -> None:
    assert short(None, "AAE=") == "base64:AAE="
    assert short(None, None) is None
