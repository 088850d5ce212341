"""Columns by vectors and columns by the loop must be the same columns, and must survive the way back."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import polars as pl
import pytest
from kafka.record.default_records import DefaultRecordBatch

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch, patch_log_append_time, read_header
from penstock.codec.batch.records import Headers, Record, build_batch, read_records
from penstock.codec.columns.frame import build_batches_from_columns, read_columns
from penstock.codec.columns.write import BATCH_RECORDS_MAX, sequence_after
from support.codec.record_samples import (
    BASE_MS,
    HOSTILE_BATCHES,
    random_batch,
    random_records,
    shaped_records,
)

ALWAYS, NEVER = 0, sys.maxsize

SCHEMA = {
    "offset": pl.Int64,
    "timestamp_ms": pl.Int64,
    "key": pl.Binary,
    "value": pl.Binary,
    "headers": pl.List(pl.Struct({"key": pl.String, "value": pl.Binary})),
}


def columns(data: bytes | bytearray) -> pl.DataFrame:
    """Read both ways."""
    by_vectors = read_columns(data, vectored_rows_min=ALWAYS)
    by_loop = read_columns(data, vectored_rows_min=NEVER)
    assert isinstance(by_vectors, pl.DataFrame), by_vectors
    assert isinstance(by_loop, pl.DataFrame), by_loop
    assert by_vectors.schema == by_loop.schema == SCHEMA
    assert by_vectors.equals(by_loop)
    return by_vectors


def problem(data: bytes | bytearray) -> BatchProblem:
    by_vectors = read_columns(data, vectored_rows_min=ALWAYS)
    by_loop = read_columns(data, vectored_rows_min=NEVER)
    assert isinstance(by_vectors, BatchProblem), by_vectors
    assert by_vectors == by_loop
    return by_vectors


def rows_of(*batches: bytearray) -> list[tuple[object, ...]]:
    """What the reader of records says."""
    rows: list[tuple[object, ...]] = []
    for batch in batches:
        records = read_records(batch)
        assert not isinstance(records, BatchProblem), records
        for record in records:
            headers = [{"key": name, "value": value} for name, value in record.headers]
            rows.append((record.offset, record.timestamp_ms, record.key, record.value, headers))
    return rows


# Reading


@pytest.mark.parametrize("seed", range(80))
def test_both_ways_agree_on_random_batches(seed: int) -> None:
    random = Random(seed)
    batches = []
    base_offset = 0
    for _ in range(random.randint(1, 5)):
        batch, _ = random_batch(random, base_offset)
        header = read_header(batch)
        assert isinstance(header, BatchHeader)
        base_offset = header.next_offset
        batches.append(batch)
    assert columns(b"".join(batches)).rows() == rows_of(*batches)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("null_keys", ["none", "some", "all"])
@pytest.mark.parametrize("null_values", ["none", "some", "all"])
@pytest.mark.parametrize("header_counts", [(0,), (2,), (0, 1, 2)])
def test_every_shape_is_read(codec: Codec, null_keys: str, null_values: str, header_counts: tuple[int, ...]) -> None:
    records = shaped_records(null_keys, null_values, header_counts)
    batch = build_batch(records, codec=codec, base_offset=1000)
    assert columns(batch).rows() == rows_of(batch)


def test_nothing_in_nothing_out() -> None:
    assert columns(b"").is_empty()
    assert columns(build_batch([], last_offset_delta=5)).is_empty()


def test_batches_without_records_among_others_are_stepped_over() -> None:
    full = build_batch([Record(b"a"), Record(b"b")], base_offset=10)
    empty = build_batch([], base_offset=12, last_offset_delta=3)
    last = build_batch([Record(b"c")], base_offset=16)
    assert columns(full + empty + last)["offset"].to_list() == [10, 11, 16]


def test_control_batches_are_left_out() -> None:
    data = build_batch([Record(b"a")]) + build_batch([Record(b"\x00" * 6, b"\x00" * 4)], base_offset=1, is_control=True)
    assert columns(data + build_batch([Record(b"b")], base_offset=2))["value"].to_list() == [b"a", b"b"]


def test_holes_keep_their_place() -> None:
    records = [Record(b"a", offset_delta=2), Record(b"b", offset_delta=70_000), Record(b"c", offset_delta=2_000_000)]
    batch = build_batch(records, base_offset=5, last_offset_delta=2_000_005)
    assert columns(batch)["offset"].to_list() == [7, 70_005, 2_000_005]


def test_log_append_time_is_honoured_batch_by_batch() -> None:
    plain = build_batch([Record(b"a", timestamp_ms=10), Record(b"b", timestamp_ms=20)])
    dated = build_batch([Record(b"c", timestamp_ms=30), Record(b"d", timestamp_ms=40)], base_offset=2)
    header = check_batch(dated)
    assert isinstance(header, BatchHeader)
    patch_log_append_time(dated, 0, header, 999)
    assert columns(plain + dated)["timestamp_ms"].to_list() == [10, 20, 999, 999]
    assert columns(dated)["timestamp_ms"].to_list() == [999, 999]


def test_timestamps_far_apart_and_missing_are_read() -> None:
    times = [BASE_MS, -1, 0, BASE_MS + 1, 2**41, -(2**50), 2**60]
    batch = build_batch([Record(b"v", timestamp_ms=time) for time in times] * 300)
    assert columns(batch)["timestamp_ms"].to_list() == times * 300


@pytest.mark.parametrize("size", [0, 1, 7, 8, 63, 64, 8191, 8192, 1_048_576])
def test_field_sizes_at_the_edges_of_varints_are_read(size: int) -> None:
    batch = build_batch([Record(b"v" * size, b"k" * size, 1, (("h" * size, b"w" * size),)), Record(b"v", b"k", 1)])
    assert columns(batch).rows() == rows_of(batch)


def test_more_headers_than_vectors_take_are_read() -> None:
    few = build_batch([Record(b"v", headers=(("a", b"b"),))])
    many = build_batch([Record(b"v", headers=tuple((f"h{index}", b"x") for index in range(200)))], base_offset=1)
    assert columns(few + many + few).rows() == rows_of(few, many, few)


def test_header_keys_that_are_not_text_are_read_as_the_loop_reads_them() -> None:
    good = build_batch([Record(b"v", headers=(("ab", b"x"),))])
    bad = build_batch([Record(b"v", headers=(("ab", b"x"),)), Record(b"w")], base_offset=1)
    at = bad.index(b"ab")
    bad[at : at + 2] = b"\xff\xfe"
    read = columns(good + bad)["headers"].to_list()
    assert [[header["key"] for header in row] for row in read] == [["ab"], ["\ufffd\ufffd"], []]


def test_varints_written_longer_than_need_be_are_read() -> None:
    batch = build_batch([Record(b"v"), Record(b"w")])
    # The first record's size, 7 in one byte, written in two.
    at = 61
    assert batch[at] == 14
    longer = batch[:at] + b"\x8e\x00" + batch[at + 1 :]
    longer[8:12] = (len(longer) - 12).to_bytes(4, "big")
    assert columns(longer)["value"].to_list() == [b"v", b"w"]


def test_many_rows_go_by_vectors_on_their_own() -> None:
    batch = build_batch([Record(b"v%d" % index, None, BASE_MS + index) for index in range(5000)])
    assert columns(batch).equals(read_columns(batch))


def test_a_number_of_nine_bytes_is_not_mistaken_for_one_of_eight() -> None:
    # Shifted by one byte the second record reads without a fault: offset 16, key "", value null, one empty header.
    records = [Record(b"a", timestamp_ms=0), Record(b"\x00", timestamp_ms=2**60)]
    batch = build_batch(records, last_offset_delta=100)
    assert columns(batch).rows() == rows_of(batch)


# Damage


@pytest.mark.parametrize("batch", HOSTILE_BATCHES.values(), ids=HOSTILE_BATCHES.keys())
def test_hostile_content_is_the_same_problem_both_ways(batch: bytearray) -> None:
    good = build_batch([Record(b"v", headers=(("a", b"b"),)), Record(b"w")])
    assert problem(batch).reason
    assert problem(good + batch + good).reason.startswith(f"batch at byte {len(good)}: ")


def test_a_bad_batch_is_named_by_its_place_and_nothing_is_left_out() -> None:
    good = build_batch([Record(b"v")])
    bad = build_batch([Record(b"v", b"key")])
    bad[bad.index(b"key") - 1] = 100
    assert problem(good + bad + good).reason.startswith(f"batch at byte {len(good)}: ")


def test_a_record_size_beyond_the_batch_is_a_problem() -> None:
    for forged in (b"\xfe\xff\xff\xff\x0f", b"\xfe" + b"\xff" * 8 + b"\x01", b"\x7f"):
        batch = build_batch([Record(b"v" * 20), Record(b"w")])
        damaged = batch[:61] + forged + batch[61 + len(forged) :]
        assert problem(damaged).reason


def test_bytes_after_the_last_record_are_a_problem() -> None:
    batch = build_batch([Record(b"v"), Record(b"w")])
    batch[57:61] = (1).to_bytes(4, "big")
    assert problem(batch).reason
    batch[57:61] = (0).to_bytes(4, "big")
    assert problem(batch).reason


def test_a_cut_off_batch_is_truncated() -> None:
    batch = build_batch([Record(b"v")])
    assert problem(batch + batch[:-1]).is_truncated
    assert problem(batch + batch[:30]).is_truncated


def test_what_is_decompressed_is_bounded_over_all_batches() -> None:
    batch = build_batch([Record(bytes(400_000))], codec=Codec.ZSTD)
    assert isinstance(read_columns(batch * 2, decompressed_bytes_max=1_000_000), pl.DataFrame)
    assert isinstance(read_columns(batch * 3, decompressed_bytes_max=1_000_000), BatchProblem)


@pytest.mark.heavy
def test_random_damage_gives_the_same_answer_both_ways() -> None:
    random = Random(17)
    damaged_count = 0
    for _ in range(60):
        data = bytearray().join(random_batch(random)[0] for _ in range(random.randint(1, 3)))
        for _ in range(5):
            damaged = bytearray(data)
            for _ in range(random.choice((1, 1, 2, 5))):
                at = random.randrange(61, len(damaged)) if len(damaged) > 61 else random.randrange(len(damaged))
                damaged[at] = random.choice((0, 1, 2, 127, 128, 255, random.randrange(256)))
            by_vectors = read_columns(damaged, decompressed_bytes_max=10_000_000, vectored_rows_min=ALWAYS)
            by_loop = read_columns(damaged, decompressed_bytes_max=10_000_000, vectored_rows_min=NEVER)
            if isinstance(by_loop, BatchProblem):
                damaged_count += 1
                assert by_vectors == by_loop
            else:
                assert isinstance(by_vectors, pl.DataFrame)
                assert by_vectors.equals(by_loop)
    assert 30 < damaged_count < 270


# Writing


def written(*args: object, **options: object) -> list[bytearray]:
    batches = build_batches_from_columns(*args, **options)  # type: ignore[arg-type]
    for batch in batches:
        assert isinstance(check_batch(batch), BatchHeader)
    return batches


@pytest.mark.parametrize("seed", range(40))
def test_written_columns_are_the_batch_that_the_builder_makes(seed: int) -> None:
    random = Random(seed)
    codec = random.choice(tuple(Codec))
    records = [
        Record(record.value, record.key, record.timestamp_ms, record.headers)
        for record in random_records(random, random.choice((1, 2, 30)))
    ]
    batches = written(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp_ms for record in records],
        [record.headers for record in records],
        codec=codec,
        base_offset=seed,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        is_transactional=True,
    )
    assert batches == [
        build_batch(
            records,
            codec=codec,
            base_offset=seed,
            producer_id=1,
            producer_epoch=2,
            base_sequence=3,
            is_transactional=True,
        )
    ]


@pytest.mark.parametrize("seed", range(20))
def test_columns_come_back_after_reading_and_writing(seed: int) -> None:
    random = Random(seed)
    frame = columns(build_batch(random_records(random, 50)))
    batches = written(
        frame["key"], frame["value"], frame["timestamp_ms"], frame["headers"], codec=random.choice(tuple(Codec))
    )
    again = columns(b"".join(batches))
    assert again.drop("offset").equals(frame.drop("offset"))
    assert again["offset"].to_list() == list(range(50))


def test_columns_left_out_are_null_and_one_time_is_everybody_s() -> None:
    frame = columns(b"".join(written(None, [b"a", None], 77)))
    assert frame["key"].to_list() == [None, None]
    assert frame["value"].to_list() == [b"a", None]
    assert frame["timestamp_ms"].to_list() == [77, 77]
    assert frame["headers"].to_list() == [[], []]


def test_any_sequence_is_a_column() -> None:
    headers: tuple[Headers, ...] = ((("a", b"b"),), ())
    assert written((b"k", None), (b"v", b"w"), range(2), headers) == written(
        [b"k", None], [b"v", b"w"], [0, 1], list(headers)
    )


def test_kafka_python_reads_what_is_written() -> None:
    (batch,) = written([b"k", None], [b"v", None], [5, 4], [(("h", b"x"),), ()], codec=Codec.LZ4)
    theirs = [
        (one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in DefaultRecordBatch(bytes(batch))
    ]
    assert theirs == [(0, 5, b"k", b"v", [("h", b"x")]), (1, 4, None, None, [])]


@pytest.mark.parametrize("batch_bytes_max", [100, 1000, 10_000])
def test_batches_stay_below_their_limit_and_offsets_and_sequences_go_on(batch_bytes_max: int) -> None:
    random = Random(3)
    values = [random.randbytes(random.randrange(40)) for _ in range(1000)]
    batches = written(
        None,
        values,
        1,
        batch_bytes_max=batch_bytes_max,
        base_offset=500,
        producer_id=1,
        producer_epoch=0,
        base_sequence=7,
    )
    headers = [header for header in map(read_header, batches) if isinstance(header, BatchHeader)]
    assert max(map(len, batches)) <= max(batch_bytes_max, 61 + 40 + 10)
    assert len(batches) > 1
    assert [header.base_offset for header in headers[1:]] == [header.next_offset for header in headers[:-1]]
    assert [header.base_sequence - 7 for header in headers] == [header.base_offset - 500 for header in headers]
    assert columns(b"".join(batches))["value"].to_list() == values


def test_a_record_larger_than_a_batch_has_one_to_itself() -> None:
    batches = written(None, [b"a", b"b" * 5000, b"c"], 1, batch_bytes_max=1000)
    headers = [header for header in map(read_header, batches) if isinstance(header, BatchHeader)]
    assert [header.record_count for header in headers] == [1, 1, 1]
    assert columns(b"".join(batches))["value"].to_list() == [b"a", b"b" * 5000, b"c"]


def test_a_batch_has_no_more_records_than_the_table_has_offsets() -> None:
    batches = written(None, [b""] * (BATCH_RECORDS_MAX + 1))
    assert len(batches) == 2
    assert columns(b"".join(batches))["offset"].to_list() == list(range(BATCH_RECORDS_MAX + 1))


def test_nothing_makes_no_batches() -> None:
    assert written(None, []) == []
    assert written([], [], [], []) == []


def test_sequences_start_again_after_the_largest() -> None:
    assert sequence_after(2**31 - 2, 1) == 2**31 - 1
    assert sequence_after(2**31 - 1, 1) == 0
    assert sequence_after(-1, 5) == -1


def test_columns_of_different_lengths_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match="2 keys for 1 values"):
        written([b"a", b"b"], [b"c"])


def test_polars_is_not_imported_before_it_is_used() -> None:
    check = "import sys, penstock.codec.columns.frame; assert 'polars' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
