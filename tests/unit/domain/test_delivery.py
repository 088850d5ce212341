"""Which records of a batch wait: by their headers the first time, by what was done the first time ever after."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.delivery import BadRecords, Candidate, choose_delayed, find_candidates
from penstock.domain.schedule_headers import DELAY_HEADER, DELIVER_AT_HEADER, Header

NOW_MS = 1_700_000_000_000


def candidates(*headers: tuple[Header, ...], now_ms: int = NOW_MS) -> list[Candidate]:
    found = find_candidates(enumerate(headers), now_ms)
    assert isinstance(found, list), found
    return found


def delay(milliseconds: int) -> tuple[Header, ...]:
    return ((DELAY_HEADER, b"%d" % milliseconds),)


def at(time_ms: int) -> tuple[Header, ...]:
    return ((DELIVER_AT_HEADER, b"%d" % time_ms),)


def delayed(found: list[Candidate], now_ms: int = NOW_MS, repeated_count: int = 0) -> list[tuple[int, int]]:
    chosen = choose_delayed(found, now_ms, repeated_count=repeated_count)
    return [(candidate.number, candidate.due_ms) for candidate in chosen]


def test_what_is_due_already_does_not_wait() -> None:
    found = candidates(delay(0), delay(5), at(NOW_MS), at(NOW_MS + 1), (("other", b"1"),), at(3))
    assert delayed(found) == [(1, NOW_MS + 5), (3, NOW_MS + 1)]


def test_every_bad_record_is_named_and_the_first_reason_told() -> None:
    bad = ((DELAY_HEADER, None),)
    found = find_candidates(enumerate([delay(5), bad, at(5), (*at(5), (DELAY_HEADER, b"1.5"))]), NOW_MS)
    assert found == BadRecords((1, 3), "record 1: header penstock-delay-ms: None is no number of milliseconds")


def test_repeated_batch_leaves_out_what_it_left_out_before() -> None:
    headers = (at(NOW_MS - 5), at(NOW_MS + 10), delay(1000), at(NOW_MS + 5_000), delay(0))
    assert [number for number, _due in delayed(candidates(*headers))] == [1, 2, 3]
    later_ms = NOW_MS + 100
    again = candidates(*headers, now_ms=later_ms)
    assert [number for number, _due in delayed(again, later_ms)] == [2, 3]
    assert [number for number, _due in delayed(again, later_ms, repeated_count=3)] == [1, 2, 3]


times = st.integers(NOW_MS - 50, NOW_MS + 50)
some_headers = st.lists(
    st.one_of(times.map(at), st.integers(0, 60).map(delay), st.tuples(times, st.integers(0, 60)).map(
        lambda both: (*at(both[0]), *delay(both[1]))
    )),
    max_size=12,
)  # fmt: skip


@given(some_headers, st.integers(0, 200))
def test_any_repetition_gives_the_same_choice(headers: list[tuple[Header, ...]], passed_ms: int) -> None:
    first = [number for number, _due in delayed(candidates(*headers))]
    later_ms = NOW_MS + passed_ms
    if first:
        again = delayed(candidates(*headers, now_ms=later_ms), later_ms, repeated_count=len(first))
        assert [number for number, _due in again] == first
