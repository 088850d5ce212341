from __future__ import annotations

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER
from aiokafka.record.control_record import ControlRecord as AiokafkaControlRecord
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from kafka.record import MemoryRecords as KafkaPythonRecords

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.control import EndMarker, build_marker, read_marker
from penstock.codec.batch.header import BatchHeader, BatchProblem, check_batch
from penstock.codec.batch.records import Record, build_batch

TIMESTAMP_MS = 1_700_000_000_000

# Written out by hand: producer 5 at epoch 2 commits, coordinator epoch 3. aiokafka and kafka-python take the checksum.
GOLDEN_COMMIT = bytes.fromhex(
    "00 00 00 00 00 00 00 2a"  # base offset 42
    "00 00 00 42"  # length 66
    "00 00 00 01"  # leader epoch 1
    "02"  # magic
    "c3 ab 43 b9"  # checksum
    "00 30"  # attributes: transactional, control
    "00 00 00 00"  # last offset delta
    "00 00 01 8b cf e5 68 00"  # base timestamp
    "00 00 01 8b cf e5 68 00"  # max timestamp
    "00 00 00 00 00 00 00 05"  # producer id
    "00 02"  # producer epoch
    "ff ff ff ff"  # base sequence: none
    "00 00 00 01"  # one record
    "20 00 00 00"  # of 16 bytes; attributes, timestamp delta, offset delta
    "08 00 00 00 01"  # key of 4 bytes: version 0, type 1
    "0c 00 00 00 00 00 03"  # value of 6 bytes: version 0, coordinator epoch 3
    "00"  # no headers
)


def marker_batch(*, is_commit: bool, coordinator_epoch: int = 3) -> bytes:
    return bytes(
        build_marker(
            EndMarker(is_commit, coordinator_epoch),
            producer_id=5,
            producer_epoch=2,
            timestamp_ms=TIMESTAMP_MS,
            base_offset=42,
            leader_epoch=1,
        )
    )


def control_batch(key: bytes | None, value: bytes | None) -> bytearray:
    return build_batch(
        [Record(value, key=key)], producer_id=5, producer_epoch=2, is_transactional=True, is_control=True
    )


def test_marker_is_what_kafka_writes_byte_for_byte() -> None:
    assert marker_batch(is_commit=True) == GOLDEN_COMMIT
    assert read_marker(GOLDEN_COMMIT) == EndMarker(True, 3)


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("coordinator_epoch", [0, 3, 2**31 - 1])
def test_marker_reads_back(is_commit: bool, coordinator_epoch: int) -> None:
    batch = marker_batch(is_commit=is_commit, coordinator_epoch=coordinator_epoch)
    header = check_batch(batch)
    assert isinstance(header, BatchHeader)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, -1)
    assert (header.record_count, header.last_offset_delta, header.max_timestamp) == (1, 0, TIMESTAMP_MS)
    assert read_marker(b"before" + batch, 6) == EndMarker(is_commit, coordinator_epoch)


@pytest.mark.parametrize("is_commit", [True, False])
def test_aiokafka_reads_the_marker(is_commit: bool) -> None:
    batch = AiokafkaRecords(marker_batch(is_commit=is_commit)).next_batch()
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert batch.is_transactional
    (record,) = batch
    assert AiokafkaControlRecord.parse(record.key) == (COMMIT_MARKER if is_commit else ABORT_MARKER)


@pytest.mark.parametrize("is_commit", [True, False])
def test_kafka_python_reads_the_marker(is_commit: bool) -> None:
    batch = KafkaPythonRecords(marker_batch(is_commit=is_commit)).next_batch()
    assert batch.validate_crc()
    assert batch.is_control_batch
    (record,) = batch
    assert (record.commit, record.abort, record.offset) == (is_commit, not is_commit, 42)


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert read_marker(control_batch(bytes([0, 1, 0, 1, 9, 9]), bytes([0, 1, 0, 0, 0, 7, 9]))) == EndMarker(True, 7)


def test_compressed_marker_is_read() -> None:
    record = Record(bytes([0, 0, 0, 0, 0, 7]), key=bytes([0, 0, 0, 0]))
    batch = build_batch([record], codec=Codec.GZIP, is_transactional=True, is_control=True)
    assert read_marker(batch) == EndMarker(False, 7)


def test_other_control_batches_end_nothing() -> None:
    assert read_marker(control_batch(bytes([0, 0, 0, 2]), b"leader")) is None
    emptied = build_batch([], is_transactional=True, is_control=True)
    assert read_marker(emptied) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, None), (b"", bytes(6)), (bytes(3), bytes(6)), (bytes(4), None), (bytes(4), bytes(5))],
)
def test_bytes_that_are_no_marker_are_a_problem(key: bytes | None, value: bytes | None) -> None:
    assert isinstance(read_marker(control_batch(key, value)), BatchProblem)


def test_cut_batches_and_data_batches_are_a_problem() -> None:
    assert isinstance(read_marker(GOLDEN_COMMIT[:40]), BatchProblem)
    assert isinstance(read_marker(GOLDEN_COMMIT[:70]), BatchProblem)
    assert isinstance(read_marker(build_batch([Record(b"data")])), BatchProblem)
