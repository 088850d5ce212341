"""Filters spare reading and never a row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.source.filters import Narrowing, narrow


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class EqualNullSafe(EqualTo): ...


class GreaterThan(EqualTo): ...


class GreaterThanOrEqual(EqualTo): ...


class LessThan(EqualTo): ...


class LessThanOrEqual(EqualTo): ...


class In(EqualTo): ...


class StringStartsWith(EqualTo): ...


@dataclass(frozen=True)
class Not:
    child: Any


def at(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


@pytest.mark.parametrize(
    ("comparison", "bounds"),
    [
        (GreaterThan, (6, None)),
        (GreaterThanOrEqual, (5, None)),
        (LessThan, (None, 5)),
        (LessThanOrEqual, (None, 6)),
        (EqualTo, (5, 6)),
        (EqualNullSafe, (5, 6)),
    ],
)
def test_a_comparison_of_offsets_is_a_bound(comparison: type[EqualTo], bounds: tuple[Any, Any]) -> None:
    found = narrow([comparison(("offset",), 5)])
    assert (found.offset_min, found.offset_end) == bounds


def test_bounds_are_joined_to_the_narrowest() -> None:
    column = ("offset",)
    found = narrow([GreaterThan(column, 3), GreaterThan(column, 7), LessThan(column, 20), In(column, (9, 5, None))])
    assert (found.offset_min, found.offset_end) == (8, 10)


def test_times_between_two_milliseconds_lose_no_row() -> None:
    assert narrow([GreaterThanOrEqual(("timestamp",), at(5_001))]).time_ms_min == 6
    assert narrow([GreaterThan(("timestamp",), at(5_001))]).time_ms_min == 6
    assert narrow([GreaterThan(("timestamp",), at(5_000))]).time_ms_min == 6
    assert narrow([GreaterThanOrEqual(("timestamp",), at(5_000))]).time_ms_min == 5
    assert narrow([LessThan(("timestamp",), at(5_001))]).time_ms_end == 6
    assert narrow([LessThanOrEqual(("timestamp",), at(5_000))]).time_ms_end == 6
    assert narrow([LessThan(("timestamp",), at(5_000))]).time_ms_end == 5


def test_partitions_and_topics_are_named_by_equality_alone() -> None:
    found = narrow([In(("partition",), (1, 2, None)), EqualTo(("partition",), 2), EqualTo(("topic",), "a")])
    assert (found.partitions, found.topics) == (frozenset({2}), frozenset({"a"}))
    assert found.kept({"a": {0: 7, 1: 8, 2: 9}, "b": {2: 10}}) == {"a": {2: 9}}


@pytest.mark.parametrize(
    "filters",
    [
        [Not(EqualTo(("offset",), 5))],
        [EqualTo(("value",), 5), StringStartsWith(("topic",), "a")],
        [EqualTo(("headers", "key"), 5)],
        [EqualTo(("offset",), None), EqualTo(("offset",), 5.5), EqualTo(("offset",), True)],
        [GreaterThan(("timestamp",), datetime(2020, 1, 1)), GreaterThan(("timestamp",), "2020")],
        [In(("partition",), ()), In(("offset",), (None,)), GreaterThan(("partition",), 1)],
    ],
)
def test_what_is_not_understood_narrows_nothing(filters: list[Any]) -> None:
    assert narrow(filters) == Narrowing()


_COMPARISONS = {
    GreaterThan: lambda row, value: row > value,
    GreaterThanOrEqual: lambda row, value: row >= value,
    LessThan: lambda row, value: row < value,
    LessThanOrEqual: lambda row, value: row <= value,
    EqualTo: lambda row, value: row == value,
}


@given(
    st.lists(
        st.tuples(st.sampled_from(list(_COMPARISONS)), st.sampled_from(["offset", "timestamp"]), st.integers(0, 9_000)),
        max_size=4,
    ),
    st.integers(0, 9),
)
def test_a_row_that_is_wanted_is_within_the_bounds(wanted: list[tuple[Any, str, int]], row: int) -> None:
    """The row's offset is its number, its time so many milliseconds."""
    filters, is_wanted = [], True
    for comparison, column, number in wanted:
        is_time = column == "timestamp"
        filters.append(comparison((column,), at(number) if is_time else number // 1000))
        is_wanted &= _COMPARISONS[comparison](row * 1000 if is_time else row, number if is_time else number // 1000)
    found = narrow(filters)
    inside = (found.offset_min is None or row >= found.offset_min) and (
        found.offset_end is None or row < found.offset_end
    )
    inside &= (found.time_ms_min is None or row >= found.time_ms_min) and (
        found.time_ms_end is None or row < found.time_ms_end
    )
    assert inside or not is_wanted
    # And the other way round: with these comparisons the bounds are exact.
    assert inside == is_wanted


def test_two_narrowings_hold_both() -> None:
    first = Narrowing(offset_min=3, offset_end=9, time_ms_min=5, partitions=frozenset({0, 1}))
    second = Narrowing(
        offset_min=4, offset_end=20, time_ms_end=8, partitions=frozenset({1, 2}), topics=frozenset({"a"})
    )
    assert (
        first.within(second)
        == second.within(first)
        == Narrowing(
            offset_min=4, offset_end=9, time_ms_min=5, time_ms_end=8, partitions=frozenset({1}), topics=frozenset({"a"})
        )
    )
    assert Narrowing().within(first) == first.within(Narrowing()) == first
