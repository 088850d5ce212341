"""The batch header in place, with kafka-python's builder as the one who knows what it looks like."""

from __future__ import annotations

import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from penstock.codec.batch.header import (
    HEADER_BYTES,
    BatchHeader,
    BatchProblem,
    check_batch,
    pack_header,
    patch,
    patch_log_append_time,
    read_header,
    walk_headers,
)


def their_batch(record_count: int = 3, *, is_transactional: bool = False, timestamp_ms: int = 1000) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=is_transactional,
        producer_id=77,
        producer_epoch=5,
        base_sequence=9,
        batch_size=1_000_000,
    )
    for offset in range(record_count):
        builder.append(offset, timestamp=timestamp_ms + offset, key=b"k", value=b"v" * 10, headers=[])
    return bytearray(builder.build())


def checked(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    header = check_batch(data, position)
    assert isinstance(header, BatchHeader), header
    return header


def refused(data: bytes | bytearray, position: int = 0) -> BatchProblem:
    problem = check_batch(data, position)
    assert isinstance(problem, BatchProblem), problem
    return problem


def test_header_of_a_foreign_batch_is_read() -> None:
    batch = their_batch(is_transactional=True)
    header = checked(batch)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (0, 2, 3, 3)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1002)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 5, 9)
    assert header.is_idempotent
    assert header.is_transactional
    assert not header.is_control
    assert not header.has_log_append_time
    assert header.codec == 0


def test_packing_a_header_gives_its_bytes_back() -> None:
    batch = their_batch()
    assert pack_header(checked(batch)) == batch[:HEADER_BYTES]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken(kind: type) -> None:
    assert checked(kind(their_batch())).record_count == 3


def test_patching_needs_no_new_checksum() -> None:
    batch = their_batch()
    before = checked(batch)
    patched = patch(batch, 0, before, base_offset=123_456_789_012, leader_epoch=42)
    after = checked(batch)
    assert patched == after
    assert after.checksum == before.checksum
    assert (after.base_offset, after.leader_epoch, after.next_offset) == (123_456_789_012, 42, 123_456_789_015)


def test_patching_touches_its_own_batch_only() -> None:
    first, second = their_batch(1), their_batch(2)
    both = first + second
    patch(both, len(first), checked(second), base_offset=7, leader_epoch=1)
    assert both[: len(first)] == first
    assert checked(both, len(first)).base_offset == 7


def test_log_append_time_dates_every_record_and_renews_the_checksum() -> None:
    first = their_batch(1)
    batch = first + their_batch()
    dated = patch_log_append_time(batch, len(first), checked(batch, len(first)), 5_000)
    header = checked(batch, len(first))
    assert dated == header
    assert header.has_log_append_time
    assert header.max_timestamp == 5_000
    assert batch[: len(first)] == first
    theirs = DefaultRecordBatch(bytes(batch[len(first) :]))
    assert theirs.validate_crc()
    assert [record.timestamp for record in theirs] == [5_000] * 3


def test_every_flipped_bit_after_the_length_is_found() -> None:
    batch = their_batch()
    outside = range(8 * 16)  # base offset, length and leader epoch lie outside the checksum
    for bit in range(len(batch) * 8):
        if bit in outside:
            continue
        batch[bit // 8] ^= 1 << bit % 8
        assert not refused(batch).is_truncated or bit // 8 < HEADER_BYTES
        batch[bit // 8] ^= 1 << bit % 8
    checked(batch)


def test_a_batch_that_is_cut_off_anywhere_is_truncated_not_damaged() -> None:
    batch = their_batch()
    for size in range(len(batch)):
        assert refused(batch[:size]).is_truncated


def test_a_length_shorter_than_a_header_is_damage() -> None:
    for length in (-1, 0, HEADER_BYTES - 13):
        batch = their_batch()
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        assert not refused(batch).is_truncated


def test_an_older_magic_is_refused_with_its_number() -> None:
    batch = their_batch()
    batch[16] = 1
    assert "magic is 1" in refused(batch).reason


def test_negative_counts_are_refused() -> None:
    for field in (23, 57):
        batch = their_batch()
        batch[field : field + 4] = b"\xff\xff\xff\xff"
        assert isinstance(read_header(batch), BatchProblem)


def test_walking_ends_quietly_before_the_first_that_is_not_whole() -> None:
    batches = [their_batch(count) for count in (1, 2, 3)]
    data = b"".join(batches)
    starts = [0, len(batches[0]), len(batches[0]) + len(batches[1])]
    assert [position for position, _ in walk_headers(data)] == starts
    assert [header.record_count for _, header in walk_headers(data[:-1])] == [1, 2]
    assert [header.record_count for _, header in walk_headers(data, starts[1])] == [2, 3]
    assert list(walk_headers(b"")) == []
    assert list(walk_headers(b"\x00" * 200)) == []
