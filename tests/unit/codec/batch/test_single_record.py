"""What is taken for one whole record by one comparison is one to whoever reads it."""

from __future__ import annotations

import random

import msgspec
import pytest

from penstock.codec.batch.check import check_records
from penstock.codec.batch.header import HEADER_BYTES, BatchHeader, read_header
from penstock.codec.batch.records import BASE_MAX, Record, build_batch
from penstock.codec.batch.single import is_single_record

SIZES = [0, 1, 2, 3, 4, 10, 50, *range(52, 70), 100, 1024, *range(8170, 8200), 20_000]
KEYS = [None, b"", b"k", bytes(8), bytes(63), bytes(64), bytes(200)]


def parsed(batch: bytearray) -> BatchHeader:
    header = read_header(batch)
    assert isinstance(header, BatchHeader)
    return header


def taken(batch: bytearray) -> bool:
    return is_single_record(memoryview(batch), parsed(batch))


def is_right(batch: bytearray) -> bool:
    return check_records(parsed(batch), batch[HEADER_BYTES:], len(batch) - HEADER_BYTES) is None


@pytest.mark.parametrize("key", [None, b"", b"k", bytes(63)])
@pytest.mark.parametrize("size", [10, 52, 53, 57, 58, 59, 60, 61, 62, 63, 64, 65, 100, 1024, 8000])
def test_a_record_in_its_commonest_form_is_taken(size: int, key: bytes | None) -> None:
    assert taken(build_batch([Record(bytes(size), key, 1_700_000_000_000)]))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("size", SIZES)
def test_no_byte_can_be_wrong_without_being_seen(size: int, key: bytes | None) -> None:
    batch = build_batch([Record(b"\1" * size, key, 1_000)])
    key_bytes = 0 if key is None else len(key)
    places = {
        *range(12),
        *range(4 + key_bytes, 12 + key_bytes),
        *(len(batch) - HEADER_BYTES - 1 - at for at in (0, 1, 2)),
    }
    for place in places:
        for byte in (0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF):
            if 0 <= place < len(batch) - HEADER_BYTES:
                broken = bytearray(batch)
                broken[HEADER_BYTES + place] = byte
                assert not taken(broken) or is_right(broken), (place, byte)


@pytest.mark.parametrize("seed", range(20))
def test_of_random_records_only_right_ones_are_taken(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(300):
        key = chance.choice([None, chance.randbytes(chance.randrange(70))])
        batch = build_batch([Record(chance.randbytes(chance.choice([5, 60, 130])), key, 5)])
        for _ in range(chance.choice([1, 2, 5])):
            batch[chance.randrange(HEADER_BYTES, len(batch))] = chance.choice([0, 1, 0x80, chance.randrange(256)])
        if chance.random() < 0.3:
            batch = batch[: -chance.randrange(1, 4)]
        assert not taken(batch) or is_right(batch)


def test_two_records_headers_and_a_null_value_are_left_to_the_full_check() -> None:
    headers = (("name", b"value"),)
    for records in (
        [Record(bytes(20))] * 2,
        [Record(bytes(20), headers=headers)],
        [Record(None, b"key of a tombstone")],
    ):
        assert not taken(build_batch(records))


def test_a_date_that_no_reader_can_count_from_is_left_to_the_full_check() -> None:
    batch = build_batch([Record(bytes(20), timestamp_ms=5)])
    for timestamp in (BASE_MAX + 1, -BASE_MAX - 1):
        header = msgspec.structs.replace(parsed(batch), base_timestamp=timestamp)
        assert not is_single_record(memoryview(batch), header)


def test_less_than_a_record_is_left_to_the_full_check() -> None:
    batch = build_batch([Record(b"")])
    for size in range(HEADER_BYTES, len(batch) + 1):
        assert not is_single_record(memoryview(batch)[:size], parsed(batch))
