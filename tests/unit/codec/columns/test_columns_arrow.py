"""Arrow columns must be the columns that `read_columns` makes, whatever stands in the batches."""

from __future__ import annotations

import sys
from random import Random

import polars as pl
import pytest

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch, patch_log_append_time
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.columns.arrow import ArrowColumns, read_arrow
from penstock.codec.columns.frame import read_columns
from support.codec.record_samples import BASE_MS, HOSTILE_BATCHES, random_batch, shaped_records

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

ALWAYS, NEVER = 0, sys.maxsize
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(*parts: bytes | bytearray) -> list[tuple[object, ...]]:
    """Read with headers and without, by vectors and by the loop, all compared with `read_columns`."""
    expected = read_columns(b"".join(parts), vectored_rows_min=NEVER)
    assert isinstance(expected, pl.DataFrame), expected
    for wants_headers in (True, False):
        for vectored_rows_min in (ALWAYS, NEVER):
            found = read_arrow(parts, wants_headers=wants_headers, vectored_rows_min=vectored_rows_min)
            assert isinstance(found, ArrowColumns), found
            assert_equal(found, expected, wants_headers=wants_headers)
    return expected.rows()


def assert_equal(found: ArrowColumns, expected: pl.DataFrame, *, wants_headers: bool) -> None:
    assert found.offset.tolist() == expected["offset"].to_list()
    assert found.timestamp_ms.tolist() == expected["timestamp_ms"].to_list()
    for name, column in (("key", found.key), ("value", found.value)):
        column.validate(full=True)
        assert column.type == pa.binary()
        assert column.to_pylist() == expected[name].to_list()
    if not wants_headers:
        assert found.headers is None
        return
    assert found.headers is not None
    found.headers.validate(full=True)
    assert found.headers.type == HEADERS
    assert found.headers.to_pylist() == expected["headers"].to_list()


@pytest.mark.parametrize("seed", range(60))
def test_random_batches_in_one_part_or_several_are_the_same_rows(seed: int) -> None:
    random = Random(seed)
    parts = []
    for _ in range(random.randint(1, 3)):
        parts.append(b"".join(random_batch(random, random.randrange(1000))[0] for _ in range(random.randint(1, 3))))
    rows(*parts)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("null_keys", ["none", "some", "all"])
@pytest.mark.parametrize("null_values", ["none", "some", "all"])
@pytest.mark.parametrize("header_counts", [(0,), (2,), (0, 1, 2)])
def test_every_shape_is_read(codec: Codec, null_keys: str, null_values: str, header_counts: tuple[int, ...]) -> None:
    records = shaped_records(null_keys, null_values, header_counts)
    assert len(rows(build_batch(records, codec=codec, base_offset=1000))) == 40


def test_nothing_in_nothing_out() -> None:
    assert rows() == rows(b"") == rows(build_batch([], last_offset_delta=5)) == []


def test_control_batches_and_those_without_records_are_left_out() -> None:
    control = build_batch([Record(b"\x00" * 6, b"\x00" * 4)], base_offset=1, is_control=True)
    empty = build_batch([], base_offset=2, last_offset_delta=3)
    found = rows(build_batch([Record(b"a")]) + control, empty + build_batch([Record(b"b")], base_offset=6))
    assert [(row[0], row[3]) for row in found] == [(0, b"a"), (6, b"b")]


def test_holes_keep_their_place() -> None:
    records = [Record(b"a", offset_delta=2), Record(b"b", offset_delta=70_000), Record(b"c", offset_delta=2_000_000)]
    batch = build_batch(records, base_offset=5, last_offset_delta=2_000_005)
    assert [row[0] for row in rows(batch)] == [7, 70_005, 2_000_005]


def test_log_append_time_is_honoured_batch_by_batch() -> None:
    plain = build_batch([Record(b"a", timestamp_ms=10), Record(b"b", timestamp_ms=20)])
    dated = build_batch([Record(b"c", timestamp_ms=30), Record(b"d", timestamp_ms=40)], base_offset=2)
    header = check_batch(dated)
    assert isinstance(header, BatchHeader)
    patch_log_append_time(dated, 0, header, 999)
    assert [row[1] for row in rows(plain, dated)] == [10, 20, 999, 999]
    assert [row[1] for row in rows(dated)] == [999, 999]


