"""A compacted topic as clients meet it: what it takes, and what is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.config import BrokerConfig
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record, build_batch
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import fetch, only_partition, outcome, produce, records_in

# What tests wait for they do themselves.
NEVER_MS = 3_600_000


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    never = BrokerConfig(checkpoint_ms=NEVER_MS, retention_check_ms=NEVER_MS, cleaner_check_ms=NEVER_MS)
    async with running_node(broker=never) as running:
        await running.create_topic("state", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        yield running


def keyed(*pairs: tuple[bytes | None, bytes | None], codec: Codec = Codec.NONE) -> bytes:
    return bytes(build_batch([Record(value, key=key) for key, value in pairs], codec=codec))


async def say(talk: Conversation, *pairs: tuple[bytes | None, bytes | None]) -> None:
    reply = await talk.ask(produce("state", keyed(*pairs)), ProduceResponse, 9)
    assert outcome(reply)[0] is ErrorCode.NONE


async def clean(node: TalkingNode) -> None:
    shell = node.shell("state")
    shell.log.roll()
    # The first look finds what has to be saved before it may be cleaned.
    for _ in range(2):
        await node.broker._upkeep.clean_logs()
        await node.broker._store.checkpoint()
    assert shell.log.clean_end == shell.log.log_end


async def read(talk: Conversation, offset: int, *, wait_ms: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    reply = await talk.ask(fetch("state", offset=offset, wait_ms=wait_ms), FetchResponse, 12)
    data = only_partition(reply)
    assert data.error_code == ErrorCode.NONE
    return [(record.offset, record.key, record.value) for record in records_in(data.records)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("count", [1, 700])
async def test_record_without_a_key_is_refused(talk: Conversation, count: int, codec: Codec) -> None:
    batch = keyed(*[(b"k", b"v")] * (count - 1), (None, b"v"), codec=codec)
    reply = await talk.ask(produce("state", batch), ProduceResponse, 9)
    assert outcome(reply) == (ErrorCode.INVALID_RECORD, -1)
    # Which one it was: a client tells the others' owners that theirs were in bad company.
    (partition,) = reply.responses[0].partition_responses
    assert [error.batch_index for error in partition.record_errors] == [count - 1]
    await say(talk, *[(b"k", b"v")] * count)


async def test_topic_that_is_only_deleted_takes_records_without_keys(node: TalkingNode, talk: Conversation) -> None:
    await node.create_topic("plain")
    reply = await talk.ask(produce("plain", keyed((None, b"v"))), ProduceResponse, 9)
    assert outcome(reply) == (ErrorCode.NONE, 0)


async def test_only_the_last_values_are_left(node: TalkingNode, talk: Conversation) -> None:
    await say(talk, (b"a", b"1"), (b"b", b"1"))
    await say(talk, (b"a", b"2"))
    await say(talk, (b"c", b"1"))
    await clean(node)
    assert await read(talk, 0) == [(1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", b"1")]


async def test_fetch_from_a_hole_goes_on_after_it(node: TalkingNode, talk: Conversation) -> None:
    for number in range(5):
        await say(talk, (b"a", b"%d" % number))
    await clean(node)
    for offset in range(5):
        assert await read(talk, offset) == [(4, b"a", b"4")]


async def test_fetch_that_meets_only_holes_waits(node: TalkingNode, talk: Conversation) -> None:
    """kafkajs never gets past a batch without records if that is all it is given."""
    await say(talk, (b"a", b"0"))
    node.shell("state").log.roll()
    await say(talk, (b"a", b"1"))
    await clean(node)
    node.shell("state").log.delete_before(1).run()
    assert await read(talk, 1) == [(1, b"a", b"1")]
    await say(talk, (b"b", b"0"))
    await say(talk, (b"b", None))
    await say(talk, (b"a", b"2"))
    await clean(node)
    assert [offset for offset, _, _ in await read(talk, 1)] == [3, 4]


async def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(talk: Conversation) -> None:
    await say(talk, (b"a", b"1"))
    request = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name="state", partitions=(DeleteRecordsPartition(partition_index=0, offset=1),)),),
        timeout_ms=1000,
    )
    reply = await talk.ask(request, DeleteRecordsResponse, 2)
    assert reply.topics[0].partitions[0].error_code == ErrorCode.POLICY_VIOLATION


async def test_policy_may_change(node: TalkingNode, talk: Conversation) -> None:
    shell = node.shell("state")
    assert shell.log.config.retention_ms == -1
    assert shell.log.config.compaction is not None
    await node.create_topic("both", cleanup_policy="compact,delete", retention_ms="1000", delete_retention_ms="5")
    config = node.shell("both").log.config
    assert config.retention_ms == 1000
    assert config.compaction is not None
    assert config.compaction.delete_retention_ms == 5
    await node.create_topic("neither", max_compaction_lag_ms="7")
    assert node.shell("neither").log.config.compaction is None
    assert node.shell("neither").log.config.segment_ms > 7
