"""Records that are found without being decoded are those that decoding finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.batch.header import HEADER_BYTES, BatchHeader, BatchProblem, read_header
from penstock.codec.batch.records import Record, build_batch, parse_records, read_records
from penstock.codec.batch.walk import parse_some, record_at, record_starts

SIZES = st.sampled_from([0, 1, 50, 60, 100, 8_000, 9_000, 20_000])


def opened(records: list[Record]) -> tuple[BatchHeader, bytes]:
    data = build_batch(records, base_offset=7)
    header = read_header(data)
    assert isinstance(header, BatchHeader)
    return header, bytes(data[HEADER_BYTES:])


@given(st.lists(SIZES, min_size=1, max_size=20), st.data())
def test_some_records_are_those_of_all(sizes: list[int], data: st.DataObject) -> None:
    header, payload = opened([Record(value=b"v" * size, key=b"%d" % size, timestamp_ms=5) for size in sizes])
    starts = record_starts(header, payload)
    assert starts is not None
    assert len(starts) == len(sizes) + 1
    first = data.draw(st.integers(0, len(sizes) - 1))
    last = data.draw(st.integers(first, len(sizes) - 1))
    everything = parse_records(header, payload)
    assert isinstance(everything, list)
    assert parse_some(header, payload, starts, first, last) == everything[first : last + 1]


@given(st.binary(max_size=60), st.integers(0, 30))
def test_nonsense_has_no_records_and_raises_nothing(payload: bytes, count: int) -> None:
    header, _ = opened([Record(value=b"v", timestamp_ms=5)] * max(count, 1))
    starts = record_starts(header, payload)
    assert starts is None or starts[-1] == len(payload)


def test_records_that_do_not_fill_the_payload_are_not_found() -> None:
    header, payload = opened([Record(value=b"v" * 100, timestamp_ms=5)] * 3)
    assert record_starts(header, payload) is not None
    assert record_starts(header, payload + b"\x00") is None
    assert record_starts(header, payload[:-1]) is None


@given(st.lists(SIZES, min_size=1, max_size=20), st.data())
def test_record_at_an_offset_is_that_of_all(sizes: list[int], data: st.DataObject) -> None:
    deltas = sorted(data.draw(st.sets(st.integers(0, 60), min_size=len(sizes), max_size=len(sizes))))
    records = [
        Record(value=b"v" * size, key=b"%d" % size, timestamp_ms=5, offset_delta=delta)
        for size, delta in zip(sizes, deltas, strict=True)
    ]
    batch = build_batch(records, base_offset=7)
    header = read_header(batch)
    assert isinstance(header, BatchHeader)
    everything = read_records(batch)
    assert isinstance(everything, list)
    by_offset = {record.offset: record for record in everything}
    for offset in range(7, 7 + header.last_offset_delta + 1):
        assert record_at(batch, header, offset) == by_offset.get(offset)


def test_record_at_an_offset_of_nonsense_is_a_problem() -> None:
    batch = build_batch([Record(value=b"v" * 20, timestamp_ms=5)] * 3)
    batch[HEADER_BYTES:] = b"\x80" * (len(batch) - HEADER_BYTES)
    header = read_header(batch)
    assert isinstance(header, BatchHeader)
    for offset in range(3):
        assert isinstance(record_at(batch, header, offset), BatchProblem)
