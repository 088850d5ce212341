"""The rules of redrive: what a dead letter tells, which fit, where they go, what they leave behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.domain.queue.dead_letter import DeadLetter, Origin, headers_of
from penstock.domain.queue.redrive import (
    Chosen,
    Death,
    Place,
    RedriveFilter,
    deadly_headers,
    death_of,
    living_headers,
    read_place,
    write_place,
)
from penstock.domain.queue.values import Cause, Failure

OWN = (("trace", b"1"), ("penstock-ttl-ms", b"500"), ("penstock-priority", b"9"), ("penstock-message-id", b"m"))
LETTER = DeadLetter(7, 7, 3, Failure(100, 200, Cause.REJECTED, "broken"))
ORIGIN = Origin("orders", 2, "workers")


def test_a_death_is_told_as_it_was_written() -> None:
    assert death_of(headers_of(LETTER, ORIGIN, offset=7)) == Death(
        reason="rejected",
        error="broken",
        topic="orders",
        partition=2,
        offset=7,
        group="workers",
        delivery_count=3,
        first_failure_ms=100,
        last_failure_ms=200,
    )


def test_a_death_that_kafka_wrote_is_read_too() -> None:
    ours = headers_of(LETTER, ORIGIN, offset=7)
    theirs = [header for header in ours if header[0].startswith("__dlq.errors.")]
    found = death_of(theirs)
    assert (found.topic, found.partition, found.offset, found.error) == ("orders", 2, 7, "broken")
    assert found.reason is None


@pytest.mark.parametrize("text", [b"", b"-1", b"x", b"1" * 40, "٣".encode(), b"\xff"])
def test_nonsense_in_a_header_is_as_if_it_were_not_there(text: bytes) -> None:
    assert death_of([("penstock-origin-partition", text)]).partition is None
    assert death_of([("penstock-origin-topic", None)]).topic is None


def test_what_dies_and_comes_back_is_as_it_was() -> None:
    dead = (*deadly_headers(OWN), *headers_of(LETTER, ORIGIN, offset=7))
    assert "penstock-ttl-ms" not in dict(dead)
    assert living_headers(dead) == OWN
    # And dies again: of its first death nothing is left.
    assert deadly_headers(dead) == deadly_headers([header for header in OWN if header[0] != "penstock-ttl-ms"])


@pytest.mark.parametrize(
    ("only", "is_fitting"),
    [
        (RedriveFilter(), True),
        (RedriveFilter(reason="rejected"), True),
        (RedriveFilter(reason="other"), False),
        (RedriveFilter(key="k"), True),
        (RedriveFilter(key="K"), False),
        (RedriveFilter(since_ms=200), True),
        (RedriveFilter(since_ms=201), False),
        (RedriveFilter(until_ms=200), False),
        (RedriveFilter(until_ms=201), True),
        (RedriveFilter(reason="rejected", key="k", since_ms=200, until_ms=201), True),
    ],
)
def test_a_filter_asks_everything_it_names(only: RedriveFilter, is_fitting: bool) -> None:
    assert only.fits(headers_of(LETTER, ORIGIN, offset=7), key=b"k", timestamp_ms=5) is is_fitting


def test_without_a_told_failure_the_timestamp_counts() -> None:
    assert RedriveFilter(since_ms=5).fits((), key=None, timestamp_ms=5)
    assert not RedriveFilter(since_ms=6).fits((), key=None, timestamp_ms=5)


@given(st.text("abcXYZ019._-", min_size=1), st.integers(0, 100_000))
def test_a_place_is_read_as_it_was_written(topic: str, partition: int) -> None:
    assert read_place(write_place(Place(topic, partition))) == Place(topic, partition)


@pytest.mark.parametrize("text", ["", "orders", "/1", "orders/", "orders/x", "orders/-1"])
def test_what_is_no_place_is_none(text: str) -> None:
    assert read_place(text) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 5)), max_size=8))
def test_what_was_picked_by_place_is_held_and_nothing_else(runs: list[tuple[int, int, int]]) -> None:
    taken: set[tuple[int, int]] = set()
    choices = []
    for partition, first, length in runs:
        places = {(partition, offset) for offset in range(first, first + length + 1)}
        if not places & taken:
            taken |= places
            choices.append((partition, first, first + length))
    chosen = Chosen(choices)
    for partition in range(4):
        for offset in range(60):
            assert chosen.holds(partition, offset) == ((partition, offset) in taken)
