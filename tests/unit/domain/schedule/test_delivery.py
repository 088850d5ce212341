"""Which records of a batch wait: by their headers, and the same ones again if the batch comes again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.schedule.delivery import BadRecords, find_delayed
from penstock.domain.schedule.headers import DELAY_HEADER, DELIVER_AT_HEADER, Header

NOW_MS = 1_700_000_000_000


def delayed(*headers: tuple[Header, ...], now_ms: int = NOW_MS, is_repeatable: bool = False) -> list[tuple[int, int]]:
    found = find_delayed(enumerate(headers), now_ms, is_repeatable=is_repeatable)
    assert isinstance(found, list), found
    return [(each.number, each.due_ms) for each in found]


def delay(milliseconds: int) -> tuple[Header, ...]:
    return ((DELAY_HEADER, b"%d" % milliseconds),)


def at(time_ms: int) -> tuple[Header, ...]:
    return ((DELIVER_AT_HEADER, b"%d" % time_ms),)


SOME = (delay(0), delay(5), at(NOW_MS), at(NOW_MS + 1), (("other", b"1"),), at(3), ())


def test_what_is_due_already_does_not_wait() -> None:
    assert delayed(*SOME) == [(1, NOW_MS + 5), (3, NOW_MS + 1)]


def test_what_can_be_repeated_goes_through_the_schedule_once_it_has_a_time() -> None:
    expected = [(1, NOW_MS + 5), (2, NOW_MS), (3, NOW_MS + 1), (5, NOW_MS)]
    assert delayed(*SOME, is_repeatable=True) == expected


def test_every_bad_record_is_named_and_the_first_reason_told() -> None:
    bad = ((DELAY_HEADER, None),)
    headers = enumerate([delay(5), bad, at(5), (*at(5), (DELAY_HEADER, b"1.5"))])
    found = find_delayed(headers, NOW_MS, is_repeatable=False)
    assert found == BadRecords((1, 3), "record 1: header penstock-delay-ms: None is no number of milliseconds")


times = st.integers(NOW_MS - 50, NOW_MS + 50)
delays = st.integers(0, 60)
both = st.tuples(times, delays).map(lambda pair: (*at(pair[0]), *delay(pair[1])))
some_headers = st.lists(st.one_of(times.map(at), delays.map(delay), both), max_size=12)


@given(some_headers, st.integers(-200, 200))
def test_repetition_gives_the_same_choice_whatever_the_clock_says(
    headers: list[tuple[Header, ...]], passed_ms: int
) -> None:
    first = delayed(*headers, is_repeatable=True)
    again = delayed(*headers, now_ms=NOW_MS + passed_ms, is_repeatable=True)
    assert [number for number, _due in again] == [number for number, _due in first]
