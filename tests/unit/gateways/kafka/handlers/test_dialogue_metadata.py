"""Metadata and DescribeTopicPartitions: which topics there are, and which come to be by being asked for."""

from __future__ import annotations

import pytest

from penstock.broker.config import BrokerConfig
from penstock.codec.kafka import NO_UUID, ErrorCode
from penstock.codec.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from penstock.codec.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import metadata

NOT_ASKED = -0x80000000
# Read, write, create, delete, alter, describe, describe and alter configs.
ALL_OF_A_TOPIC = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
VERSIONS = pytest.mark.parametrize("version", [0, 1, 4, 8, 9, 10, 12, 13])


def errors(reply: MetadataResponse) -> dict[str | None, ErrorCode]:
    return {topic.name: ErrorCode(topic.error_code) for topic in reply.topics}


async def ask_one(talk: Conversation, request: MetadataRequest, version: int = 12) -> MetadataResponseTopic:
    (topic,) = (await talk.ask(request, MetadataResponse, version)).topics
    return topic


@VERSIONS
async def test_node_and_topic_are_described(node: TalkingNode, talk: Conversation, version: int) -> None:
    topic_id = await node.create_topic("orders", 3)
    reply = await talk.ask(metadata("orders"), MetadataResponse, version)
    host, _, port = node.addresses["kafka"].rpartition(":")
    assert [(broker.node_id, broker.host, broker.port) for broker in reply.brokers] == [(1, host, int(port))]
    assert version < 1 or reply.controller_id == 1
    assert version < 2 or reply.cluster_id
    (topic,) = reply.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (ErrorCode.NONE, "orders", False)
    assert topic.topic_id == (topic_id if version >= 10 else NO_UUID)
    assert [partition.partition_index for partition in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (ErrorCode.NONE, 1)
        assert (list(partition.replica_nodes), list(partition.isr_nodes)) == ([1], [1])
        assert version < 7 or partition.leader_epoch == 0


@VERSIONS
async def test_all_topics_or_none(node: TalkingNode, talk: Conversation, version: int) -> None:
    for name in ("b", "a", "c"):
        await node.create_topic(name)
    everything = MetadataRequest(topics=None if version else (), allow_auto_topic_creation=False)
    reply = await talk.ask(everything, MetadataResponse, version)
    assert [topic.name for topic in reply.topics] == ["a", "b", "c"]
    if version:
        reply = await talk.ask(metadata(), MetadataResponse, version)
        assert (list(reply.topics), len(reply.brokers)) == ([], 1)


@pytest.mark.parametrize("version", [10, 12, 13])
async def test_topic_is_found_by_its_id(node: TalkingNode, talk: Conversation, version: int) -> None:
    topic_id = await node.create_topic("orders")

    def by_id(wanted: bytes) -> MetadataRequest:
        topic = MetadataRequestTopic(topic_id=wanted, name=None)
        return MetadataRequest(topics=(topic,), allow_auto_topic_creation=False)

    topic = await ask_one(talk, by_id(topic_id), version)
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.NONE, "orders", topic_id)
    topic = await ask_one(talk, by_id(b"\x07" * 16), version)
    assert (topic.error_code, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, b"\x07" * 16)
    assert topic.name == (None if version >= 12 else "")


@pytest.mark.parametrize("version", [4, 13])
async def test_unknown_topic_is_not_made_unless_the_client_allows_it(
    node: TalkingNode, talk: Conversation, version: int
) -> None:
    topic = await ask_one(talk, metadata("orders", creates=False), version)
    assert (topic.error_code, topic.name) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "orders")
    assert node.broker.topic("orders") is None


@VERSIONS
async def test_unknown_topic_is_made_when_asked_for(talk: Conversation, version: int) -> None:
    topic = await ask_one(talk, metadata("orders", creates=True), version)
    assert (topic.error_code, topic.name, len(topic.partitions)) == (ErrorCode.NONE, "orders", 1)


async def test_made_topics_have_the_nodes_number_of_partitions() -> None:
    async with running_node(broker=BrokerConfig(default_partitions=4)) as node:
        topic = await ask_one(await node.connect(), metadata("orders", creates=True))
        assert len(topic.partitions) == 4


async def test_node_may_make_no_topics_by_itself() -> None:
    async with running_node(broker=BrokerConfig(auto_create_topics=False)) as node:
        topic = await ask_one(await node.connect(), metadata("orders", creates=True))
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert node.broker.topics() == []


@pytest.mark.parametrize("creates", [False, True])
async def test_impossible_names_are_told_apart(node: TalkingNode, talk: Conversation, creates: bool) -> None:
    names = ["", ".", "..", "a b", "ä", "x" * 250]
    reply = await talk.ask(metadata(*names, "x" * 249, creates=creates), MetadataResponse, 9)
    invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
    proper = ErrorCode.NONE if creates else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(reply) == {**dict.fromkeys(names, invalid), "x" * 249: proper}


