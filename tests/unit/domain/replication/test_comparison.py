"""Replicas side by side."""

from __future__ import annotations

from penstock.domain.replication.comparison import Difference, Span, common_span, differences, seen_twice
from penstock.domain.replication.exchange import RangeChecksum, ReplicaDescription


def replica(start: int, watermark: int) -> ReplicaDescription:
    return ReplicaDescription(log_start=start, log_end=watermark + 1, durable_end=watermark, high_watermark=watermark)


def test_span_ends_at_the_lowest_watermark_of_those_in_sync() -> None:
    found = {1: replica(0, 9), 2: replica(3, 8), 3: replica(0, 2)}
    assert common_span(found, (1, 2)) == Span(3, 8)
    assert common_span(found, (1, 2, 3)) == Span(3, 3), "and never before it begins"
    assert common_span({}, (1,)) == Span(0, 0)


def test_ranges_that_are_not_the_same_are_told_with_who_says_what() -> None:
    found = {
        1: [RangeChecksum(0, 10, 5), RangeChecksum(10, 20, 6)],
        2: [RangeChecksum(0, 10, 5), RangeChecksum(10, 20, 7)],
        3: [RangeChecksum(0, 10, 5), RangeChecksum(10, 15, 1)],
    }
    assert differences(found) == [Difference(10, 20, {1: 6, 2: 7})], "who has less of a range is not compared in it"


def test_difference_counts_when_it_is_seen_twice() -> None:
    first, second = Difference(0, 10, {1: 1, 2: 2}), Difference(10, 20, {1: 1, 2: 2})
    assert seen_twice([first], [first, second]) == [first]
    assert seen_twice([first], []) == []
