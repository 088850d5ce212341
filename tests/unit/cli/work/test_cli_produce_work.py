from __future__ import annotations

import pytest

from penstock.base.clock import ManualClock
from penstock.cli.work.bench.load import BatchTemplates, messages_per_batch, payload
from penstock.cli.work.produce import LineRouter, ProducePlan
from penstock.client.errors import PartitionMissingError
from penstock.client.kafka.producer import PartitionBatch
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import BatchHeader, check_batch
from penstock.codec.batch.records import StoredRecord, read_records
from penstock.domain.partitioner import partition_for_key


def router(
    *, key: bytes | None = None, separator: bytes | None = None, partition: int | None = None, codec: str = "none"
) -> LineRouter:
    plan = ProducePlan(
        topic="t",
        files=(),
        is_whole_file=False,
        key=key,
        key_separator=separator,
        headers=(("h", b"1"),),
        partition=partition,
        compression=codec,
        acks=-1,
        batch_lines_max=10,
    )
    return LineRouter(plan, 4, ManualClock(now_ms=1_000_000))


def records(batch: PartitionBatch) -> list[StoredRecord]:
    found = read_records(batch.data)
    assert isinstance(found, list)
    return found


def test_lines_without_key_share_a_partition_and_batches_take_turns() -> None:
    routes = router()
    placed = [routes.rounds([b"a", b"b"])[0][0].partition for _ in range(5)]
    assert sorted(set(placed)) == [0, 1, 2, 3]
    assert placed[0] == placed[4]


def test_split_keys_go_where_every_client_sends_them() -> None:
    (batches,) = router(separator=b":").rounds([b"k1:a", b"k2:b:c", b"k1:d", b"none"])
    seen = {row.value: (row.key, batch.partition) for batch in batches for row in records(batch)}
    assert seen[b"a"] == (b"k1", partition_for_key(b"k1", 4))
    assert seen[b"b:c"] == (b"k2", partition_for_key(b"k2", 4))
    assert seen[b"none"][0] is None
    assert sum(batch.record_count for batch in batches) == 4
    assert len({batch.partition for batch in batches}) == len(batches)


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Codec])
def test_one_key_headers_and_codec_reach_every_record(codec: str) -> None:
    ((batch,),) = router(key=b"k", codec=codec).rounds([b"a", b"b"])
    header = check_batch(batch.data)
    assert isinstance(header, BatchHeader)
    assert header.codec == Codec[codec.upper()]
    assert [(row.key, row.value, row.headers, row.timestamp_ms) for row in records(batch)] == [
        (b"k", b"a", (("h", b"1"),), 1_000_000),
        (b"k", b"b", (("h", b"1"),), 1_000_000),
    ]


def test_a_chosen_partition_wins_over_keys() -> None:
    (batches,) = router(separator=b":", partition=2).rounds([b"k1:a", b"k2:b", b"c"])
    assert [batch.partition for batch in batches] == [2]


def test_what_does_not_fit_into_one_batch_follows_in_order() -> None:
    rounds = router(partition=1).rounds([b"%6d" % number + b"x" * 300_000 for number in range(7)])
    assert [len(batches) for batches in rounds] == [1, 1, 1]
    values = [row.value or b"" for (batch,) in rounds for row in records(batch)]
    assert [int(value[:6]) for value in values] == list(range(7))


def test_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(PartitionMissingError, match="has no partition 4"):
        router(partition=4)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_bench_batches_are_valid_whatever_their_size_and_time(codec: Codec) -> None:
    templates = BatchTemplates(size_bytes=100, codec=codec)
    for count, now_ms in ((7, 5), (1, 6), (300, 1_763_200_000_000), (2, 7)):
        data = templates.dated(count, now_ms)
        header = check_batch(data)
        assert isinstance(header, BatchHeader)
        assert header.size_bytes == len(data)
        assert (header.record_count, header.base_timestamp, header.max_timestamp) == (count, now_ms, now_ms)
        rows = read_records(data)
        assert isinstance(rows, list)
        assert [row.offset for row in rows] == list(range(count))
        assert {len(row.value or b"") for row in rows} == {100}


def test_a_bench_payload_is_the_same_for_the_same_seed() -> None:
    assert payload(50, 3) == payload(50, 3) != payload(50, 4)
    assert messages_per_batch(100, 61) == 1
    assert messages_per_batch(100, 100_000) > 800
