"""From stage to topic without Spark: the fence, a rival, a node that dies, rows that are gone. A real node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.client.kafka import admin, groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.consumer import Consumer, ConsumerOptions, Fetched
from penstock.client.kafka.offsets import EARLIEST, LATEST, list_offsets
from penstock.client.kafka.producer import PartitionBatch
from penstock.client.kafka.rows import rows_of
from penstock.client.kafka.transactional_producer import ProducerFencedError, TransactionalProducer
from penstock.client.kafka.transactions import describe_transaction
from penstock.codec.columns.frame import build_batches_from_columns
from penstock.domain.topic_rules import SPARK_STAGE
from penstock.net.address import parse_addresses
from penstock.net.errors import ConnectionLostError
from penstock.pipeline.sink.batches import TargetBatch
from penstock.pipeline.sink.options import SinkOptions
from penstock.pipeline.sink.stage_copy import (
    OlderBatchError,
    StageCopy,
    StagedRowsLostError,
    commit_staged,
    fence_group,
)
from penstock.pipeline.sink.stage_write import FENCE_PARTITION, StagedBatch, StageWriter, ensure_stage, stage_rows
from support.node_process import NodeProcess

PARTITIONS = 2
SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node")) as running:
        yield running


@asynccontextmanager
async def connect(node: NodeProcess, topic: str) -> AsyncIterator[ClusterClient]:
    async with ClusterClient(parse_addresses(node.kafka)) as client:
        await admin.create_topic(client, topic, partitions=PARTITIONS)
        yield client


async def stage(client: ClusterClient, topic: str, count: int, first: int = 0) -> list[StagedBatch]:
    writer = StageWriter(client, await ensure_stage(client))
    await writer.start()
    for number in range(first, first + count):
        await writer.write([TargetBatch(topic, number % PARTITIONS, make_batch(number), 1)])
    return await writer.finish()


def make_batch(number: int) -> bytearray:
    (batch,) = build_batches_from_columns(None, [str(number).encode()], 1)
    return batch


async def read(client: ClusterClient, topic: str, *, is_committed: bool = True) -> list[int]:
    partitions = range(PARTITIONS)
    ends = await list_offsets(client, topic, dict.fromkeys(partitions, LATEST), is_read_committed=is_committed)
    options = ConsumerOptions(is_read_committed=is_committed, wait_ms=50)
    consumer = Consumer(client, topic, dict.fromkeys(partitions, 0), ends=ends, options=options)
    found: list[int] = []
    while not consumer.is_done:
        found += [int(row.value or b"") for fetched in await consumer.poll() for row in rows_of(fetched)]
    return sorted(found)


async def read_settled(client: ClusterClient, topic: str, writer_id: str) -> list[int]:
    """A commit is answered before its last marker is written: a successor waits for that, and so do we."""
    await TransactionalProducer(client, writer_id).start()
    return await read(client, topic)


async def test_a_batch_is_written_once_and_the_next_one_too(node: NodeProcess) -> None:
    async with connect(node, "once") as client:
        staged = await stage(client, "once", 10)
        assert await commit_staged(node.kafka, staged, writer_id="q1", batch_id=0)
        again = await stage(client, "once", 10)
        assert not await commit_staged(node.kafka, again, writer_id="q1", batch_id=0)
        after = await stage(client, "once", 5, first=10)
        assert await commit_staged(node.kafka, after, writer_id="q1", batch_id=1)
        assert await read_settled(client, "once", fence_group("q1")) == list(range(15))
        assert await groups.committed_offsets(client, fence_group("q1")) == {(SPARK_STAGE, FENCE_PARTITION): 1}


async def test_a_batch_older_than_the_last_one_is_not_taken_for_a_repetition(node: NodeProcess) -> None:
    """A checkpoint that was put back to an earlier one: there may be other rows in its batches, which would be lost."""
    async with connect(node, "older") as client:
        assert await commit_staged(node.kafka, await stage(client, "older", 4), writer_id="q9", batch_id=3)
        others = await stage(client, "older", 4, first=50)
        with pytest.raises(OlderBatchError, match="batch 2 of query 'q9' comes after batch 3"):
            await commit_staged(node.kafka, others, writer_id="q9", batch_id=2)
        assert await read_settled(client, "older", fence_group("q9")) == [0, 1, 2, 3]


async def test_the_stage_is_internal_forgets_soon_and_has_an_empty_partition_for_fences(node: NodeProcess) -> None:
    async with connect(node, "places") as client:
        staged = await stage(client, "places", 20)
        info = await client.topic(SPARK_STAGE)
        assert info.is_internal
        assert {batch.stage_partition for batch in staged} <= set(range(1, len(info.partitions)))
        assert await list_offsets(client, SPARK_STAGE, {FENCE_PARTITION: LATEST}) == {FENCE_PARTITION: 0}
        configs = {config.name: config.value for config in await admin.describe_topic_configs(client, SPARK_STAGE)}
        assert (configs["cleanup.policy"], configs["retention.ms"]) == ("delete", str(3 * 3_600_000))


async def test_no_rows_need_no_transaction(node: NodeProcess) -> None:
    assert not await commit_staged(node.kafka, [], writer_id="q-empty", batch_id=0)


async def test_an_older_driver_is_refused_and_leaves_nothing(node: NodeProcess) -> None:
    async with connect(node, "rivals") as client:
        older = TransactionalProducer(client, fence_group("q2"))
        await older.start()
        await older.send([PartitionBatch("rivals", 0, make_batch(99), 1)])
        assert await read(client, "rivals", is_committed=False) == [99]
        staged = await stage(client, "rivals", 4)
        assert await commit_staged(node.kafka, staged, writer_id="q2", batch_id=0)
        with pytest.raises(ProducerFencedError):
            await older.send([PartitionBatch("rivals", 0, make_batch(98), 1)])
        with pytest.raises(ProducerFencedError):
            await older.commit()
        assert await read_settled(client, "rivals", fence_group("q2")) == [0, 1, 2, 3]


async def test_rows_that_are_gone_are_told_and_nothing_is_written(node: NodeProcess) -> None:
    async with connect(node, "gone") as client:
        staged = await stage(client, "gone", 6)
        lost = staged[0]
        await admin.delete_records(client, SPARK_STAGE, {lost.stage_partition: lost.base_offset + 1})
        with pytest.raises(StagedRowsLostError, match="1 batches of staged rows are gone"):
            await commit_staged(node.kafka, staged, writer_id="q3", batch_id=0)
        # The readers of committed rows are not held up: what was copied is aborted at once.
        plain = await stage(client, "gone", 2, first=50)
        assert await commit_staged(node.kafka, plain, writer_id="q4", batch_id=0)
        assert await read_settled(client, "gone", fence_group("q4")) == [50, 51]
        assert fence_group("q3") not in [listed.group for listed in await groups.list_groups(client)]


async def test_other_rows_in_the_place_of_lost_ones_are_not_taken_for_them(node: NodeProcess) -> None:
    """As after a power failure, which takes the end of a log: what comes next has the same offsets."""
    async with connect(node, "mistaken") as client:
        staged = await stage(client, "mistaken", 2)
        await admin.delete_topics(client, [SPARK_STAGE])
        others = await stage(client, "mistaken", 2, first=50)
        assert [(batch.stage_partition, batch.base_offset) for batch in others] == [
            (batch.stage_partition, 0) for batch in others
        ]
        moved = [msgspec.structs.replace(batch, base_offset=0) for batch in staged]
        with pytest.raises(StagedRowsLostError, match="holds other rows at offset 0"):
            await commit_staged(node.kafka, moved, writer_id="q5", batch_id=0)
        assert await read_settled(client, "mistaken", fence_group("q5")) == []


@pytest.mark.parametrize("past_the_end", [0, 5])
async def test_rows_that_the_log_ends_before_are_not_waited_for(node: NodeProcess, past_the_end: int) -> None:
    topic = f"short-{past_the_end}"
    async with connect(node, topic) as client:
        (staged,) = await stage(client, topic, 1)
        end = staged.base_offset + 1 + past_the_end
        with pytest.raises(StagedRowsLostError, match="nothing was written"):
            await commit_staged(
                node.kafka,
                [msgspec.structs.replace(staged, base_offset=end)],
                writer_id=topic,
                batch_id=0,
                patience_ms=1_000,
            )


async def test_two_batches_in_one_place_are_one_lost(node: NodeProcess) -> None:
    async with connect(node, "same-place") as client:
        staged = await stage(client, "same-place", 1)
        with pytest.raises(StagedRowsLostError, match="1 batches of staged rows are gone"):
            await commit_staged(node.kafka, staged * 2, writer_id="q6", batch_id=0)
        assert await read_settled(client, "same-place", fence_group("q6")) == []


async def is_aborted(client: ClusterClient, transactional_id: str) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while (await describe_transaction(client, transactional_id)).state != "CompleteAbort":  # noqa: ASYNC110  far away
            await asyncio.sleep(0.02)


async def test_a_transaction_that_took_too_long_is_begun_again(node: NodeProcess) -> None:
    """As with a node that was away for a while: at its return it ends the transaction, and we are not the rival."""
    attempts = 0

    class OverdueAtFirst(StageCopy):
        async def run(self) -> None:
            nonlocal attempts
            attempts += 1
            await super().run()
            if attempts == 1:
                await is_aborted(client, fence_group("q7"))

    how: dict[str, Any] = {"timeout_ms_min": 300, "copy": OverdueAtFirst}
    async with connect(node, "overdue") as client:
        staged = await stage(client, "overdue", 4)
        assert await commit_staged(node.kafka, staged, writer_id="q7", batch_id=0, **how)
        assert attempts == 2
        assert await read_settled(client, "overdue", fence_group("q7")) == [0, 1, 2, 3]


async def test_a_node_is_waited_for_while_the_stage_is_read(node: NodeProcess) -> None:
    failures = 3

    class AwayForAWhile(StageCopy):
        async def _fetch(self, consumer: Consumer) -> list[Fetched]:
            nonlocal failures
            failures -= 1
            if failures > 0:
                raise ConnectionLostError("the node is away")
            return await super()._fetch(consumer)

    async with connect(node, "waited") as client:
        staged = await stage(client, "waited", 4)
        assert await commit_staged(node.kafka, staged, writer_id="q10", batch_id=0, copy=AwayForAWhile)
        assert failures == 0
        assert await read_settled(client, "waited", fence_group("q10")) == [0, 1, 2, 3]


async def test_a_node_that_stays_away_is_no_loss_of_rows(node: NodeProcess) -> None:
    class Away(StageCopy):
        async def _fetch(self, consumer: Consumer) -> list[Fetched]:
            raise ConnectionLostError("the node is away")

    async with connect(node, "unreached") as client:
        staged = await stage(client, "unreached", 4)
        with pytest.raises(ConnectionLostError, match="the node is away"):
            await commit_staged(node.kafka, staged, writer_id="q11", batch_id=0, patience_ms=300, copy=Away)


async def test_a_rival_is_not_fought(node: NodeProcess) -> None:
    class RivalledAtTheEnd(StageCopy):
        async def run(self) -> None:
            await super().run()
            await TransactionalProducer(client, fence_group("q8")).start()

    async with connect(node, "fought") as client:
        staged = await stage(client, "fought", 4)
        with pytest.raises(ProducerFencedError):
            await commit_staged(node.kafka, staged, writer_id="q8", batch_id=0, copy=RivalledAtTheEnd)
        assert await read_settled(client, "fought", fence_group("q8")) == []


@pytest.mark.parametrize(
    ("message_bytes_max", "values"),
    [(8_000_000, [b"x" * 5_000_000]), (20_000, [b"y" * 90] * 3_000)],
    ids=["large", "small"],
)
async def test_batches_are_as_large_as_their_topic_takes_them(
    node: NodeProcess, message_bytes_max: int, values: list[bytes]
) -> None:
    pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    topic = f"sized-{message_bytes_max}"
    async with ClusterClient(parse_addresses(node.kafka)) as client:
        configs = {"max.message.bytes": str(message_bytes_max)}
        await admin.create_topic(client, topic, partitions=PARTITIONS, configs=configs)
        rows = pa.RecordBatch.from_pydict({"value": values})
        staged = await asyncio.to_thread(stage_rows, SinkOptions(node.kafka, topic), [rows], task=0)
        assert await commit_staged(node.kafka, staged, writer_id=topic, batch_id=0)
        assert sum((await list_offsets(client, topic, dict.fromkeys(range(PARTITIONS), LATEST))).values()) >= len(
            values
        )


async def test_an_aborted_transaction_leaves_nothing_and_the_next_one_counts(node: NodeProcess) -> None:
    async with connect(node, "aborted") as client:
        producer = TransactionalProducer(client, "aborts")
        await producer.start()
        await producer.send([PartitionBatch("aborted", 0, make_batch(1), 1)])
        await producer.commit_offsets("aborts", {("aborted", 0): 5})
        await producer.abort()
        await producer.send([PartitionBatch("aborted", 0, make_batch(2), 1)])
        await producer.commit()
        assert await read_settled(client, "aborted", "aborts") == [2]
        assert await groups.committed_offsets(client, "aborts") == {}


async def test_a_node_that_dies_in_the_middle_of_a_transaction_is_waited_for(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as own_node:
        async with connect(own_node, "killed") as client:
            producer = TransactionalProducer(client, "survivor")
            await producer.start()
            await producer.send([PartitionBatch("killed", 0, make_batch(1), 1)])
            own_node.kill()
            own_node.start()
            await producer.send([PartitionBatch("killed", 0, make_batch(2), 1)])
            await producer.send([PartitionBatch("killed", 1, make_batch(3), 1)])
            await producer.commit_offsets("survivor", {("killed", 0): 5})
            own_node.kill()
            own_node.start()
            await producer.commit()
            assert await read_settled(client, "killed", "survivor") == [1, 2, 3]


async def test_what_nobody_committed_expires_and_holds_up_no_reader(tmp_path: Path) -> None:
    """Staged an hour more ago than the stage keeps; the batches of this file are dated 1970."""
    with NodeProcess(tmp_path, environment={"PENSTOCK_BROKER__RETENTION_CHECK_MS": "100"}) as own_node:
        async with connect(own_node, "leftovers") as client:
            staged = await stage(client, "leftovers", 20)
            places = {batch.stage_partition for batch in staged}
            # Nothing of it shows in the topic that it was for, to no kind of reader.
            assert await read(client, "leftovers", is_committed=False) == []

            async def left() -> int:
                ends = await list_offsets(client, SPARK_STAGE, dict.fromkeys(places, LATEST))
                starts = await list_offsets(client, SPARK_STAGE, dict.fromkeys(places, EARLIEST))
                return sum(ends.values()) - sum(starts.values())

            deadline = time.monotonic() + SECONDS_MAX
            while await left():
                assert time.monotonic() < deadline, f"{await left()} rows are still staged"
                await asyncio.sleep(0.05)
            with pytest.raises(StagedRowsLostError):
                await commit_staged(own_node.kafka, staged, writer_id="late", batch_id=0)
            assert await read(client, "leftovers") == []
