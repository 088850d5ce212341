"""Who may not do a thing is told so, by the right error, and learns nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import NO_UUID, ErrorCode
from penstock.codec.kafka.messages import alter_configs, incremental_alter_configs
from penstock.codec.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from penstock.codec.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.codec.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.codec.kafka.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.codec.kafka.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.codec.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.codec.kafka.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from penstock.codec.kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from penstock.codec.kafka.messages.fetch import FetchResponse
from penstock.codec.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.codec.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.codec.kafka.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.domain.security.access import CLUSTER, Operation, Principal, Resource, ResourceType
from penstock.domain.security.acl import AccessSettings, AclAuthorizer, AclBinding, PatternType, Permission
from support.door.conversation import Conversation, TalkingNode, running_node
from support.door.kafka_phrases import batch, fetch, list_offsets, metadata, only_partition, outcome, produce

SECRET = "secret"
FORBIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Permissions:
    """Everything on "open", and on other things only what is in `granted`."""

    def __init__(self) -> None:
        self.granted: set[tuple[Operation, str]] = set()
        self.principals: set[Principal] = set()

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        self.principals.add(principal)
        return resource.name == "open" or (operation, resource.name) in self.granted


@asynccontextmanager
async def guarded_node(*granted: tuple[Operation, str]) -> AsyncIterator[tuple[TalkingNode, Conversation, bytes]]:
    """A node with a secret topic that nobody may touch but by what is granted; and the secret's id."""
    permissions = Permissions()
    async with running_node(authorizer=permissions) as node:
        await node.create_topic("open")
        topic_id = await node.create_topic(SECRET, 3, retention_ms="987654")
        permissions.granted |= set(granted)
        yield node, await node.connect(), topic_id
        assert {str(principal) for principal in permissions.principals} == {"User:ANONYMOUS"}


def by_id(topic_id: bytes) -> MetadataRequest:
    topic = MetadataRequestTopic(topic_id=topic_id, name=None)
    return MetadataRequest(topics=(topic,), allow_auto_topic_creation=False)


TOPIC = 2
PLACE = OffsetForLeaderPartition(partition=0, leader_epoch=0)
REFUSED_WITH_THE_TOPIC: dict[str, tuple[wire.Request, int]] = {
    "Produce": (produce(SECRET, batch(b"x")), 12),
    "Fetch": (fetch(SECRET), 12),
    "ListOffsets": (list_offsets(SECRET, -1), 11),
    "OffsetForLeaderEpoch": (OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(SECRET, (PLACE,)),)), 4),
    "Metadata": (metadata(SECRET), 12),
    "DescribeTopicPartitions": (DescribeTopicPartitionsRequest(topics=(TopicRequest(SECRET),)), 0),
    "CreateTopics": (CreateTopicsRequest(topics=(CreatableTopic(SECRET, 1, 1),)), 7),
    "DeleteTopics": (DeleteTopicsRequest(topic_names=(SECRET,)), 5),
    "CreatePartitions": (CreatePartitionsRequest(topics=(CreatePartitionsTopic(SECRET, 9, None),)), 3),
    "DeleteRecords": (
        DeleteRecordsRequest(topics=(DeleteRecordsTopic(SECRET, (DeleteRecordsPartition(0, 0),)),)),
        2,
    ),
    "DescribeConfigs": (DescribeConfigsRequest(resources=(DescribeConfigsResource(TOPIC, SECRET, None),)), 4),
    "AlterConfigs": (
        wire.AlterConfigsRequest(resources=(alter_configs.AlterConfigsResource(TOPIC, SECRET, ()),)),
        2,
    ),
    "IncrementalAlterConfigs": (
        wire.IncrementalAlterConfigsRequest(
            resources=(incremental_alter_configs.AlterConfigsResource(TOPIC, SECRET, ()),)
        ),
        1,
    ),
}


def error_codes(answer: object) -> list[int]:
    """Every error code anywhere in a reply."""
    if isinstance(answer, wire.Message | wire.Response):
        own = [answer.error_code] if hasattr(answer, "error_code") else []
        return own + [code for name in answer.__struct_fields__ for code in error_codes(getattr(answer, name))]
    if isinstance(answer, list | tuple):
        return [code for each in answer for code in error_codes(each)]
    return []


