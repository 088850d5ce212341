"""Keys and places of records: the vectored way and the loop give the same, whatever the records are."""

from __future__ import annotations

from random import Random

import polars as pl
import pytest

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, BatchProblem, read_header
from penstock.codec.batch.records import Record, build_batch, read_payload
from penstock.codec.columns.keys import null_keys, read_keys
from penstock.codec.columns.read import Batch

BY_LOOP = 1 << 30
VECTORED = 0
BOTH_WAYS = pytest.mark.parametrize("vectored_rows_min", [BY_LOOP, VECTORED])


def opened(data: bytes | bytearray) -> Batch:
    header = read_header(data)
    assert isinstance(header, BatchHeader)
    payload = read_payload(data, 0, header)
    assert not isinstance(payload, BatchProblem)
    return Batch(0, header, payload)


def random_batch(random: Random, base_offset: int) -> Batch:
    records = []
    delta = 0
    for _ in range(random.randint(1, 20)):
        delta += random.choice((1, 1, 5))
        key = random.choice((None, b"", random.randbytes(random.choice((1, 8, 200)))))
        value = random.choice((None, b"", random.randbytes(random.choice((3, 100, 9_000)))))
        timestamp_ms = 1_700_000_000_000 - random.choice((0, 5, 90_000_000))
        headers = (("name", b"x"), ("other", None)) if random.random() < 0.3 else ()
        records.append(Record(value, key=key, timestamp_ms=timestamp_ms, headers=headers, offset_delta=delta))
    codec = random.choice((Codec.NONE, Codec.LZ4))
    return opened(build_batch(records, codec=codec, base_offset=base_offset, last_offset_delta=delta + 2))


def test_both_ways_give_the_same() -> None:
    random = Random(1)
    for _ in range(40):
        batches = [random_batch(random, number * 1_000) for number in range(random.randint(1, 6))]
        by_loop = read_keys(batches, vectored_rows_min=BY_LOOP)
        vectored = read_keys(batches, vectored_rows_min=VECTORED)
        assert by_loop.frame.equals(vectored.frame)
        assert by_loop.unreadable == vectored.unreadable == frozenset()
        sizes = vectored.frame.group_by("owner", maintain_order=True).agg(pl.col("size_bytes").sum())
        assert sizes["size_bytes"].to_list() == [len(batch.payload) for batch in batches]


@BOTH_WAYS
def test_batch_that_makes_no_sense_is_left_out_and_named(vectored_rows_min: int) -> None:
    good = opened(build_batch([Record(b"v", key=b"k")] * 3))
    lying = Batch(0, good.header, bytes(good.payload)[:-1] + b"\x02")
    found = read_keys([good, lying, good], vectored_rows_min=vectored_rows_min)
    assert found.unreadable in (frozenset(), frozenset({1}))
    cut = Batch(0, good.header, bytes(good.payload)[:-3])
    found = read_keys([good, cut, good], vectored_rows_min=vectored_rows_min)
    assert found.unreadable == {1}
    assert found.frame["owner"].to_list() == [0, 0, 0, 2, 2, 2]


@BOTH_WAYS
def test_records_that_belong_to_the_batch_before_are_not_taken_for_its_own(vectored_rows_min: int) -> None:
    """Three and one where the headers say two and two: the sum is right, and nothing else is."""
    two = opened(build_batch([Record(b"v", key=b"k")] * 2))
    three = opened(build_batch([Record(b"v", key=b"k")] * 3))
    one = opened(build_batch([Record(b"v", key=b"k")]))
    lying = [Batch(0, two.header, three.payload), Batch(0, two.header, one.payload)]
    assert read_keys(lying, vectored_rows_min=vectored_rows_min).unreadable == {0, 1}


@pytest.mark.parametrize("count", [3, 700])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_records_without_a_key_are_found(count: int, codec: Codec) -> None:
    keyed = [Record(b"v", key=b"")] * count
    whole = opened(build_batch(keyed, codec=codec))
    assert null_keys(whole.header, whole.payload) == ()
    for place in (0, count // 2, count - 1):
        records = list(keyed)
        records[place] = Record(b"v")
        batch = opened(build_batch(records, codec=codec))
        assert null_keys(batch.header, batch.payload) == (place,)
    keyless = opened(build_batch([Record(b"v")] * count, codec=codec))
    assert null_keys(keyless.header, keyless.payload) == tuple(range(count))
    assert null_keys(whole.header, bytes(whole.payload)[:-1]) is None
