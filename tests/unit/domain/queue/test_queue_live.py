"""Spans against the plainest model there is: one entry for each message."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.domain.queue.live import Hold, LiveSpans
from penstock.domain.queue.values import HoldKind

OFFSET_MAX = 5_000
Model = dict[int, tuple[int, Hold]]

changes = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(0, OFFSET_MAX),
        st.integers(0, 1_500),
        st.sampled_from(list(HoldKind)),
        st.integers(0, 5),
    ),
    max_size=30,
)


def build(steps: list[tuple[bool, int, int, HoldKind, int]]) -> tuple[LiveSpans, Model]:
    live, model = LiveSpans(), Model()
    for is_removal, first, length, kind, count in steps:
        last = first + length
        taken = live.carve(first, last)
        assert [(piece.first, piece.last) for piece in taken] == sorted((piece.first, piece.last) for piece in taken)
        gone = {offset: model.pop(offset) for offset in range(first, last + 1) if offset in model}
        unfolded = {offset: (each.count, each.hold) for each in taken for offset in range(each.first, each.last + 1)}
        assert unfolded == gone
        if not is_removal:
            hold = Hold(kind, number=count, consumer=f"consumer-{count}", until_ms=count * 10)
            live.add(first, last, count=count, hold=hold, failure=None, lane=count)
            model.update(dict.fromkeys(range(first, last + 1), (count, hold)))
    return live, model


@settings(max_examples=60, deadline=None)
@given(changes)
def test_spans_say_what_single_messages_would(steps: list[tuple[bool, int, int, HoldKind, int]]) -> None:
    live, model = build(steps)
    unfolded = {offset: (span.count, span.hold) for span in live for offset in range(span.first, span.last + 1)}
    assert unfolded == model
    assert list(unfolded) == sorted(unfolded)
    assert live.live_count == len(model)
    assert live.first_offset() == min(model, default=None)
    for kind in HoldKind:
        assert live.counts[kind] == sum(hold.kind is kind for _count, hold in model.values())
    leased = [hold.consumer for _count, hold in model.values() if hold.kind is HoldKind.LEASED]
    assert live.by_consumer == {consumer: leased.count(consumer) for consumer in set(leased)}
    assert set(live.leases) == {hold for _count, hold in model.values() if hold.kind is HoldKind.LEASED}


@settings(max_examples=60, deadline=None)
@given(changes, st.integers(0, OFFSET_MAX), st.integers(0, 2_000))
def test_looking_at_a_range_changes_nothing(
    steps: list[tuple[bool, int, int, HoldKind, int]], first: int, length: int
) -> None:
    live, model = build(steps)
    before = list(live)
    pieces = live.pieces(first, first + length)
    offsets = [offset for piece in pieces for offset in range(piece.first, piece.last + 1)]
    assert offsets == [offset for offset in range(first, first + length + 1) if offset in model]
    found = live.find(first)
    assert (found is not None) == (first in model)
    assert list(live) == before


@settings(max_examples=60, deadline=None)
@given(changes, st.integers(0, 60))
def test_what_waits_is_ready_at_its_time_and_not_before(
    steps: list[tuple[bool, int, int, HoldKind, int]], now_ms: int
) -> None:
    live, model = build(steps)
    live.ripen(now_ms)
    ready = {
        offset for firsts in live.ready.values() for first in firsts for offset in range(first, live.at(first).last + 1)
    }
    waiting = {offset: hold for offset, (_count, hold) in model.items() if hold.kind is HoldKind.WAITING}
    assert ready == {offset for offset, hold in waiting.items() if hold.until_ms <= now_ms}
    due = {hold for _count, hold in model.values() if hold.kind is HoldKind.LEASED and hold.until_ms <= now_ms}
    assert set(live.expired_leases(now_ms, count_max=1_000)) == due
    deadlines = [hold.until_ms for hold in live.leases]
    deadlines += [hold.until_ms for hold in waiting.values() if hold.until_ms > now_ms]
    next_ms = live.next_deadline_ms()
    # It may ring for nothing, never too late.
    assert not deadlines or (next_ms is not None and next_ms <= min(deadlines))


def test_alarms_of_what_is_gone_do_not_pile_up() -> None:
    live = LiveSpans()
    for number in range(20_000):
        kind = HoldKind.LEASED if number % 2 else HoldKind.WAITING
        live.add(7, 7, count=1, hold=Hold(kind, number=number, until_ms=1_000_000 + number), failure=None, lane=4)
        live.carve(7, 7)
        live.ripen(0)
        live.next_deadline_ms()
    assert live.alarm_count < 4_000


def test_a_lease_cut_into_pieces_has_one_alarm() -> None:
    live = LiveSpans()
    live.add(0, 999, count=1, hold=Hold(HoldKind.LEASED, number=1, until_ms=50), failure=None, lane=4)
    for offset in range(0, 1_000, 2):
        live.carve(offset, offset)
    assert live.alarm_count == 1
    assert live.live_count == 500
