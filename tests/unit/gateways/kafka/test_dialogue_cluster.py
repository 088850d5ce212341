"""A node among others: what its Kafka door tells of them, and whom it sends elsewhere."""

from __future__ import annotations

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.codec.kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.codec.kafka.messages.list_offsets import ListOffsetsResponse
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.domain.replication.view import Duty
from penstock.domain.topic_rules import CONSUMER_OFFSETS, TRANSACTION_STATE
from penstock.gateways.kafka.handlers.metadata import SHARED_FROM
from support.cluster.other_nodes import OtherNodes
from support.door.conversation import Conversation, TalkingNode
from support.door.kafka_phrases import (
    batch,
    fetch,
    list_offsets,
    metadata,
    only_offset,
    only_partition,
    outcome,
    produce,
)

GROUP, TRANSACTION = 0, 1


@pytest.fixture
async def others(node: TalkingNode) -> OtherNodes:
    """Node 2 beside node 1, and a topic of two partitions, of which node 2 leads the second."""
    others = OtherNodes(node)
    await node.create_topic("orders", 2)
    await others.come(2)
    await others.lead("orders", 1, 2)
    return others


# Metadata


async def test_metadata_name_all_nodes_that_serve(talk: Conversation, others: OtherNodes) -> None:
    await others.come(3, duty=Duty.STARTING)
    await others.come(4, duty=Duty.DRAINING)
    await others.come(5, port=0)
    reply = await talk.ask(metadata("orders"), MetadataResponse)
    assert [(each.node_id, each.host, each.port, each.rack) for each in reply.brokers][1:] == [
        (2, "host-2", 9000, "rack-2"),
        (4, "host-4", 9000, "rack-4"),
    ]
    assert reply.brokers[0].host == "127.0.0.1"
    cluster = await talk.ask(DescribeClusterRequest(), DescribeClusterResponse)
    assert [each.broker_id for each in cluster.brokers] == [1, 2, 4]
    assert (reply.controller_id, cluster.controller_id) == (1, 1)


async def test_metadata_name_the_leader_of_each_partition(talk: Conversation, others: OtherNodes) -> None:
    await others.lead("orders", 1, 2, replicas=(2, 1, 7), in_sync=(1, 2))
    (topic,) = (await talk.ask(metadata("orders"), MetadataResponse)).topics
    first, second = topic.partitions
    assert (first.error_code, first.leader_id, first.leader_epoch) == (0, 1, 0)
    assert (second.error_code, second.leader_id, second.leader_epoch) == (0, 2, 4)
    assert (list(second.replica_nodes), list(second.isr_nodes), list(second.offline_replicas)) == (
        [2, 1, 7],
        [1, 2],
        [7],
    )


@pytest.mark.parametrize("version", [0, 4, 9, 12])
async def test_long_metadata_are_told_anew_after_every_change(
    node: TalkingNode, talk: Conversation, others: OtherNodes, version: int
) -> None:
    await node.create_topic("long", SHARED_FROM)
    await others.lead("long", 7, 2)
    asked = [metadata("long"), metadata("long"), MetadataRequest(topics=() if version == 0 else None)]

    async def leaders() -> set[tuple[int, int]]:
        told = set()
        for request in asked:
            reply = await talk.ask(request, MetadataResponse, version)
            (topic,) = [each for each in reply.topics if each.name == "long"]
            told.add((len(reply.brokers), topic.partitions[7].leader_id))
        return told

    assert await leaders() == {(2, 2)}
    await others.come(3)
    assert await leaders() == {(3, 2)}
    await others.lead("long", 7, 3, epoch=5)
    assert await leaders() == {(3, 3)}


async def test_leader_that_nobody_would_find_is_none(talk: Conversation, others: OtherNodes) -> None:
    await others.lead("orders", 0, 9)
    await others.lead_nowhere("orders", 1, replicas=(9,))
    (topic,) = (await talk.ask(metadata("orders"), MetadataResponse)).topics
    told = [(each.error_code, each.leader_id) for each in topic.partitions]
    assert told == [(ErrorCode.LEADER_NOT_AVAILABLE, -1)] * 2


async def test_leader_of_an_earlier_life_is_none(talk: Conversation, others: OtherNodes) -> None:
    others.lives[2] -= 1
    await others.lead("orders", 1, 2, replicas=(2, 9), in_sync=(2,))
    (topic,) = (await talk.ask(metadata("orders"), MetadataResponse)).topics
    assert topic.partitions[1].error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_eligible_replicas_are_described(talk: Conversation, others: OtherNodes) -> None:
    await others.lead("orders", 1, 2, replicas=(2, 7), in_sync=(2,), eligible=(7,))
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest("orders")])
    (topic,) = (await talk.ask(request, DescribeTopicPartitionsResponse)).topics
    second = topic.partitions[1]
    assert (second.leader_id, list(second.isr_nodes), list(second.offline_replicas)) == (2, [2], [7])
    assert list(second.eligible_leader_replicas or ()) == [7]


