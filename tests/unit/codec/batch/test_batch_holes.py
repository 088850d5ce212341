"""A batch without its delayed records: the others stay where they were, and nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch
from penstock.codec.batch.holes import OpenBatch, holds_any, leave_out, open_payload, records_with
from penstock.codec.batch.records import Record, StoredRecord, build_batch, read_payload, read_records
from penstock.codec.batch.rewrite import has_nothing_from
from penstock.codec.columns.frame import read_columns

START_MS = 1_700_000_000_000
NAMES = (b"penstock-delay-ms", b"penstock-deliver-at")
CODECS = pytest.mark.parametrize("codec", list(Codec))


def checked(batch: bytearray | memoryview) -> BatchHeader:
    header = check_batch(batch)
    assert isinstance(header, BatchHeader), header
    return header


def opened(batch: bytearray) -> OpenBatch:
    header = checked(batch)
    payload = read_payload(batch, 0, header)
    assert not isinstance(payload, BatchProblem)
    found = open_payload(header, payload)
    assert isinstance(found, OpenBatch)
    return found


def stored(batch: bytearray) -> list[StoredRecord]:
    records = read_records(batch)
    assert isinstance(records, list), records
    return records


def sample(count: int, delayed: set[int], codec: Codec = Codec.NONE, name: str = "penstock-delay-ms") -> bytearray:
    records = [
        Record(
            b"value %d" % number * (1 + number % 5),
            key=None if number % 3 else b"key %d" % number,
            # Neither in order nor from the first on: the youngest may be anywhere.
            timestamp_ms=START_MS + (number * 7919) % 1009 - 500,
            headers=((name, b"%d" % number),) if number in delayed else (("other", None),) * (number % 2),
        )
        for number in range(count)
    ]
    return build_batch(
        records, codec=codec, base_offset=100, leader_epoch=3, producer_id=7, producer_epoch=1, base_sequence=40
    )


@CODECS
def test_records_are_found_by_a_name_and_decoded(codec: Codec) -> None:
    batch = sample(50, {0, 7, 8, 9, 49}, codec)
    found = records_with(opened(batch), NAMES)
    assert isinstance(found, list)
    everything = stored(batch)
    assert found == [(number, everything[number]) for number in (0, 7, 8, 9, 49)]


def test_name_is_found_wherever_it_stands() -> None:
    records = [Record(b"penstock-deliver-at"), Record(b"v", key=b"a penstock-delay-ms of"), Record(b"penstock-de")]
    batch = build_batch(records)
    assert holds_any(memoryview(batch), NAMES)
    found = records_with(opened(batch), NAMES)
    assert isinstance(found, list)
    assert [number for number, _record in found] == [0, 1]
    assert not holds_any(build_batch([Record(b"penstock-de"), Record(b"lay-ms")]), NAMES)


@CODECS
@pytest.mark.parametrize("left_out", [{0}, {1, 2, 3}, {49}, {0, 10, 20, 49}, set(range(49)), set(range(1, 50))])
def test_the_others_stay_where_they_were(codec: Codec, left_out: set[int]) -> None:
    batch = sample(50, left_out, codec)
    header, before = checked(batch), stored(batch)
    holed = leave_out(opened(batch), left_out)
    after = checked(holed)
    kept = [record for number, record in enumerate(before) if number not in left_out]
    assert stored(holed) == kept
    assert (after.record_count, after.last_offset_delta, after.codec) == (len(kept), 49, codec)
    assert (after.base_offset, after.leader_epoch, after.base_timestamp) == (100, 3, header.base_timestamp)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (7, 1, 40)
    assert after.max_timestamp == max(record.timestamp_ms for record in kept)


@CODECS
def test_batch_that_loses_all_of_its_records_is_kept_without_any(codec: Codec) -> None:
    holed = leave_out(opened(sample(5, set(range(5)), codec)), range(5))
    header = checked(holed)
    assert stored(holed) == []
    assert (header.record_count, header.next_offset, header.base_sequence, len(holed)) == (0, 105, 40, 61)
    assert header.max_timestamp == -1


@CODECS
@pytest.mark.parametrize("vectored_rows_min", [1, 10_000])
def test_columns_are_those_of_the_records_that_are_left(codec: Codec, vectored_rows_min: int) -> None:
    left_out = set(range(0, 3000, 7))
    parts = [
        leave_out(opened(sample(3000, left_out, codec)), left_out),
        leave_out(opened(sample(20, set(range(20)), codec)), range(20)),
        sample(10, set(), codec),
    ]
    frame = read_columns(b"".join(parts), vectored_rows_min=vectored_rows_min)
    assert not isinstance(frame, BatchProblem)
    expected = [record for part in parts for record in stored(part)]
    assert frame["offset"].to_list() == [record.offset for record in expected]
    assert frame["value"].to_list() == [record.value for record in expected]
    assert frame["timestamp_ms"].to_list() == [record.timestamp_ms for record in expected]


@given(st.integers(1, 60), st.data(), st.sampled_from(list(Codec)))
def test_any_choice_gives_the_rest(count: int, data: st.DataObject, codec: Codec) -> None:
    left_out = data.draw(st.sets(st.integers(0, count - 1)))
    batch = sample(count, left_out, codec, name="penstock-deliver-at")
    holed = leave_out(opened(batch), left_out)
    kept = [record for number, record in enumerate(stored(batch)) if number not in left_out]
    assert stored(holed) == kept
    for offset in range(100, 100 + count):
        assert has_nothing_from(holed, offset) == (not any(record.offset >= offset for record in kept))


def test_records_that_do_not_fill_the_batch_are_a_problem() -> None:
    batch = sample(3, {1})
    payload = bytes(batch[61:])
    assert isinstance(open_payload(checked(batch), payload + b"\0"), BatchProblem)
    assert isinstance(open_payload(checked(batch), payload[:-1]), BatchProblem)