async def test_internal_topics_are_not_made_by_asking(node: TalkingNode, talk: Conversation) -> None:
    """Or any client could make the offsets' topic with the shape of an ordinary one."""
    topic = await ask_one(talk, metadata("__consumer_offsets", creates=True))
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert node.broker.topics() == []


async def test_two_connections_that_ask_at_once_make_one_topic(node: TalkingNode) -> None:
    talks = [await node.connect() for _ in range(5)]
    for talk in talks:
        await talk.send(metadata("orders", creates=True), 12)
    found = {(await talk.hear(MetadataResponse)).topics[0].topic_id for talk in talks}
    assert len(found) == 1


@pytest.mark.parametrize("version", [8, 10])
async def test_permissions_are_told_if_asked_for(node: TalkingNode, talk: Conversation, version: int) -> None:
    await node.create_topic("orders")
    reply = await talk.ask(metadata("orders"), MetadataResponse, version)
    assert (reply.cluster_authorized_operations, reply.topics[0].topic_authorized_operations) == (NOT_ASKED, NOT_ASKED)
    reply = await talk.ask(metadata("orders", with_operations=True), MetadataResponse, version)
    assert reply.topics[0].topic_authorized_operations == ALL_OF_A_TOPIC
    assert reply.cluster_authorized_operations > 0


# DescribeTopicPartitions


def page(*topics: str, limit: int = 2000, cursor: Cursor | None = None) -> DescribeTopicPartitionsRequest:
    wanted = tuple(TopicRequest(topic) for topic in topics)
    return DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=limit, cursor=cursor)


async def pages(talk: Conversation, *topics: str, limit: int) -> list[list[tuple[str | None, list[int]]]]:
    """Page by page: topics with their partitions."""
    found = []
    cursor = None
    while True:
        reply = await talk.ask(page(*topics, limit=limit, cursor=cursor), DescribeTopicPartitionsResponse)
        found.append(
            [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in reply.topics]
        )
        cursor = reply.next_cursor
        if cursor is None:
            return found


async def test_partitions_are_told_page_by_page(node: TalkingNode, talk: Conversation) -> None:
    for name, count in (("b", 3), ("a", 2), ("c", 1)):
        await node.create_topic(name, count)
    assert await pages(talk, limit=2000) == [[("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]]
    assert await pages(talk, limit=3) == [[("a", [0, 1]), ("b", [0])], [("b", [1, 2]), ("c", [0])]]
    assert await pages(talk, limit=2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0])]]
    assert await pages(talk, "c", "a", limit=2) == [[("a", [0, 1])], [("c", [0])]]
    for limit in (0, -5):
        assert len(await pages(talk, limit=limit)) == 6


async def test_page_describes_as_metadata_does(node: TalkingNode, talk: Conversation) -> None:
    topic_id = await node.create_topic("orders")
    reply = await talk.ask(page("orders", "missing"), DescribeTopicPartitionsResponse)
    missing, orders = sorted(reply.topics, key=lambda topic: topic.error_code, reverse=True)
    assert (missing.name, missing.error_code) == ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert (orders.name, orders.topic_id, orders.error_code) == ("orders", topic_id, ErrorCode.NONE)
    assert orders.topic_authorized_operations == ALL_OF_A_TOPIC
    (partition,) = orders.partitions
    assert (partition.leader_id, partition.leader_epoch, list(partition.isr_nodes)) == (1, 0, [1])


async def test_cursor_may_point_at_what_is_gone(node: TalkingNode, talk: Conversation) -> None:
    for name in ("a", "c"):
        await node.create_topic(name)
    for cursor, names in ((Cursor("b", 0), ["c"]), (Cursor("z", 0), []), (Cursor("a", 9), ["a", "c"])):
        reply = await talk.ask(page(cursor=cursor), DescribeTopicPartitionsResponse)
        assert [topic.name for topic in reply.topics] == names
    reply = await talk.ask(page(cursor=Cursor("a", -3)), DescribeTopicPartitionsResponse)
    assert [len(topic.partitions) for topic in reply.topics] == [1, 1]


@pytest.mark.parametrize("version", [0, 9, 13])
async def test_topic_that_is_asked_for_twice_is_told_once(node: TalkingNode, talk: Conversation, version: int) -> None:
    await node.create_topic("orders")
    reply = await talk.ask(metadata("orders", "orders"), MetadataResponse, version)
    assert [topic.name for topic in reply.topics] == ["orders"]


async def test_cursor_that_points_to_nothing_that_was_asked_for_is_refused(
    node: TalkingNode, talk: Conversation
) -> None:
    for name in ("a", "b"):
        await node.create_topic(name)
    for cursor in (Cursor("c", 0), Cursor("a", -1)):
        reply = await talk.ask(page("a", "b", cursor=cursor), DescribeTopicPartitionsResponse)
        assert [topic.error_code for topic in reply.topics] == [ErrorCode.INVALID_REQUEST] * 2