# Sent elsewhere


async def test_producer_is_told_the_leader_and_its_address(talk: Conversation, others: OtherNodes) -> None:
    reply = await talk.ask(produce("orders", batch(b"a"), partition=1), ProduceResponse, 12)
    assert outcome(reply) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    leader = reply.responses[0].partition_responses[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (2, 4)
    assert [(each.node_id, each.host, each.port) for each in reply.node_endpoints] == [(2, "host-2", 9000)]
    older = await talk.ask(produce("orders", batch(b"a"), partition=1), ProduceResponse, 9)
    assert outcome(older) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_producer_on_the_short_way_is_told_too(talk: Conversation, others: OtherNodes) -> None:
    for _ in range(3):
        assert outcome(await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 12))[0] == ErrorCode.NONE
    await others.lead("orders", 0, 2)
    reply = await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 12)
    assert outcome(reply) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert [each.node_id for each in reply.node_endpoints] == [2]


async def test_who_is_served_is_told_no_address(talk: Conversation, others: OtherNodes) -> None:
    reply = await talk.ask(produce("orders", batch(b"a")), ProduceResponse, 12)
    assert outcome(reply)[0] == ErrorCode.NONE
    assert not reply.node_endpoints


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (4, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_consumer_is_told_what_is_wrong_with_its_epoch(
    talk: Conversation, others: OtherNodes, epoch: int, code: ErrorCode
) -> None:
    asked = fetch("orders", 0, partition=1, leader_epoch=epoch)
    partition = only_partition(reply := await talk.ask(asked, FetchResponse, 12))
    assert partition.error_code == code
    hints = code is not ErrorCode.UNKNOWN_LEADER_EPOCH
    assert partition.current_leader.leader_id == (2 if hints else -1)
    assert not reply.node_endpoints, "version 12 has no place for it"
    found = only_offset(await talk.ask(list_offsets("orders", -1, 1, leader_epoch=epoch), ListOffsetsResponse))
    assert found.error_code == code


async def test_consumer_is_told_the_leaders_address(node: TalkingNode, talk: Conversation, others: OtherNodes) -> None:
    topic = node.catalog.by_name("orders")
    assert topic is not None
    reply = await talk.ask(fetch("orders", 0, partition=1, topic_id=topic.topic_id), FetchResponse, 16)
    assert only_partition(reply).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert [(each.node_id, each.host) for each in reply.node_endpoints] == [(2, "host-2")]


# Coordinators


async def found_coordinator(talk: Conversation, key_type: int) -> tuple[int, int, str]:
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["mine"])
    (found,) = (await talk.ask(request, FindCoordinatorResponse)).coordinators
    return found.error_code, found.node_id, found.host


async def test_group_is_looked_after_where_its_partition_is_led(
    node: TalkingNode, talk: Conversation, others: OtherNodes
) -> None:
    assert (await found_coordinator(talk, GROUP))[0] == ErrorCode.NONE
    await others.lead(CONSUMER_OFFSETS, node.parts.groups.partition_of("mine"), 2)
    assert await found_coordinator(talk, GROUP) == (ErrorCode.NONE, 2, "host-2")
    await others.lead_nowhere(CONSUMER_OFFSETS, node.parts.groups.partition_of("mine"), replicas=(9,))
    assert await found_coordinator(talk, GROUP) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "")


async def test_transactional_id_is_looked_after_where_its_partition_is_led(
    node: TalkingNode, talk: Conversation, others: OtherNodes
) -> None:
    assert (await found_coordinator(talk, TRANSACTION))[0] == ErrorCode.NONE
    await others.lead(TRANSACTION_STATE, node.transactions.partition_of("mine"), 2)
    assert await found_coordinator(talk, TRANSACTION) == (ErrorCode.NONE, 2, "host-2")


async def test_group_and_transactional_id_of_another_node_are_not_served(
    node: TalkingNode, talk: Conversation, others: OtherNodes
) -> None:
    # Placed elsewhere from the beginning: this node never had them.
    await node.create_topic(CONSUMER_OFFSETS, 1)
    await node.create_topic(TRANSACTION_STATE, 1)
    await others.lead(CONSUMER_OFFSETS, 0, 2)
    await others.lead(TRANSACTION_STATE, 0, 2)
    beat = await talk.ask(HeartbeatRequest(group_id="mine", member_id="m"), HeartbeatResponse)
    assert beat.error_code == ErrorCode.NOT_COORDINATOR
    begun = await talk.ask(
        InitProducerIdRequest(transactional_id="mine", transaction_timeout_ms=1000), InitProducerIdResponse
    )
    assert begun.error_code == ErrorCode.NOT_COORDINATOR
