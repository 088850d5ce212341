"""Batches with fewer records than they had: offsets, sequences and times are what they were."""

from __future__ import annotations

import pytest

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch, patch_log_append_time
from penstock.codec.batch.records import Record, build_batch, read_payload, read_records
from penstock.codec.batch.rewrite import (
    NO_HORIZON,
    empty_batch,
    filler_batch,
    has_nothing_from,
    horizon_of,
    rebuild_batch,
    skip_first_and_empty,
)

START_MS = 1_700_000_000_000
CODECS = pytest.mark.parametrize("codec", list(Codec))


def sample(codec: Codec = Codec.NONE) -> bytearray:
    records = [Record(b"value %d" % number, key=b"k", timestamp_ms=START_MS + number) for number in range(3)]
    return build_batch(
        records, codec=codec, base_offset=100, producer_id=7, producer_epoch=1, base_sequence=40, leader_epoch=3
    )


def checked(batch: bytearray) -> BatchHeader:
    header = check_batch(batch)
    assert isinstance(header, BatchHeader), header
    return header


def rebuilt(batch: bytearray, *, keep: int, horizon_ms: int = NO_HORIZON) -> bytearray:
    """Only the record at that place."""
    header = checked(batch)
    payload = read_payload(batch, 0, header)
    assert not isinstance(payload, BatchProblem)
    size = len(payload) // header.record_count
    piece = memoryview(payload)[keep * size : (keep + 1) * size]
    return rebuild_batch(header, [piece], record_count=1, newest_ms=START_MS + keep, horizon_ms=horizon_ms)


@CODECS
def test_what_stays_keeps_its_offset_and_its_time(codec: Codec) -> None:
    batch = rebuilt(sample(codec), keep=1)
    header = checked(batch)
    assert (header.record_count, header.base_offset, header.next_offset) == (1, 100, 103)
    assert (header.producer_id, header.base_sequence, header.leader_epoch) == (7, 40, 3)
    assert header.max_timestamp == START_MS + 1
    (record,) = read_records(batch)
    assert (record.offset, record.timestamp_ms, record.value) == (101, START_MS + 1, b"value 1")


@CODECS
def test_horizon_takes_the_place_of_the_base_timestamp_and_times_stay(codec: Codec) -> None:
    horizon_ms = START_MS + 86_400_000
    batch = rebuilt(sample(codec), keep=2, horizon_ms=horizon_ms)
    header = checked(batch)
    assert horizon_of(header) == header.base_timestamp == horizon_ms
    (record,) = read_records(batch)
    assert (record.offset, record.timestamp_ms) == (102, START_MS + 2)
    assert horizon_of(checked(rebuilt(sample(), keep=0))) == NO_HORIZON


def test_time_of_the_broker_is_every_records_time_also_with_a_horizon() -> None:
    batch = sample()
    patch_log_append_time(batch, 0, checked(batch), START_MS + 500)
    batch = rebuilt(batch, keep=1, horizon_ms=START_MS + 9_999)
    assert checked(batch).max_timestamp == START_MS + 500
    (record,) = read_records(batch)
    assert record.timestamp_ms == START_MS + 500


@CODECS
def test_emptied_batch_still_tells_offsets_and_sequence(codec: Codec) -> None:
    batch = empty_batch(checked(sample(codec)))
    header = checked(batch)
    assert len(batch) == 61
    assert (header.record_count, header.base_offset, header.next_offset) == (0, 100, 103)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)
    assert header.max_timestamp == -1
    assert read_records(batch) == []


def test_filler_stands_for_offsets_and_for_nobody() -> None:
    header = checked(filler_batch(base_offset=5, next_offset=2**31 + 4, leader_epoch=2))
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (5, 2**31 + 4, 2)
    assert (header.record_count, header.producer_id) == (0, -1)


def test_empty_batches_at_the_beginning_are_stepped_over() -> None:
    full = sample()
    empty = filler_batch(base_offset=90, next_offset=95, leader_epoch=0)
    other = filler_batch(base_offset=95, next_offset=100, leader_epoch=0)
    assert not has_nothing_from(memoryview(full), 100)
    assert not has_nothing_from(b"", 0)
    assert has_nothing_from(memoryview(empty + full), 90)
    rest, next_offset = skip_first_and_empty(memoryview(empty + other + full + empty))
    assert (bytes(rest), next_offset) == (bytes(full + empty), 100)
    assert skip_first_and_empty(memoryview(empty + other)) == (b"", 100)
