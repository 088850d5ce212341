"""What a trigger reads and how it is cut up: nothing twice, nothing left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.source.ranges import (
    ROWS_PER_TASK,
    TASKS_MIN,
    OffsetSpan,
    Position,
    cut,
    from_json,
    group,
    limited,
    lost,
    spans_between,
    to_json,
)

positions = st.dictionaries(
    st.sampled_from(["a", "b"]), st.dictionaries(st.integers(0, 4), st.integers(0, 1_000), max_size=5), max_size=2
)


@given(positions)
def test_a_position_survives_its_checkpoint(position: Position) -> None:
    assert from_json(to_json(position)) == position


@given(positions, positions)
def test_spans_hold_exactly_what_lies_between(start: Position, end: Position) -> None:
    wanted = {
        (topic, partition, offset)
        for topic, partitions in end.items()
        for partition, until in partitions.items()
        for offset in range(start.get(topic, {}).get(partition, 0), until)
    }
    spans = spans_between(start, end)
    assert _offsets(spans) == wanted
    assert sum(span.size for span in spans) == len(wanted)


@given(positions, positions, st.integers(1, 500))
def test_a_limit_is_kept_but_for_one_row_a_partition(start: Position, latest: Position, rows_max: int) -> None:
    reached = limited(start, latest, rows_max)
    spans, all_spans = spans_between(start, reached), spans_between(start, latest)
    assert _offsets(spans) <= _offsets(all_spans)
    assert sum(span.size for span in spans) <= rows_max + len(all_spans)
    # Every partition gets on, so that all is read in the end.
    assert len(spans) == len(all_spans)


@given(positions, positions, st.one_of(st.none(), st.integers(1, 20)), st.one_of(st.none(), st.integers(1, 100)))
def test_cutting_changes_nothing_but_the_pieces(
    start: Position, end: Position, count_min: int | None, rows_max: int | None
) -> None:
    spans = spans_between(start, end)
    pieces = cut(spans, count_min=count_min, rows_max=rows_max)
    assert _offsets(pieces) == _offsets(spans)
    assert sum(piece.size for piece in pieces) == sum(span.size for span in spans)
    if rows_max is not None:
        assert all(piece.size <= rows_max for piece in pieces)


def test_a_large_partition_is_read_by_several_tasks() -> None:
    pieces = cut([OffsetSpan("a", 0, 0, 900), OffsetSpan("a", 1, 0, 100)], count_min=10)
    assert len(pieces) == 10
    assert [piece.size for piece in pieces] == [100] * 10


def _offsets(spans: list[OffsetSpan]) -> set[tuple[str, int, int]]:
    return {(span.topic, span.partition, offset) for span in spans for offset in range(span.start, span.end)}


@given(st.lists(st.integers(1, 500_000), max_size=80))
def test_tasks_have_all_spans_and_are_worth_their_cost(sizes: list[int]) -> None:
    spans = [OffsetSpan("a", number, 5, 5 + size) for number, size in enumerate(sizes)]
    groups = group(spans)
    assert sorted(span for members in groups for span in members) == spans
    assert all(groups)
    rows = sum(sizes)
    assert len(groups) <= max(TASKS_MIN, -(-rows // ROWS_PER_TASK))
    assert len(groups) <= len(spans)


def test_few_rows_of_many_partitions_are_one_task_and_many_are_several() -> None:
    assert len(group([OffsetSpan("a", number, 0, 15) for number in range(64)])) == 1
    assert len(group([OffsetSpan("a", number, 0, 1_000) for number in range(64)])) == 8
    assert len(group([OffsetSpan("a", number, 0, 50_000) for number in range(64)])) == 16
    assert len(group([OffsetSpan("a", number, 0, 500_000) for number in range(64)])) == 64
    assert len(group([OffsetSpan("a", number, 0, 500) for number in range(4)])) == 2
    assert group([]) == []


def test_what_was_read_and_is_gone_is_told() -> None:
    assert lost({"a": {0: 5}}, {"a": {0: 5, 1: 7}, "b": {0: 1}}) is None
    assert "topic 'a' was deleted" in str(lost({"a": {0: 5}}, {}))
    assert "partition 0 of 'a' is gone" in str(lost({"a": {0: 5}}, {"a": {1: 5}}))
    assert "ends at offset 4, and it was read up to 5" in str(lost({"a": {0: 5}}, {"a": {0: 4}}))
