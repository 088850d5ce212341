"""The check of a produced batch's records says what reading them would say."""

from __future__ import annotations

import random

import msgspec
import pytest

from penstock.codec.batch.check import TooLong, check_records, check_some
from penstock.codec.batch.header import HEADER_BYTES, BatchHeader, BatchProblem, read_header
from penstock.codec.batch.records import Record, build_batch, parse_records


def opened(records: list[Record]) -> tuple[BatchHeader, bytes]:
    batch = bytes(build_batch(records))
    header = read_header(batch)
    assert isinstance(header, BatchHeader)
    return header, batch[HEADER_BYTES:]


def checked(header: BatchHeader, payload: bytes) -> BatchProblem | None:
    # What lies behind the records is none of them, whatever it is; nor is what lies before them.
    problem = check_records(header, bytearray(payload) + b"\0" * 32, len(payload))
    amid = b"\7" * 13 + payload + b"\2" * 32
    amid_problem = check_some(header, amid, 13 + len(payload), reads_max=2 * len(payload), start=13)
    assert (amid_problem is None) == (problem is None)
    return problem


def is_readable(header: BatchHeader, payload: bytes) -> bool:
    records = parse_records(header, payload)
    if isinstance(records, BatchProblem):
        return False
    return [record.offset - header.base_offset for record in records] == list(range(header.record_count))


def some_records(chance: random.Random) -> list[Record]:
    """Runs of alike records, as producers send them, and single ones that are not."""
    records: list[Record] = []
    time_ms = 1_000_000
    while len(records) < chance.choice([1, 3, 70, 200, 400]):
        value_bytes = chance.choice([0, 1, 50, 63, 64, 65, 100, 300])
        has_key, has_headers, differs = chance.random() < 0.5, chance.random() < 0.1, chance.random() < 0.4
        for _ in range(chance.choice([1, 2, 60, 120])):
            time_ms += chance.choice([0, 0, 0, 1, 40])
            size = chance.randrange(value_bytes + 30) if differs else value_bytes
            value = None if chance.random() < 0.02 else chance.randbytes(size)
            key = chance.randbytes(chance.choice([0, 8, 8, 8, 70])) if has_key else None
            headers = (("name", b"value"), ("none", None)) if has_headers else ()
            records.append(Record(value, key, time_ms, headers))
    return records


@pytest.mark.parametrize("seed", range(40))
def test_good_records_pass_and_broken_ones_do_not(seed: int) -> None:
    chance = random.Random(seed)
    header, payload = opened(some_records(chance))
    assert checked(header, payload) is None
    for _ in range(60):
        broken = bytearray(payload)
        for _ in range(chance.choice([1, 1, 2])):
            broken[chance.randrange(len(broken))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        assert (checked(header, bytes(broken)) is None) == is_readable(header, bytes(broken))


@pytest.mark.parametrize("size", [0, 60, 61, 62, 63, 64, 65, 66, 100, 8180, 8191, 8192])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_every_byte_of_records_of_one_size_counts_as_it_does_to_a_reader(size: int, key: bytes | None) -> None:
    header, payload = opened([Record(bytes(size), key, 1_000 + number) for number in range(100)])
    assert checked(header, payload) is None
    record_bytes = len(payload) // 100
    for place in {*range(12), record_bytes - 1, record_bytes - 2, record_bytes}:
        for byte in (0, 1, 3, 0x7F, 0x80, 0x81, 0xFF):
            broken = bytearray(payload)
            broken[50 * record_bytes + place] = byte
            assert (checked(header, bytes(broken)) is None) == is_readable(header, bytes(broken)), (place, byte)


def test_many_small_records_pass() -> None:
    header, payload = opened([Record(b"%d" % number) for number in range(20_000)])
    assert checked(header, payload) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (-1, "end at byte"),
        (1, "header counts 101"),
        (1_000_000, "cannot hold"),
    ],
)
def test_count_that_lies_is_told(change: int, words: str) -> None:
    header, payload = opened([Record(b"value", b"key") for _ in range(100)])
    lying = msgspec.structs.replace(header, record_count=header.record_count + change)
    problem = checked(lying, payload)
    assert problem is not None
    assert words in problem.reason


def test_what_is_wrong_is_told() -> None:
    header, payload = opened([Record(b"value") for _ in range(3)])
    negative = payload.replace(b"\x01\x0a", b"\x01\x09", 1)
    problem = checked(header, negative)
    assert problem == BatchProblem("record 0 of 3: a field has -5 bytes")


def test_record_that_goes_past_the_end_is_told() -> None:
    header, payload = opened([Record(b"value") for _ in range(3)])
    problem = checked(header, payload[:-1])
    assert problem == BatchProblem("record 3 of 3 goes on past the 35 bytes of its batch")


def test_record_that_says_it_has_less_than_nothing_is_broken_behind_alike_ones_too() -> None:
    header, payload = opened([Record(b"value %d" % number) for number in range(5)])
    record_bytes = len(payload) // 5
    broken = payload[: 2 * record_bytes] + b"\x01" + payload[2 * record_bytes + 1 :]
    assert isinstance(checked(header, broken), BatchProblem)


ENDLESS = {
    "a record of headers": [Record(b"x", headers=(("", None),) * 100_000)],
    "records of headers": [Record(b"x", headers=(("", None),) * 100) for _ in range(1_000)],
    "alike by twos": [
        Record(bytes(90 - 2 * (n % 3 == 0)), headers=(("", None),) * (n % 3 == 0)) for n in range(10_000)
    ],
    "long keys": [Record(b"x", bytes(100)) for _ in range(10_000)],
}


@pytest.mark.parametrize("name", ENDLESS)
def test_records_that_would_be_read_for_long_are_left_to_who_has_time(name: str) -> None:
    header, payload = opened(ENDLESS[name])
    assert isinstance(check_some(header, payload, len(payload), reads_max=2_000), TooLong)
    assert check_records(header, payload, len(payload)) is None


def test_ordinary_records_are_never_too_long() -> None:
    header, payload = opened([Record(bytes(100), b"key %06d" % number) for number in range(10_000)])
    assert check_some(header, payload, len(payload), reads_max=50) is None


def test_columns_that_end_soon_are_not_looked_at_as_deep_as_the_batch() -> None:
    class Counting(bytes):
        looked_at = 0

        def __getitem__(self, place):  # type: ignore[no-untyped-def]
            found = super().__getitem__(place)
            Counting.looked_at += len(found) if isinstance(place, slice) else 1
            return found

    header, payload = opened(ENDLESS["alike by twos"])
    assert check_records(header, Counting(payload), len(payload)) is None
    assert Counting.looked_at < 2 * len(payload)
