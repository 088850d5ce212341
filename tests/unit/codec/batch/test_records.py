"""Records in and out of batches; kafka-python and aiokafka are the judges of what a batch is."""

from __future__ import annotations

from random import Random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import (
    BatchHeader,
    BatchProblem,
    check_batch,
    patch,
    patch_log_append_time,
    read_header,
)
from penstock.codec.batch.records import Record, StoredRecord, build_batch, read_records
from penstock.codec.batch.varint import VarintError, encode_varint, read_varint, varint_table
from support.codec.record_samples import BASE_MS, GOOD_RECORD, HOSTILE_BATCHES, batch_of, random_batch, random_records

SHAPES = {
    "plain": [Record(b"value", b"key", BASE_MS)],
    "nulls": [Record(None, None, BASE_MS), Record(b"v", None, BASE_MS), Record(None, b"k", BASE_MS)],
    "empty fields": [Record(b"", b"", BASE_MS)],
    "headers": [Record(b"v", None, BASE_MS, (("a", b"b"), ("", None), ("ключ", b"")))],
    "mixed headers": [Record(b"v", None, BASE_MS, (("a", b"b"),) * count) for count in (0, 3, 1)],
    "time goes back": [Record(b"v", None, BASE_MS - 1000 * index) for index in range(3)],
    "large": [Record(b"v" * 100_000, b"k" * 9000, BASE_MS)],
    "many": [Record(b"v%d" % index, b"k%d" % index, BASE_MS + index) for index in range(10_000)],
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def records(request: pytest.FixtureRequest) -> list[Record]:
    return request.param


def stored(records: list[Record], base_offset: int = 0) -> list[StoredRecord]:
    """What reading must give for records that were built without or with holes."""
    result = []
    next_delta = 0
    for record in records:
        delta = next_delta if record.offset_delta is None else record.offset_delta
        result.append(StoredRecord(base_offset + delta, record.timestamp_ms, record.key, record.value, record.headers))
        next_delta = delta + 1
    return result


def read(batch: bytes | bytearray | memoryview, position: int = 0) -> list[StoredRecord]:
    result = read_records(batch, position)
    assert not isinstance(result, BatchProblem), result
    return result


def refused(batch: bytes | bytearray, **limits: int) -> BatchProblem:
    result = read_records(batch, **limits)
    assert isinstance(result, BatchProblem), result
    return result


def as_theirs(records: list[Record]) -> list[tuple[object, ...]]:
    return [
        (record.offset, record.timestamp_ms, record.key, record.value, list(record.headers))
        for record in stored(records)
    ]


@pytest.mark.parametrize("codec", Codec)
def test_what_is_built_is_read_back(codec: Codec, records: list[Record]) -> None:
    batch = build_batch(records, codec=codec, base_offset=500)
    assert isinstance(check_batch(batch), BatchHeader)
    assert read(batch) == stored(records, 500)


@pytest.mark.parametrize("codec", Codec)
def test_kafka_python_reads_what_is_built(codec: Codec, records: list[Record]) -> None:
    theirs = DefaultRecordBatch(bytes(build_batch(records, codec=codec)))
    assert theirs.validate_crc()
    rows = [(one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in theirs]
    assert rows == as_theirs(records)


@pytest.mark.parametrize("codec", Codec)
def test_aiokafka_reads_what_is_built(codec: Codec, records: list[Record]) -> None:
    theirs = AioBatch(bytes(build_batch(records, codec=codec)))
    assert theirs.validate_crc()
    rows = [(one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in theirs]
    assert rows == as_theirs(records)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("builder_class", [DefaultRecordBatchBuilder, AioBuilder])
def test_what_others_build_is_read(builder_class: type, codec: Codec, records: list[Record]) -> None:
    batch = their_batch(builder_class, codec, records)
    assert isinstance(check_batch(batch), BatchHeader)
    assert read(batch) == stored(records)


@pytest.mark.parametrize("builder_class", [DefaultRecordBatchBuilder, AioBuilder])
def test_uncompressed_batches_are_the_same_byte_for_byte(builder_class: type, records: list[Record]) -> None:
    theirs = their_batch(builder_class, Codec.NONE, records)
    ours = build_batch(records, producer_id=77, producer_epoch=5, base_sequence=9, is_transactional=True)
    # Outside the checksum, and every client writes something else there.
    header = check_batch(theirs)
    assert isinstance(header, BatchHeader)
    patch(theirs, 0, header, base_offset=0, leader_epoch=-1)
    assert ours == theirs


def their_batch(builder_class: type, codec: Codec, records: list[Record]) -> bytearray:
    builder = builder_class(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=77,
        producer_epoch=5,
        base_sequence=9,
        batch_size=10_000_000,
    )
    for offset, record in enumerate(records):
        assert builder.append(offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytearray(builder.build())


@pytest.mark.parametrize("seed", range(60))
def test_random_batches_come_back(seed: int) -> None:
    batch, records = random_batch(Random(seed), base_offset=seed)
    assert read(b"xyz" + batch, 3) == stored(records, seed)


def test_header_fields_are_what_was_asked_for() -> None:
    batch = build_batch(
        [Record(b"v", timestamp_ms=5), Record(b"v", timestamp_ms=3)],
        codec=Codec.ZSTD,
        base_offset=10,
        leader_epoch=4,
        producer_id=1,
        producer_epoch=2,
        base_sequence=3,
        is_transactional=True,
        is_control=True,
    )
    header = check_batch(batch)
    assert isinstance(header, BatchHeader)
    assert (header.base_offset, header.last_offset, header.leader_epoch, header.record_count) == (10, 11, 4, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1, 2, 3)
    assert (header.base_timestamp, header.max_timestamp) == (5, 5)
    assert (header.codec, header.is_transactional, header.is_control) == (Codec.ZSTD, True, True)


def test_holes_are_kept() -> None:
    batch = build_batch([Record(b"a", offset_delta=3), Record(b"b"), Record(b"c", offset_delta=900)], base_offset=10)
    assert [record.offset for record in read(batch)] == [13, 14, 910]


def test_a_batch_may_end_in_holes() -> None:
    batch = build_batch([Record(b"a")], last_offset_delta=7)
    header = check_batch(batch)
    assert isinstance(header, BatchHeader)
    assert (header.record_count, header.next_offset) == (1, 8)
    assert [record.offset for record in read(batch)] == [0]


@pytest.mark.parametrize("codec", Codec)
def test_a_batch_may_have_no_records(codec: Codec) -> None:
    batch = build_batch([], codec=codec, last_offset_delta=2)
    assert isinstance(check_batch(batch), BatchHeader)
    assert read(batch) == []


def test_log_append_time_is_every_record_s_time() -> None:
    batch = build_batch([Record(b"a", timestamp_ms=1), Record(b"b", timestamp_ms=2)])
    header = check_batch(batch)
    assert isinstance(header, BatchHeader)
    patch_log_append_time(batch, 0, header, 1234)
    assert [record.timestamp_ms for record in read(batch)] == [1234, 1234]


def test_a_header_key_that_is_not_text_does_not_hide_the_record() -> None:
    batch = build_batch([Record(b"v", headers=(("ab", b"x"),))])
    at = batch.index(b"ab")
    batch[at : at + 2] = b"\xff\xfe"
    assert read(batch)[0].headers == (("\ufffd\ufffd", b"x"),)


# A checksum that is right over content that is wrong.


@pytest.mark.parametrize("batch", HOSTILE_BATCHES.values(), ids=HOSTILE_BATCHES.keys())
def test_hostile_content_is_a_problem_and_not_a_crash(batch: bytearray) -> None:
    assert refused(batch).reason


def test_the_hostile_batches_are_hostile_by_one_thing_only() -> None:
    assert read(batch_of(GOOD_RECORD))[0].value == b"v"
    assert read(batch_of(GOOD_RECORD * 3, record_count=3))[2].value == b"v"


def test_a_batch_that_is_cut_off_is_truncated() -> None:
    assert refused(build_batch([Record(b"v")])[:-1]).is_truncated
    assert refused(b"").is_truncated


def test_unknown_codecs_are_refused() -> None:
    for codec in (5, 6, 7):
        batch = build_batch([Record(b"v")])
        batch[22] = codec
        assert f"codec {codec}" in refused(batch).reason


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_batch_that_expands_beyond_the_limit_is_refused(codec: Codec) -> None:
    batch = build_batch([Record(bytes(1_000_000))], codec=codec)
    assert refused(batch, decompressed_bytes_max=999_999).reason
    assert len(read(batch)) == 1


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_content_that_is_not_of_its_codec_is_refused(codec: Codec) -> None:
    batch = build_batch([Record(b"v")])
    batch[22] = codec
    assert refused(batch).reason


def test_bases_at_the_end_of_64_bits_are_refused() -> None:
    for field in (0, 27):
        batch = build_batch([Record(b"v")])
        batch[field : field + 8] = (2**63 - 1).to_bytes(8, "big")
        assert isinstance(read_header(batch), BatchHeader)
        assert refused(batch).reason


def test_random_damage_gives_records_or_a_problem() -> None:
    random = Random(11)
    for _ in range(300):
        batch, _ = random_batch(random)
        for _ in range(10):
            damaged = bytearray(batch)
            for _ in range(random.randint(1, 4)):
                damaged[random.randrange(len(damaged))] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
            result = read_records(damaged, decompressed_bytes_max=10_000_000)
            assert isinstance(result, list | BatchProblem)


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_varints_come_back(number: int) -> None:
    encoded = encode_varint(number)
    assert read_varint(b"x" + encoded + b"x", 1) == (number, 1 + len(encoded))


def test_the_varint_table_is_what_encoding_gives() -> None:
    assert list(varint_table()) == [encode_varint(number) for number in range(len(varint_table()))]


def test_varints_are_refused_beyond_64_bits_and_beyond_the_end() -> None:
    with pytest.raises(VarintError):
        read_varint(b"\xff" * 11, 0)
    with pytest.raises(VarintError):
        read_varint(b"\xff" * 9 + b"\x02", 0)
    with pytest.raises(IndexError):
        read_varint(b"\xff\xff", 0)


def test_samples_cover_every_shape() -> None:
    seen = [random_records(Random(seed), 20) for seed in range(60)]
    for has in (
        lambda record: record.key is None,
        lambda record: record.value is None,
        lambda record: record.value == b"",
        lambda record: len(record.headers) > 10,
        lambda record: len(record.value or b"") > 8191,
    ):
        assert any(has(record) for records in seen for record in records)
