"""A batch as queues see it: what is decoded, and that it is the same whether much or little of it is."""

from __future__ import annotations

from random import Random

import pytest

from penstock.broker.queue.batch import QueueBatch
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, read_header
from penstock.codec.batch.records import Record, build_batch, read_records
from penstock.domain.queue.lanes import lane_of


def batch_of(records: list[Record], codec: Codec = Codec.NONE) -> QueueBatch:
    data = memoryview(bytes(build_batch(records, base_offset=100, codec=codec)))
    header = read_header(data)
    assert isinstance(header, BatchHeader)
    return QueueBatch(header, data, is_left_out=False)


def offsets_of(batch: QueueBatch, lane: int) -> list[int]:
    return [offset for first, last in batch.lanes.get(lane, ()) for offset in range(first, last + 1)]


def some_records(chance: Random, count: int, special_share: float) -> list[Record]:
    records = []
    for number in range(count):
        headers: list[tuple[str, bytes | None]] = []
        if chance.random() < special_share:
            headers.append(("penstock-priority", chance.choice([b"0", b"4", b"9", b"x", b"10"])))
        if chance.random() < special_share:
            headers.append(("penstock-ttl-ms", chance.choice([b"5", b"never"])))
        value = b"penstock-priority" if chance.random() < 0.02 else b"%d" % number * chance.randrange(1, 30)
        records.append(Record(value=value, timestamp_ms=chance.randrange(1_000), headers=tuple(headers)))
    return records


@pytest.mark.parametrize("seed", range(40))
def test_lanes_and_times_are_those_of_the_messages(seed: int) -> None:
    chance = Random(seed)
    records = some_records(chance, chance.choice([1, 3, 40, 300]), chance.choice([0.0, 0.02, 0.5]))
    batch = batch_of(records, chance.choice([Codec.NONE, Codec.ZSTD]))
    expected: dict[int, list[int]] = {}
    times: list[tuple[int, int]] = []
    for offset, record in enumerate(records, start=100):
        headers = dict(record.headers)
        expected.setdefault(lane_of(headers.get("penstock-priority")), []).append(offset)
        if headers.get("penstock-ttl-ms") == b"5":
            times.append((offset, record.timestamp_ms + 5))
    assert {lane: offsets_of(batch, lane) for lane in batch.lanes} == expected
    assert list(batch.expiries) == times


@pytest.mark.parametrize("seed", range(20))
def test_some_messages_are_those_that_all_hold(seed: int) -> None:
    chance = Random(seed)
    records = some_records(chance, 200, 0.02)
    batch = batch_of(records)
    everything = read_records(batch.raw)
    assert isinstance(everything, list)
    for _ in range(20):
        first = chance.randrange(90, 310)
        last = first + chance.choice([-1, 0, 3, 30, 150])
        wanted = [record for record in everything if first <= record.offset <= last]
        batch.prepare(first, last)
        assert list(batch.between(first, last)) == wanted
        assert not wanted or batch.is_prepared(first, last)


def test_few_of_many_are_decoded_alone() -> None:
    batch = batch_of(some_records(Random(1), 1_000, 0.01))
    assert len(batch.between(500, 509)) == 10
    assert not batch.is_decoded
    assert len(batch.between(100, 1_099)) == 1_000
    assert batch.is_decoded