def test_timestamps_far_apart_and_missing_are_read() -> None:
    times = [BASE_MS, -1, 0, BASE_MS + 1, 2**41, -(2**50), 2**60]
    for some in (times, times[:5], times[:1], [0, 2**34], [0, 2**48]):
        batch = build_batch([Record(b"v", timestamp_ms=time) for time in some] * 30)
        assert [row[1] for row in rows(batch)] == some * 30


@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 64, 8191, 8192, 1_048_576])
def test_field_sizes_at_the_edges_of_varints_are_read(size: int) -> None:
    rows(build_batch([Record(b"v" * size, b"k" * size, 1, (("h" * size, b"w" * size),)), Record(b"v", b"k", 1)]))


def test_the_last_record_of_all_may_be_the_shortest_there_is() -> None:
    assert rows(build_batch([Record(None, None)]))[0][2:4] == (None, None)


def test_a_number_of_nine_bytes_is_not_mistaken_for_one_of_eight() -> None:
    # Shifted by one byte the second record reads without a fault: offset 16, key "", value null, one empty header.
    rows(build_batch([Record(b"a", timestamp_ms=0), Record(b"\x00", timestamp_ms=2**60)], last_offset_delta=100))


def test_varints_written_longer_than_need_be_are_read() -> None:
    batch = build_batch([Record(b"v"), Record(b"w")])
    at = 61
    assert batch[at] == 14
    longer = batch[:at] + b"\x8e\x00" + batch[at + 1 :]
    longer[8:12] = (len(longer) - 12).to_bytes(4, "big")
    assert [row[3] for row in rows(longer)] == [b"v", b"w"]


@pytest.mark.parametrize("batch", HOSTILE_BATCHES.values(), ids=HOSTILE_BATCHES.keys())
def test_hostile_content_is_the_problem_that_the_loop_finds(batch: bytearray) -> None:
    good = build_batch([Record(b"v", headers=(("a", b"b"),)), Record(b"w")])
    for parts in ([batch], [good, batch, good]):
        expected = read_columns(b"".join(parts), vectored_rows_min=NEVER)
        assert isinstance(expected, BatchProblem)
        assert read_arrow(parts, wants_headers=True, vectored_rows_min=ALWAYS) == expected


def test_random_damage_gives_what_the_loop_gives() -> None:
    random = Random(17)
    damaged_count = 0
    for _ in range(60):
        data = bytearray().join(random_batch(random)[0] for _ in range(random.randint(1, 3)))
        for _ in range(4):
            damaged = bytearray(data)
            for _ in range(random.choice((1, 1, 2, 5))):
                at = random.randrange(61, len(damaged)) if len(damaged) > 61 else random.randrange(len(damaged))
                damaged[at] = random.choice((0, 1, 2, 127, 128, 255, random.randrange(256)))
            expected = read_columns(damaged, vectored_rows_min=NEVER)
            found = read_arrow([damaged], wants_headers=True, vectored_rows_min=ALWAYS)
            without = read_arrow([damaged], wants_headers=False, vectored_rows_min=ALWAYS)
            if isinstance(expected, BatchProblem):
                damaged_count += 1
                assert found == expected
            else:
                assert isinstance(found, ArrowColumns)
                assert isinstance(without, ArrowColumns)
                assert_equal(found, expected, wants_headers=True)
                assert_equal(without, expected, wants_headers=False)
    assert 20 < damaged_count < 220


def test_headers_that_are_not_wanted_are_not_looked_at() -> None:
    batch = build_batch([Record(b"v", b"k", headers=(("ab", b"x"),))] * 100)
    at = batch.index(b"ab") - 1
    batch[at] = 0x7F  # no name is -64 bytes long
    assert isinstance(read_arrow([batch], wants_headers=True), BatchProblem)
    found = read_arrow([batch], wants_headers=False)
    assert isinstance(found, ArrowColumns)
    assert found.value.to_pylist() == [b"v"] * 100
