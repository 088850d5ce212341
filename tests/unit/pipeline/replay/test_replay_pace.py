from __future__ import annotations

import numpy as np
import pytest

from penstock.pipeline.replay.pace import TICK_MS, TICK_ROWS_MAX, BadPace, Pace, moments_ms, parse_pace, ticks


@pytest.mark.parametrize(
    ("rate", "rows_per_second"), [("5000/s", 5000), ("5000", 5000), ("90/min", 1.5), ("3600 / hour", 1), ("0.5/s", 0.5)]
)
def test_a_rate_is_read_as_people_write_it(rate: str, rows_per_second: float) -> None:
    assert parse_pace(rate=rate, speed=None) == Pace(rows_per_second=rows_per_second)


def test_a_speed_is_a_multiple() -> None:
    assert parse_pace(rate=None, speed="2x") == Pace(speed=2)
    assert parse_pace(rate=None, speed=" 0.5 X") == Pace(speed=0.5)
    assert parse_pace(rate=None, speed=None) == Pace()


@pytest.mark.parametrize(
    ("rate", "speed"), [("fast", None), ("0/s", None), ("5/fortnight", None), (None, "2"), (None, "0x"), ("1/s", "1x")]
)
def test_a_pace_that_is_none_is_told(rate: str | None, speed: str | None) -> None:
    assert isinstance(parse_pace(rate=rate, speed=speed), BadPace)


def test_rows_of_a_rate_come_at_equal_distances_also_over_pieces() -> None:
    pace = Pace(rows_per_second=100)
    due = np.zeros(3, dtype=np.int64)
    assert moments_ms(pace, due, rows_before=0, first_due_ms=0).tolist() == [0, 10, 20]
    assert moments_ms(pace, due, rows_before=3, first_due_ms=0).tolist() == [30, 40, 50]


def test_rows_of_a_speed_come_as_they_came() -> None:
    due = np.array([1000, 1500, 4000], dtype=np.int64)
    assert moments_ms(Pace(speed=2), due, rows_before=0, first_due_ms=1000).tolist() == [0, 250, 1500]


def test_what_is_due_within_a_tick_is_sent_together() -> None:
    moments = np.array([0, TICK_MS - 1, TICK_MS, 5000], dtype=np.float64)
    assert ticks(moments) == [(0, 2), (2, 3), (3, 4)]
    assert ticks(np.zeros(0)) == []


def test_a_tick_is_no_larger_than_a_transaction_should_be() -> None:
    found = ticks(np.zeros(2 * TICK_ROWS_MAX + 1))
    assert found == [(0, TICK_ROWS_MAX), (TICK_ROWS_MAX, 2 * TICK_ROWS_MAX), (2 * TICK_ROWS_MAX, 2 * TICK_ROWS_MAX + 1)]
