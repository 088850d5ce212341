from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.queue.lanes import DEFAULT_LANE, LANE_MAX, LOWER_TURN, lane_of, share_out

waiting = st.dictionaries(st.integers(0, LANE_MAX), st.integers(0, 200), max_size=10)


def test_a_priority_is_one_digit_and_anything_else_is_none() -> None:
    assert [lane_of(text) for text in (b"0", b"7", b"9")] == [0, 7, 9]
    assert {lane_of(text) for text in (None, b"", b"10", b"x", b"-1", b"\xff")} == {DEFAULT_LANE}


@given(waiting, st.integers(0, 300), st.integers(0, 1_000))
def test_shares_are_what_was_asked_for_or_all_there_is(lanes: dict[int, int], count: int, delivered_count: int) -> None:
    shares = share_out(lanes, count=count, delivered_count=delivered_count)
    assert sum(shares.values()) == min(count, sum(lanes.values()))
    assert all(0 <= share <= lanes[lane] for lane, share in shares.items())


def test_the_highest_lane_gets_nine_messages_of_ten() -> None:
    shares = share_out({9: 1_000, 4: 1_000, 0: 1_000}, count=100, delivered_count=0)
    assert shares == {9: 90, 4: 5, 0: 5}


def test_no_lane_starves_however_few_messages_are_asked_for_at_once() -> None:
    lanes = dict.fromkeys(range(10), 1_000)
    served: dict[int, int] = {}
    for delivered_count in range(LOWER_TURN * 9):
        for lane, share in share_out(lanes, count=1, delivered_count=delivered_count).items():
            served[lane] = served.get(lane, 0) + share
    assert served == {9: 81, **dict.fromkeys(range(9), 1)}


def test_a_lane_alone_gets_everything() -> None:
    assert share_out({2: 500}, count=100, delivered_count=9) == {2: 100}
    assert share_out({}, count=100, delivered_count=9) == {}
