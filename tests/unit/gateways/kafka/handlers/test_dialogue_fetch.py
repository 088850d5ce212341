"""Fetch: from which batch, how much of it, and how long one waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.broker.config import BrokerConfig
from penstock.broker.partition.role import Leading
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.codec.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.codec.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.domain.security.access import ANONYMOUS
from penstock.gateways.caller import KAFKA, Caller
from penstock.gateways.kafka.context import RequestContext
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import (
    batch,
    by_partition,
    fetch,
    fetch_many,
    only_partition,
    outcomes,
    produce,
    produce_many,
    values_in,
    wanted,
)

OLDEST, NEWEST = 4, 18
# Longer than any test: whoever waits for it has not been woken.
FOR_EVER_MS = 60_000
# A leftover of the limit that is smaller than a usual batch is not looked at.
LARGE = 100_000
VERSIONS = pytest.mark.parametrize("version", [OLDEST, 7, 11, 12, 13, NEWEST])


@pytest.fixture
async def topic_id(node: TalkingNode, talk: Conversation) -> bytes:
    """Three batches: offsets 0 and 1, 2, 3 to 5."""
    topic_id = await node.create_topic("orders", 2)
    for values in ((b"a", b"b"), (b"c",), (b"d", b"e", b"f")):
        await talk.ask(produce("orders", batch(*values)), ProduceResponse, 9)
    return topic_id


@VERSIONS
async def test_whole_log_is_read_from_its_start(talk: Conversation, topic_id: bytes, version: int) -> None:
    reply = await talk.ask(fetch("orders", topic_id=topic_id), FetchResponse, version)
    (topic,) = reply.responses
    assert topic.topic == ("orders" if version < 13 else "")
    assert version < 13 or topic.topic_id == topic_id
    data = only_partition(reply)
    assert data.error_code == ErrorCode.NONE
    assert data.high_watermark == data.last_stable_offset == 6
    assert version < 5 or data.log_start_offset == 0
    assert values_in(data.records) == [b"a", b"b", b"c", b"d", b"e", b"f"]


@VERSIONS
async def test_offset_inside_a_batch_brings_the_whole_batch(talk: Conversation, topic_id: bytes, version: int) -> None:
    reply = await talk.ask(fetch("orders", 4, topic_id=topic_id), FetchResponse, version)
    assert values_in(only_partition(reply).records) == [b"d", b"e", b"f"]


@VERSIONS
async def test_end_of_the_log_is_empty_and_never_null(talk: Conversation, topic_id: bytes, version: int) -> None:
    reply = await talk.ask(fetch("orders", 6, topic_id=topic_id), FetchResponse, version)
    data = only_partition(reply)
    assert (data.error_code, data.records) == (ErrorCode.NONE, b"")


@VERSIONS
@pytest.mark.parametrize("offset", [7, -1, 2**60])
async def test_offset_that_is_not_there_is_out_of_range(
    talk: Conversation, topic_id: bytes, version: int, offset: int
) -> None:
    reply = await talk.ask(fetch("orders", offset, topic_id=topic_id, wait_ms=FOR_EVER_MS), FetchResponse, version)
    data = only_partition(reply)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert data.records == b""


@pytest.mark.usefixtures("topic_id")
async def test_unknown_topics_and_partitions_are_told_at_once(talk: Conversation) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic, partition in (("missing", 0), ("orders", 2), ("orders", -1)):
        reply = await talk.ask(fetch(topic, partition=partition, wait_ms=FOR_EVER_MS), FetchResponse, 12)
        assert only_partition(reply).error_code == unknown
    reply = await talk.ask(fetch("", topic_id=b"\x07" * 16, wait_ms=FOR_EVER_MS), FetchResponse, NEWEST)
    assert only_partition(reply).error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_partition_of_a_known_id_may_be_unknown(talk: Conversation, topic_id: bytes) -> None:
    reply = await talk.ask(fetch("", partition=9, topic_id=topic_id), FetchResponse, NEWEST)
    assert only_partition(reply).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.usefixtures("topic_id")
@pytest.mark.parametrize(("epoch", "error"), [(0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)])
async def test_leader_epoch_of_the_client_is_compared(talk: Conversation, epoch: int, error: ErrorCode) -> None:
    for version in (9, 12):
        reply = await talk.ask(fetch("orders", leader_epoch=epoch), FetchResponse, version)
        assert only_partition(reply).error_code == error


async def test_client_of_an_older_leader_is_fenced(node: TalkingNode, talk: Conversation, topic_id: bytes) -> None:
    node.shell("orders").take_role(Leading(3))
    reply = await talk.ask(fetch("orders", leader_epoch=2), FetchResponse, 12)
    assert only_partition(reply).error_code == ErrorCode.FENCED_LEADER_EPOCH


# Waiting


@VERSIONS
async def test_waiting_fetch_is_woken_by_a_batch(
    node: TalkingNode, talk: Conversation, topic_id: bytes, version: int
) -> None:
    reader = await node.connect()
    await reader.send(fetch("orders", 6, topic_id=topic_id, wait_ms=FOR_EVER_MS), version)
    await talk.ask(produce("orders", batch(b"g")), ProduceResponse, 9)
    assert values_in(only_partition(await reader.hear(FetchResponse)).records) == [b"g"]


@pytest.mark.usefixtures("topic_id")
async def test_batch_that_comes_before_the_wait_has_begun_is_not_missed(node: TalkingNode) -> None:
    """Another connection's batch may be handled between a fetch's first look and the first step of its task."""
    await node.catalog.replace_config("orders", {"durability": "interval"})
    handler = node.server._handlers[FetchRequest.api_key]
    work = handler(fetch("orders", 6, wait_ms=FOR_EVER_MS), RequestContext(Caller(ANONYMOUS, "test", KAFKA), None, 12))
    assert asyncio.iscoroutine(work)
    node.shell("orders").append(memoryview(bytearray(batch(b"g"))))
    reply = await asyncio.wait_for(work, 5)
    assert isinstance(reply, FetchResponse)
    assert values_in(only_partition(reply).records) == [b"g"]


@pytest.mark.usefixtures("topic_id")
async def test_fetch_without_news_ends_at_its_deadline(talk: Conversation) -> None:
    reply = await talk.ask(fetch("orders", 6, wait_ms=1), FetchResponse, 12)
    assert only_partition(reply).records == b""


async def test_nobody_waits_longer_than_the_node_allows() -> None:
    async with running_node(broker=BrokerConfig(fetch_wait_ms_max=1)) as node:
        await node.create_topic("orders")
        talk = await node.connect()
        reply = await talk.ask(fetch("orders", wait_ms=2**31 - 1), FetchResponse, 12)
        assert only_partition(reply).error_code == ErrorCode.NONE


@pytest.mark.usefixtures("topic_id")
async def test_too_few_bytes_are_waited_with(node: TalkingNode, talk: Conversation) -> None:
    reader = await node.connect()
    one = len(batch(b"x" * 100))
    await reader.send(fetch("orders", 6, wait_ms=FOR_EVER_MS, bytes_min=3 * one), 12)
    for _ in range(3):
        await talk.ask(produce("orders", batch(b"x" * 100)), ProduceResponse, 9)
    reply = await reader.hear(FetchResponse)
    assert values_in(only_partition(reply).records) == [b"x" * 100] * 3


@pytest.mark.usefixtures("topic_id")
async def test_what_there_is_is_sent_at_the_deadline(talk: Conversation) -> None:
    reply = await talk.ask(fetch("orders", wait_ms=1, bytes_min=1_000_000), FetchResponse, 12)
    assert len(values_in(only_partition(reply).records)) == 6


@pytest.mark.usefixtures("topic_id")
async def test_no_minimum_means_no_waiting(talk: Conversation) -> None:
    reply = await talk.ask(fetch("orders", 6, wait_ms=FOR_EVER_MS, bytes_min=0), FetchResponse, 12)
    assert only_partition(reply).records == b""


@pytest.mark.parametrize("version", [12, 13])
async def test_topic_deleted_while_a_fetch_waits_is_told(
    node: TalkingNode, talk: Conversation, topic_id: bytes, version: int
) -> None:
    reader = await node.connect()
    await reader.send(fetch("orders", 6, topic_id=topic_id, wait_ms=FOR_EVER_MS), version)
    await reader.send(fetch("orders", 0, topic_id=topic_id), version)
    await talk.ask(DeleteTopicsRequest(topic_names=("orders",), timeout_ms=1000), DeleteTopicsResponse, 5)
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    for _ in range(2):
        assert only_partition(await reader.hear(FetchResponse)).error_code == gone


async def test_waiting_fetch_outlives_growth_and_new_settings(
    node: TalkingNode, talk: Conversation, topic_id: bytes
) -> None:
    reader = await node.connect()
    await reader.send(fetch("orders", 6, wait_ms=FOR_EVER_MS), 12)
    grown = CreatePartitionsRequest(topics=(CreatePartitionsTopic("orders", 5, None),), timeout_ms=1000)
    await talk.ask(grown, CreatePartitionsResponse)
    await node.catalog.replace_config("orders", {"durability": "interval"})
    await talk.ask(produce("orders", batch(b"g")), ProduceResponse, 9)
    assert values_in(only_partition(await reader.hear(FetchResponse)).records) == [b"g"]


@pytest.mark.parametrize("is_cold", [False, True])
async def test_end_of_a_segment_is_not_waited_at(node: TalkingNode, talk: Conversation, is_cold: bool) -> None:
    """A read ends with its segment: too few bytes there are no reason to wait while the next one has more."""
    await node.create_topic("small", segment_bytes="1024")
    for _ in range(4):
        await talk.ask(produce("small", batch(b"x" * 800)), ProduceResponse, 9)
    if is_cold:
        make_cold(node, "small", 0, segment=0)
    request = fetch("small", wait_ms=FOR_EVER_MS, bytes_min=2000)
    reply = await talk.ask(request, FetchResponse, 12)
    assert len(values_in(only_partition(reply).records)) == 1


# Limits


@VERSIONS
async def test_first_batch_is_sent_however_large(talk: Conversation, topic_id: bytes, version: int) -> None:
    for limits in ({"bytes_max": 1}, {"partition_bytes_max": 1}, {"bytes_max": 0, "partition_bytes_max": 0}):
        reply = await talk.ask(fetch("orders", 3, topic_id=topic_id, **limits), FetchResponse, version)
        assert values_in(only_partition(reply).records) == [b"d", b"e", b"f"]


@pytest.mark.usefixtures("topic_id")
async def test_only_whole_batches_fit_a_limit(talk: Conversation) -> None:
    two = len(batch(b"a", b"b")) + len(batch(b"c"))
    for limit, count in ((two - 1, 2), (two, 3), (two + 1, 3)):
        for limits in ({"bytes_max": limit}, {"partition_bytes_max": limit}):
            reply = await talk.ask(fetch("orders", **limits), FetchResponse, 12)
            assert len(values_in(only_partition(reply).records)) == count


async def fill_partitions(node: TalkingNode, talk: Conversation, value_bytes: int, count: int = 3) -> int:
    """One batch in each; its size."""
    await node.create_topic("many", count)
    sent = batch(b"x" * value_bytes)
    reply = await talk.ask(produce_many([("many", index, sent) for index in range(count)]), ProduceResponse, 9)
    assert outcomes(reply) == [(ErrorCode.NONE, 0)] * count
    return len(sent)


async def test_partitions_share_the_limit_in_their_order(node: TalkingNode, talk: Conversation) -> None:
    size = await fill_partitions(node, talk, LARGE)
    everything = wanted("many", {2: 0, 0: 0, 1: 0})
    for limit, served in ((1, [2]), (size, [2]), (2 * size - 1, [2]), (2 * size, [2, 0]), (3 * size, [2, 0, 1])):
        reply = await talk.ask(fetch_many([everything], bytes_max=limit), FetchResponse, 12)
        assert [index for index, data in by_partition(reply).items() if data.records] == served
        # Those that found no room are told all the same.
        assert all(data.high_watermark == 1 for data in by_partition(reply).values())


async def test_node_limits_a_reply_whatever_is_asked_for() -> None:
    async with running_node(broker=BrokerConfig(fetch_bytes_max=5 * LARGE // 2)) as node:
        talk = await node.connect()
        await fill_partitions(node, talk, LARGE)
        reply = await talk.ask(fetch_many([wanted("many", {0: 0, 1: 0, 2: 0})]), FetchResponse, 12)
        assert sum(bool(data.records) for data in by_partition(reply).values()) == 2


async def test_many_large_fetches_at_once_take_turns(node: TalkingNode, talk: Conversation) -> None:
    """Each costs milliseconds, and hundreds may come in one turn of the loop: a small request that comes with them
    waits for a few of them, not for all."""
    await node.create_topic("wide", 1)
    for _ in range(9):
        await talk.ask(produce("wide", batch(b"x" * 1_000_000)), ProduceResponse, 9)
    handler = node.server._handlers[FetchRequest.api_key]
    context = RequestContext(Caller(ANONYMOUS, "test", KAFKA), None, 12)

    answers = [handler(fetch("wide"), context) for _ in range(4)]
    assert [isinstance(answer, FetchResponse) for answer in answers] == [True, True, False, False]
    for answer in answers[2:]:
        assert asyncio.iscoroutine(answer)
        reply = await asyncio.wait_for(answer, 5)
        assert len(values_in(only_partition(reply).records)) == 8, "it has waited for its turn, and lacks nothing"
    assert isinstance(handler(fetch("wide"), context), FetchResponse), "another turn has room again"


async def test_cold_partitions_share_the_limit_too(node: TalkingNode, talk: Conversation) -> None:
    """What is not in memory is loaded by threads: no more of it than was asked for, however many partitions."""
    size = await fill_partitions(node, talk, LARGE, count=6)
    for index in range(6):
        make_cold(node, "many", index)
    everything = wanted("many", dict.fromkeys(range(6), 0))
    for limit, count in ((1, 1), (size - 1, 1), (size, 1), (2 * size + 1, 2), (3 * size, 3), (60 * size, 6)):
        reply = await talk.ask(fetch_many([everything], bytes_max=limit), FetchResponse, 12)
        assert sum(bool(data.records) for data in by_partition(reply).values()) == count


async def test_batch_that_comes_while_the_disk_is_read_is_not_missed(node: TalkingNode, talk: Conversation) -> None:
    size = await fill_partitions(node, talk, 1000, count=2)
    await node.catalog.replace_config("many", {"durability": "interval"})
    loop = asyncio.get_running_loop()

    async def append() -> None:
        node.shell("many", 1).append(memoryview(bytearray(batch(b"y" * 1000))))

    # In the midst of the thread's read: after the look at the log, before the wait begins.
    make_cold(node, "many", 0, on_read=lambda: asyncio.run_coroutine_threadsafe(append(), loop).result(5))
    request = fetch_many([wanted("many", {0: 0, 1: 1})], wait_ms=FOR_EVER_MS, bytes_min=2 * size)
    reply = await talk.ask(request, FetchResponse, 12)
    assert [len(values_in(data.records)) for data in by_partition(reply).values()] == [1, 1]


def make_cold(
    node: TalkingNode, topic: str, partition: int, *, segment: int = -1, on_read: Callable[[], object] = int
) -> None:
    """The log's bytes are not in memory any more: a read must wait for the disk."""
    held = node.shell(topic, partition).log.segments[segment]
    file = held.file or node.broker._store.context.handles.open(held)

    class ColdFile:
        path = file.path

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

        def read_cached_at(self, position: int, size: int) -> None:
            return None

        def read_at(self, position: int, size: int) -> bytes:
            on_read()
            return file.read_at(position, size)

    held.file = ColdFile()  # type: ignore[assignment]


async def test_many_partitions_of_many_topics_are_answered_by_topic(node: TalkingNode, talk: Conversation) -> None:
    ids = {name: await node.create_topic(name, 2) for name in ("a", "b")}
    for version in (OLDEST, NEWEST):
        topics = [
            FetchTopic(topic=name, topic_id=ids[name], partitions=[FetchPartition(partition=index) for index in (1, 0)])
            for name in ("b", "a")
        ]
        reply = await talk.ask(fetch_many(topics), FetchResponse, version)
        found = [
            (topic.topic if version < 13 else {v: k for k, v in ids.items()}[topic.topic_id], data.partition_index)
            for topic in reply.responses
            for data in topic.partitions
        ]
        assert found == [("b", 1), ("b", 0), ("a", 1), ("a", 0)]