@pytest.mark.parametrize("api", REFUSED_WITH_THE_TOPIC)
async def test_forbidden_topic_is_refused_like_one_that_does_not_exist(api: str) -> None:
    request, version = REFUSED_WITH_THE_TOPIC[api]
    response = wire.APIS[request.api_key].response
    async with guarded_node() as (node, talk, topic_id):
        # Again and again: no request may teach the connection a way around the question.
        replies = [wire.encode(await talk.ask(request, response, version), version) for _ in range(4)]
        refused = wire.decode(response, version, memoryview(replies[0]))
        assert FORBIDDEN in error_codes(refused)
        assert set(error_codes(refused)) <= {FORBIDDEN, ErrorCode.NONE}
        assert topic_id not in replies[0]
        assert node.shell(SECRET).log.log_end == 0
        await node.catalog.delete_topic(SECRET)
        replies.append(wire.encode(await talk.ask(request, response, version), version))
        assert len(set(replies)) == 1, "the reply tells whether the topic exists"


async def test_forbidden_topic_id_gives_no_name_away() -> None:
    async with guarded_node() as (_, talk, topic_id):
        for version in (10, 12, 13):
            (found,) = (await talk.ask(by_id(topic_id), MetadataResponse, version)).topics
            assert (found.error_code, found.topic_id) == (FORBIDDEN, topic_id)
            assert not found.name
            assert not found.partitions
        await talk.send(DeleteTopicsRequest(topics=(DeleteTopicState(topic_id=topic_id),)), 6)
        (deleted,) = (await talk.hear(DeleteTopicsResponse)).responses
        assert (deleted.name, deleted.topic_id, deleted.error_code) == (None, topic_id, FORBIDDEN)
        assert SECRET not in (deleted.error_message or "")
        reply = await talk.ask(produce("", batch(b"x"), topic_id=topic_id), ProduceResponse, 13)
        assert outcome(reply) == (FORBIDDEN, -1)
        reply_of_fetch = await talk.ask(fetch("", topic_id=topic_id), FetchResponse, 18)
        assert only_partition(reply_of_fetch).error_code == FORBIDDEN
        assert only_partition(reply_of_fetch).high_watermark == -1


async def test_lists_leave_out_what_one_may_not_see() -> None:
    async with guarded_node() as (_, talk, _):
        reply = await talk.ask(MetadataRequest(topics=None), MetadataResponse)
        assert [topic.name for topic in reply.topics] == ["open"]
        reply_of_pages = await talk.ask(DescribeTopicPartitionsRequest(), DescribeTopicPartitionsResponse)
        assert [topic.name for topic in reply_of_pages.topics] == ["open"]


async def test_permissions_that_one_has_are_told() -> None:
    granted = (Operation.DESCRIBE, SECRET), (Operation.READ, SECRET), (Operation.ALTER, CLUSTER.name)
    async with guarded_node(*granted) as (_, talk, _):
        reply = await talk.ask(metadata(SECRET, with_operations=True), MetadataResponse, 10)
        assert reply.topics[0].topic_authorized_operations == 1 << Operation.DESCRIBE | 1 << Operation.READ
        assert reply.cluster_authorized_operations == 1 << Operation.ALTER
        reply_of_cluster = await talk.ask(
            DescribeClusterRequest(include_cluster_authorized_operations=True), DescribeClusterResponse
        )
        assert reply_of_cluster.cluster_authorized_operations == 1 << Operation.ALTER


async def test_describing_is_not_reading_and_reading_is_not_writing() -> None:
    async with guarded_node((Operation.DESCRIBE, SECRET), (Operation.READ, SECRET)) as (_, talk, _):
        assert only_partition(await talk.ask(fetch(SECRET), FetchResponse, 12)).error_code == ErrorCode.NONE
        for _ in range(3):
            assert outcome(await talk.ask(produce(SECRET, batch(b"x")), ProduceResponse, 12)) == (FORBIDDEN, -1)
        assert outcome(await talk.ask(produce("open", batch(b"x")), ProduceResponse, 12)) == (ErrorCode.NONE, 0)
    async with guarded_node((Operation.WRITE, SECRET)) as (_, talk, _):
        assert outcome(await talk.ask(produce(SECRET, batch(b"x")), ProduceResponse, 12)) == (ErrorCode.NONE, 0)
        assert only_partition(await talk.ask(fetch(SECRET), FetchResponse, 12)).error_code == FORBIDDEN


