"""Who may not use a share group, or a topic with it, is told so by the right error, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_configs
from penstock.codec.kafka.messages import alter_share_group_offsets as alter
from penstock.codec.kafka.messages import delete_share_group_offsets as delete
from penstock.codec.kafka.messages import describe_share_group_offsets as describe
from penstock.codec.kafka.messages import incremental_alter_configs as incremental
from penstock.codec.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.codec.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.codec.kafka.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from penstock.domain.group.settings import dead_letter_author
from penstock.domain.queue.definition import QueueName
from penstock.domain.security.access import ANONYMOUS, Operation, Principal, Resource, ResourceType
from support.door.conversation import PATIENCE_SECONDS, TalkingNode
from support.group.phrases import node_with_groups
from support.share.phrases import GROUP, ShareMember, accept, partitions_in

NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Forbidden:
    """Everything is allowed but what is named here."""

    def __init__(self) -> None:
        self.deeds: set[tuple[Operation, ResourceType]] = set()

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.type) not in self.deeds

    def add(self, operation: Operation, kind: ResourceType) -> None:
        self.deeds.add((operation, kind))


@pytest.fixture
def forbidden() -> Forbidden:
    return Forbidden()


@pytest.fixture
async def node(forbidden: Forbidden) -> AsyncIterator[TalkingNode]:
    async with node_with_groups(authorizer=forbidden) as running:
        await running.create_topic("orders")
        yield running


@pytest.fixture
async def ann(node: TalkingNode) -> ShareMember:
    joined = ShareMember(await node.connect(), "ann")
    await joined.join("orders")
    await joined.ask_fetch()
    return joined


async def test_members_need_to_read_with_the_group(ann: ShareMember, forbidden: Forbidden) -> None:
    forbidden.add(Operation.READ, ResourceType.GROUP)
    assert (await ann.beat()).error_code == NO_GROUP
    assert (await ann.ask_fetch()).error_code == NO_GROUP
    assert (await ann.ask_acknowledge(accept(0))).error_code == NO_GROUP


async def test_topics_that_may_not_be_seen_are_not_subscribed_to(ann: ShareMember, forbidden: Forbidden) -> None:
    forbidden.add(Operation.DESCRIBE, ResourceType.TOPIC)
    assert (await ann.beat("orders")).error_code == NO_TOPIC


async def test_topics_that_may_not_be_read_deliver_and_settle_nothing(ann: ShareMember, forbidden: Forbidden) -> None:
    forbidden.add(Operation.READ, ResourceType.TOPIC)
    (data,) = partitions_in(await ann.ask_fetch(accept(0)))
    assert (data.error_code, data.acknowledge_error_code) == (NO_TOPIC, NO_TOPIC)
    assert await ann.acknowledge(accept(0)) == NO_TOPIC


async def test_groups_that_may_not_be_seen_are_not_shown(ann: ShareMember, forbidden: Forbidden) -> None:
    forbidden.add(Operation.DESCRIBE, ResourceType.GROUP)
    forbidden.add(Operation.DESCRIBE, ResourceType.CLUSTER)
    described = await ann.talk.ask(ShareGroupDescribeRequest([GROUP]), ShareGroupDescribeResponse)
    assert described.groups[0].error_code == NO_GROUP
    listed = await ann.talk.ask(ListGroupsRequest(), ListGroupsResponse)
    assert list(listed.groups) == []
    wanted = describe.DescribeShareGroupOffsetsRequestGroup(GROUP, None)
    offsets = await ann.talk.ask(
        describe.DescribeShareGroupOffsetsRequest([wanted]), describe.DescribeShareGroupOffsetsResponse
    )
    assert offsets.groups[0].error_code == NO_GROUP


async def test_a_group_whose_topics_may_not_be_seen_is_not_described(ann: ShareMember, forbidden: Forbidden) -> None:
    forbidden.add(Operation.DESCRIBE, ResourceType.TOPIC)
    described = await ann.talk.ask(ShareGroupDescribeRequest([GROUP]), ShareGroupDescribeResponse)
    assert described.groups[0].error_code == NO_TOPIC
    assert not described.groups[0].members


async def test_offsets_are_moved_and_deleted_only_by_those_who_may(ann: ShareMember, forbidden: Forbidden) -> None:
    await ann.leave()
    place = alter.AlterShareGroupOffsetsRequestPartition(0, 0)
    move = alter.AlterShareGroupOffsetsRequest(GROUP, [alter.AlterShareGroupOffsetsRequestTopic("orders", [place])])
    remove = delete.DeleteShareGroupOffsetsRequest(GROUP, [delete.DeleteShareGroupOffsetsRequestTopic("orders")])
    forbidden.add(Operation.READ, ResourceType.TOPIC)
    moved = await ann.talk.ask(move, alter.AlterShareGroupOffsetsResponse)
    removed = await ann.talk.ask(remove, delete.DeleteShareGroupOffsetsResponse)
    assert moved.responses[0].partitions[0].error_code == NO_TOPIC
    assert removed.responses[0].error_code == NO_TOPIC
    forbidden.add(Operation.READ, ResourceType.GROUP)
    forbidden.add(Operation.DELETE, ResourceType.GROUP)
    assert (await ann.talk.ask(move, alter.AlterShareGroupOffsetsResponse)).error_code == NO_GROUP
    assert (await ann.talk.ask(remove, delete.DeleteShareGroupOffsetsResponse)).error_code == NO_GROUP


async def name_graveyard(ann: ShareMember, topic: str, *, is_incremental: bool) -> int:
    name = "errors.deadletterqueue.topic.name"
    if is_incremental:
        config = incremental.AlterableConfig(name, 0, topic)
        asked = incremental.IncrementalAlterConfigsRequest([incremental.AlterConfigsResource(32, GROUP, [config])])
        return (await ann.talk.ask(asked, incremental.IncrementalAlterConfigsResponse)).responses[0].error_code
    whole = alter_configs.AlterConfigsRequest(
        [alter_configs.AlterConfigsResource(32, GROUP, [alter_configs.AlterableConfig(name, topic)])]
    )
    return (await ann.talk.ask(whole, alter_configs.AlterConfigsResponse)).responses[0].error_code


@pytest.mark.parametrize("is_incremental", [True, False])
async def test_dead_letters_go_only_where_whoever_named_the_topic_may_write(
    node: TalkingNode, ann: ShareMember, forbidden: Forbidden, *, is_incremental: bool
) -> None:
    await node.create_topic("payments")
    forbidden.add(Operation.WRITE, ResourceType.TOPIC)
    assert await name_graveyard(ann, "payments", is_incremental=is_incremental) == NO_TOPIC
    assert node.catalog.group_config(GROUP) == {}
    forbidden.deeds.clear()
    assert await name_graveyard(ann, "payments", is_incremental=is_incremental) == ErrorCode.NONE
    assert dead_letter_author(node.catalog.group_config(GROUP)) == ANONYMOUS
    queue = node.parts.queues.get(QueueName("orders", GROUP))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while queue is None or queue.options.dead_letter_topic != "payments":
            await ann.talk.expect_open()
            queue = node.parts.queues.get(QueueName("orders", GROUP))
    assert queue.options.dead_letter_author == ANONYMOUS
    asked = DescribeConfigsRequest([DescribeConfigsResource(32, GROUP)])
    (told,) = (await ann.talk.ask(asked, DescribeConfigsResponse)).results
    assert all("author" not in each.name for each in told.configs)
    # Whoever says it again names nothing new.
    forbidden.add(Operation.WRITE, ResourceType.TOPIC)
    assert await name_graveyard(ann, "payments", is_incremental=is_incremental) == ErrorCode.NONE
