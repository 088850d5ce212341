"""Columns into record batches for their partitions: every row once, in order, where it belongs."""

from __future__ import annotations

import polars as pl
import pytest

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import StoredRecord, read_records
from penstock.domain.partitioner import partition_for_key
from penstock.pipeline.sink.batches import TargetBatch, TargetError, build, by_topic

pytest.importorskip("numpy", reason="the extra `spark` is not installed")

PARTITIONS = 3


def make(frame: pl.DataFrame, codec: Codec = Codec.NONE) -> list[TargetBatch]:
    made = build("t", frame, partition_count=PARTITIONS, keyless=1, timestamp_ms=123, codec=codec)
    return list(made)


def records_of(batch: TargetBatch) -> list[StoredRecord]:
    records = read_records(batch.data)
    assert isinstance(records, list | tuple)
    assert len(records) == batch.record_count
    return list(records)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_rows_of_a_partition_stay_in_order(codec: Codec) -> None:
    count = 20_000
    keys = [f"k{number % 50}".encode() for number in range(count)]
    frame = pl.DataFrame({"key": keys, "value": [str(number).encode() for number in range(count)]})
    seen: list[int] = []
    for partition in range(PARTITIONS):
        found = [row for batch in make(frame, codec) if batch.partition == partition for row in records_of(batch)]
        numbers = [int(row.value or b"") for row in found]
        assert numbers == sorted(numbers)
        assert all(row.key is not None and partition_for_key(row.key, PARTITIONS) == partition for row in found)
        assert {row.timestamp_ms for row in found} <= {123}
        seen += numbers
    assert sorted(seen) == list(range(count))


def test_rows_with_neither_key_nor_number_go_together() -> None:
    (batch,) = make(pl.DataFrame({"value": [b"a", None, b"c"]}))
    assert (batch.topic, batch.partition) == ("t", 1)
    assert [record.value for record in records_of(batch)] == [b"a", None, b"c"]


def test_headers_come_along() -> None:
    kind = pl.List(pl.Struct({"key": pl.String, "value": pl.Binary}))
    headers = pl.Series("headers", [[{"key": "a", "value": b"1"}], None], dtype=kind)
    (batch,) = make(pl.DataFrame({"value": [b"x", b"y"], "headers": headers}))
    assert [tuple(record.headers) for record in records_of(batch)] == [(("a", b"1"),), ()]


@pytest.mark.parametrize("wrong", [-1, PARTITIONS])
def test_a_partition_that_is_not_there_is_told(wrong: int) -> None:
    frame = pl.DataFrame({"value": [b"x"], "partition": pl.Series([wrong], dtype=pl.Int32)})
    with pytest.raises(TargetError, match=f"has no partition {wrong}"):
        make(frame)


def test_each_topic_gets_its_rows_and_the_option_goes_first() -> None:
    frame = pl.DataFrame({"value": [b"1", b"2", b"3"], "topic": ["b", "a", "b"]})
    found = {topic: part["value"].to_list() for topic, part in by_topic(frame, None)}
    assert found == {"b": [b"1", b"3"], "a": [b"2"]}
    ((topic, part),) = by_topic(frame, "all")
    assert (topic, part.height) == ("all", 3)
    with pytest.raises(TargetError, match="topic is null"):
        by_topic(pl.DataFrame({"value": [b"1"], "topic": [None]}), None)