@pytest.mark.parametrize(
    ("granted", "error"),
    [
        ([], FORBIDDEN),
        ([(Operation.DESCRIBE, "new")], FORBIDDEN),
        ([(Operation.CREATE, "new")], FORBIDDEN),
        ([(Operation.CREATE, "new"), (Operation.DESCRIBE, "new")], ErrorCode.NONE),
        ([(Operation.CREATE, CLUSTER.name), (Operation.DESCRIBE, "new")], ErrorCode.NONE),
    ],
)
async def test_asking_makes_no_topic_without_permission(granted: list[tuple[Operation, str]], error: ErrorCode) -> None:
    async with guarded_node(*granted) as (node, talk, _):
        reply = await talk.ask(metadata("new", creates=True), MetadataResponse, 12)
        assert reply.topics[0].error_code == error
        assert (node.broker.topic("new") is not None) == (error == ErrorCode.NONE)


async def test_maker_of_a_topic_sees_its_settings_only_if_he_may() -> None:
    async with guarded_node((Operation.CREATE, "new"), (Operation.CREATE, "other")) as (node, talk, _):
        request = CreateTopicsRequest(topics=(CreatableTopic("new", 2, 1),))
        (result,) = (await talk.ask(request, CreateTopicsResponse, 7)).topics
        assert result == CreatableTopicResult(
            name="new", topic_id=result.topic_id, topic_config_error_code=FORBIDDEN, configs=None
        )
        assert node.broker.topic("new") is not None


async def test_one_may_delete_what_one_may_not_describe() -> None:
    async with guarded_node((Operation.DELETE, SECRET)) as (node, talk, _):
        await talk.send(DeleteTopicsRequest(topics=(DeleteTopicState(name=SECRET),)), 6)
        await talk.expect(DeleteTopicsResponse(responses=(DeletableTopicResult(name=SECRET, topic_id=NO_UUID),)))
        assert node.broker.topic(SECRET) is None


async def test_cluster_is_guarded_too() -> None:
    cluster = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    async with guarded_node() as (_, talk, _):
        await talk.send(DescribeLogDirsRequest(topics=None))
        await talk.expect(DescribeLogDirsResponse(error_code=cluster))
        await talk.send(DescribeLogDirsRequest(topics=None), 1)
        await talk.expect(DescribeLogDirsResponse())
        request = DescribeConfigsRequest(resources=(DescribeConfigsResource(4, "1", None),))
        reply = await talk.ask(request, wire.DescribeConfigsResponse)
        assert [(result.error_code, result.configs) for result in reply.results] == [(cluster, ())]


async def test_who_may_write_to_any_topic_may_be_idempotent() -> None:
    """Also before there is one: producers ask for an id first, and have the topic created afterwards."""
    authorizer = AclAuthorizer(AccessSettings(super_users=("User:root",)))
    async with running_node(authorizer=authorizer) as node:
        talk = await node.connect()
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await talk.send(InitProducerIdRequest())
        await talk.expect(InitProducerIdResponse(error_code=code, producer_epoch=-1))
        kind, by_beginning, allow = ResourceType.TOPIC, PatternType.PREFIXED, Permission.ALLOW
        rule = AclBinding(kind, "orders-", by_beginning, "User:ANONYMOUS", "*", Operation.WRITE, allow)
        authorizer.replace([rule])
        assert (await talk.ask(InitProducerIdRequest(), InitProducerIdResponse)).error_code == ErrorCode.NONE


async def test_no_acks_are_refused_by_the_end_of_the_connection() -> None:
    async with guarded_node() as (node, talk, _):
        await talk.send_unanswered(produce(SECRET, batch(b"x"), acks=0), 12)
        await talk.expect_closed()
        assert node.shell(SECRET).log.log_end == 0
