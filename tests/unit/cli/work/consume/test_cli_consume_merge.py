"""Partitions merged by time."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.work.consume.merge import TimeMerge
from penstock.codec.batch.records import StoredRecord


def rows(*timestamps: int, first: int = 0) -> Iterator[StoredRecord]:
    return (StoredRecord(first + place, stamp, None, b"v") for place, stamp in enumerate(timestamps))


def stamps(merge: TimeMerge) -> list[int]:
    return [record.timestamp_ms for _, record in merge.ready()]


def test_sorted_partitions_give_a_sorted_stream() -> None:
    merge = TimeMerge([0, 1])
    merge.feed(0, rows(1, 4, 5))
    merge.feed(1, rows(2, 3, 6))
    merge.finish(0)
    merge.finish(1)
    assert stamps(merge) == [1, 2, 3, 4, 5, 6]


def test_nothing_leaves_while_a_partition_has_shown_neither_a_record_nor_its_end() -> None:
    merge = TimeMerge([0, 1])
    merge.feed(0, rows(1, 2))
    assert stamps(merge) == []
    assert merge.fed == {0}
    merge.feed(1, rows(3))
    assert stamps(merge) == [1, 2]
    assert merge.fed == {1}
    merge.finish(0)
    assert stamps(merge) == [3]


def test_a_piece_without_wanted_records_is_no_record() -> None:
    merge = TimeMerge([0, 1])
    merge.feed(0, rows())
    merge.feed(1, rows(5))
    assert merge.fed == {1}
    assert stamps(merge) == []
    merge.feed(0, rows(4))
    assert stamps(merge) == [4]


@given(st.lists(st.lists(st.integers(0, 20)), min_size=1, max_size=5))
def test_no_record_overtakes_another_of_its_partition(partitions: list[list[int]]) -> None:
    merge = TimeMerge(range(len(partitions)))
    for number, timestamps in enumerate(partitions):
        middle = len(timestamps) // 2
        merge.feed(number, rows(*timestamps[:middle]))
        merge.feed(number, rows(*timestamps[middle:], first=middle))
        merge.finish(number)
    merged = list(merge.ready())
    for number, timestamps in enumerate(partitions):
        assert [record.timestamp_ms for partition, record in merged if partition == number] == timestamps
    # Of the heads always the oldest: whatever stands before a record and is younger shared its partition.
    heads = [0] * len(partitions)
    for partition, record in merged:
        fronts = [row[heads[number]] for number, row in enumerate(partitions) if heads[number] < len(row)]
        assert record.timestamp_ms == min(fronts)
        heads[partition] += 1
