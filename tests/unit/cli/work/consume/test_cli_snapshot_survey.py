"""Snapshots of a compacted log, against a model that has the whole log."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.work.consume.snapshot_survey import PartitionSurvey, Survey, TooManyKeysError
from penstock.client.kafka.consumer import Fetched
from penstock.codec.batch.control import EndMarker, build_marker
from penstock.codec.batch.records import Record, build_batch

# (key, timestamp) of each record, in the order of the log.
Written = list[tuple[bytes | None, int]]

WRITTEN = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(0, 20)), min_size=1, max_size=30)


def piece(rows: Written, kept: set[int] | None = None, *, base: int = 0) -> Fetched:
    """One batch that spans all offsets; those that are not kept are holes."""
    records = [
        Record(b"v", key=key, timestamp_ms=stamp, offset_delta=place)
        for place, (key, stamp) in enumerate(rows)
        if kept is None or base + place in kept
    ]
    data = build_batch(records, base_offset=base, last_offset_delta=len(rows) - 1)
    return Fetched("t", 0, memoryview(data), base, base + len(rows), base + len(rows))


def survey(
    *pieces: Fetched, moment_ms: int | None = None, until_offset: int | None = None, bytes_max: int = 1 << 20
) -> Survey:
    end = pieces[-1].next_position
    until_offset = end if until_offset is None else until_offset
    found = PartitionSurvey(start=0, end=end, moment_ms=moment_ms, until_offset=until_offset, bytes_max=bytes_max)
    for fetched in pieces:
        found.add(fetched)
    return found.finish()


def compacted(rows: Written, clean_point: int, tombstones: Collection[int] = ()) -> set[int]:
    """Below the clean point a record is kept if no later one below it has the same key, and if it is no tombstone."""
    last = {key: place for place, (key, _) in enumerate(rows[:clean_point])}
    return {*last.values(), *range(clean_point, len(rows))} - {place for place in tombstones if place < clean_point}


def truth(rows: Written, moment_ms: int | None, until_offset: int) -> dict[bytes | None, int]:
    return {
        key: place for place, (key, stamp) in enumerate(rows[:until_offset]) if moment_ms is None or stamp < moment_ms
    }


@settings(deadline=None, max_examples=100)
@given(WRITTEN, st.data())
def test_as_of_an_offset_a_value_is_right_or_counted_as_lost(rows: Written, data: st.DataObject) -> None:
    places = st.integers(0, len(rows))
    clean_point, until_offset, tombstones = data.draw(places), data.draw(places), data.draw(st.sets(places))
    found = survey(piece(rows, compacted(rows, clean_point, tombstones)), until_offset=until_offset)
    shown = set(found.offsets.to_list()) - tombstones
    expected = set(truth(rows, None, until_offset).values()) - tombstones
    assert shown <= expected
    assert len(expected - shown) <= found.lost_keys_max
    if clean_point <= until_offset:
        assert shown == expected
    if until_offset == len(rows):
        assert found.lost_keys_max == 0


@settings(deadline=None, max_examples=100)
@given(WRITTEN, st.integers(0, 21), st.data())
def test_as_of_a_time_a_value_is_right_or_counted_as_lost(rows: Written, moment_ms: int, data: st.DataObject) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    clean_point = data.draw(st.integers(0, len(rows)))
    tombstones = data.draw(st.sets(st.integers(0, len(rows))))
    middle = data.draw(st.integers(1, len(rows)))
    kept = compacted(rows, clean_point, tombstones)
    pieces = [piece(rows[:middle], kept)] + ([piece(rows[middle:], kept, base=middle)] if middle < len(rows) else [])
    found = survey(*pieces, moment_ms=moment_ms)
    shown = set(found.offsets.to_list()) - tombstones
    expected = set(truth(rows, moment_ms, len(rows)).values()) - tombstones
    assert shown <= expected
    assert len(expected - shown) <= found.lost_keys_max


@settings(deadline=None, max_examples=40)
@given(WRITTEN, st.integers(0, 21))
def test_what_was_never_compacted_is_exact_in_whatever_order_its_timestamps_are(rows: Written, moment_ms: int) -> None:
    found = survey(piece(rows), moment_ms=moment_ms)
    assert set(found.offsets.to_list()) == set(truth(rows, moment_ms, len(rows)).values())
    assert (found.lost_keys_max, found.hole_count) == (0, 0)


def test_one_record_from_the_future_spoils_only_itself() -> None:
    found = survey(piece([(b"a", 1), (b"b", 999), (b"c", 2)]), moment_ms=3)
    assert found.offsets.to_list() == [0, 2]


def test_records_without_a_key_are_counted_and_left_out() -> None:
    found = survey(piece([(None, 1), (b"a", 1), (None, 9)]), moment_ms=5)
    assert (found.offsets.to_list(), found.keyless_count) == ([1], 1)


def test_markers_and_aborted_records_are_no_holes_and_no_values() -> None:
    marker = build_marker(
        EndMarker(is_commit=False, coordinator_epoch=0), producer_id=7, producer_epoch=0, timestamp_ms=1, base_offset=2
    )
    data = bytes(piece([(b"a", 1), (b"a", 1)]).data) + bytes(marker) + bytes(piece([(b"b", 1)], base=3).data)
    found = survey(Fetched("t", 0, memoryview(data), 0, 4, 4, frozenset({0})))
    assert (found.offsets.to_list(), found.hole_count) == ([3], 0)


def test_more_keys_than_memory_are_an_error_and_not_a_part() -> None:
    rows: Written = [(b"%d" % number, 1) for number in range(100)]
    with pytest.raises(TooManyKeysError, match="more than 50 keys"):
        survey(piece(rows), bytes_max=64 * 50)


def test_a_key_deleted_after_the_moment_is_counted_as_lost_though_its_tombstone_is_gone_too() -> None:
    rows: Written = [(b"a", 0), (b"a", 1)]
    assert survey(piece(rows, compacted(rows, 2, {1})), moment_ms=1).lost_keys_max == 2
