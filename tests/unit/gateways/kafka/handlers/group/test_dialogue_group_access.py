"""Who may not use a group, or a topic with it, is told so by the right error, and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.codec.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from penstock.codec.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.codec.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.codec.kafka.messages.offset_commit import OffsetCommitResponse
from penstock.codec.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchResponse
from penstock.domain.security.access import CLUSTER, Operation, Principal, Resource, ResourceType
from support.door.conversation import Conversation, TalkingNode
from support.group.phrases import (
    GROUP,
    commit,
    commit_codes,
    enter,
    found_positions,
    heartbeat,
    join,
    leave,
    node_with_groups,
    offsets_of,
    partitions_of,
    positions,
    report,
    sync,
)

NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
READ, DESCRIBE, DELETE = Operation.READ, Operation.DESCRIBE, Operation.DELETE


class Forbidden:
    """Everything is allowed but what is named here: (operation, kind of thing, its name)."""

    def __init__(self) -> None:
        self.deeds: set[tuple[Operation, ResourceType, str]] = set()

    def authorize(self, principal: Principal, operation: Operation, resource: Resource) -> bool:
        return (operation, resource.type, resource.name) not in self.deeds

    def group(self, *operations: Operation, name: str = GROUP) -> None:
        self.deeds |= {(operation, ResourceType.GROUP, name) for operation in operations}

    def topic(self, *operations: Operation, name: str = "orders") -> None:
        self.deeds |= {(operation, ResourceType.TOPIC, name) for operation in operations}


@pytest.fixture
def forbidden() -> Forbidden:
    return Forbidden()


@pytest.fixture
async def node(forbidden: Forbidden) -> AsyncIterator[TalkingNode]:
    async with node_with_groups(authorizer=forbidden) as running:
        await running.create_topic("orders", 2)
        await running.create_topic("open", 2)
        yield running


def delete_offsets(topic: str = "orders") -> OffsetDeleteRequest:
    places = (OffsetDeleteRequestPartition(0),)
    return OffsetDeleteRequest(group_id=GROUP, topics=(OffsetDeleteRequestTopic(topic, places),))


# Each with what it needs; all of it else is allowed.
NEEDED: dict[str, tuple[Operation, wire.Request, int]] = {
    "FindCoordinator before 4": (DESCRIBE, FindCoordinatorRequest(key=GROUP), 3),
    "FindCoordinator": (DESCRIBE, FindCoordinatorRequest(coordinator_keys=(GROUP,)), 6),
    "JoinGroup": (READ, join(), 9),
    "SyncGroup": (READ, sync("m", 1), 5),
    "Heartbeat": (READ, heartbeat("m", 1), 4),
    "LeaveGroup": (READ, leave(("m", None)), 5),
    "ConsumerGroupHeartbeat": (READ, enter("m"), 1),
    "OffsetCommit": (READ, commit({0: 1}), 9),
    "OffsetFetch": (DESCRIBE, positions([0]), 9),
    "OffsetFetch before 8": (DESCRIBE, positions([0]), 7),
    "OffsetFetch before 2": (DESCRIBE, positions([0]), 1),
    "OffsetDelete": (DELETE, delete_offsets(), 0),
    "DescribeGroups": (DESCRIBE, DescribeGroupsRequest(groups=(GROUP,)), 6),
    "ConsumerGroupDescribe": (DESCRIBE, ConsumerGroupDescribeRequest(group_ids=(GROUP,)), 1),
    "DeleteGroups": (DELETE, DeleteGroupsRequest(groups_names=(GROUP,)), 2),
}


def error_codes(answer: object) -> set[int]:
    """Every error code anywhere in a reply, but for "none"."""
    if isinstance(answer, wire.Message | wire.Response):
        own = {answer.error_code} - {0} if hasattr(answer, "error_code") else set()
        return own.union(*(error_codes(getattr(answer, name)) for name in answer.__struct_fields__))
    if isinstance(answer, list | tuple):
        return set().union(*map(error_codes, answer))
    return set()


@pytest.mark.parametrize("api", NEEDED)
async def test_group_is_closed_to_who_may_not_use_it(talk: Conversation, forbidden: Forbidden, api: str) -> None:
    needed, request, version = NEEDED[api]
    response = wire.APIS[request.api_key].response
    forbidden.group(needed)
    assert error_codes(await talk.ask(request, response, version)) == {NO_GROUP}
    forbidden.deeds.clear()
    assert NO_GROUP not in error_codes(await talk.ask(request, response, version))


async def test_nothing_is_committed_to_a_topic_that_may_not_be_read(talk: Conversation, forbidden: Forbidden) -> None:
    forbidden.topic(READ)
    assert commit_codes(await talk.ask(commit({0: 5}), OffsetCommitResponse, 9)) == [NO_TOPIC]
    assert commit_codes(await talk.ask(commit({0: 5}, topic="open"), OffsetCommitResponse, 9)) == [0]
    reply = await talk.ask(positions([0]), OffsetFetchResponse, 9)
    assert offsets_of(reply) == {0: -1}
    reply = await talk.ask(positions([0], topic="open"), OffsetFetchResponse, 9)
    assert offsets_of(reply) == {0: 5}


async def test_nothing_is_committed_by_id_either(node: TalkingNode, talk: Conversation, forbidden: Forbidden) -> None:
    forbidden.topic(READ)
    topic = node.broker.topic("orders")
    assert topic is not None
    request = commit({0: 5}, topic_id=topic.topic_id)
    assert commit_codes(await talk.ask(request, OffsetCommitResponse, 10)) == [NO_TOPIC]


@pytest.mark.parametrize("version", range(1, 11))
async def test_offsets_of_a_hidden_topic_are_not_told(
    node: TalkingNode, talk: Conversation, forbidden: Forbidden, version: int
) -> None:
    for topic in ("orders", "open"):
        await talk.ask(commit({0: 5}, topic=topic), OffsetCommitResponse, 9)
    forbidden.topic(DESCRIBE)
    topic_ids = {name: getattr(node.broker.topic(name), "topic_id", b"") for name in ("orders", "open")}
    reply = await talk.ask(positions([0], topic_id=topic_ids["orders"]), OffsetFetchResponse, version)
    (place,) = found_positions(reply).values()
    assert (place.error_code, place.committed_offset) == (NO_TOPIC, -1)
    if version >= 2:
        everything = await talk.ask(positions(None), OffsetFetchResponse, version)
        assert [name for name, _ in found_positions(everything)] == ["open" if version < 10 else ""]


async def test_offsets_of_a_topic_that_may_not_be_read_are_not_deleted(
    talk: Conversation, forbidden: Forbidden
) -> None:
    await talk.ask(commit({0: 5}), OffsetCommitResponse, 9)
    forbidden.topic(READ)
    reply = await talk.ask(delete_offsets(), OffsetDeleteResponse)
    assert reply.topics[0].partitions[0].error_code == NO_TOPIC
    assert offsets_of(await talk.ask(positions([0]), OffsetFetchResponse, 9)) == {0: 5}


async def test_member_cannot_subscribe_to_a_hidden_topic(talk: Conversation, forbidden: Forbidden) -> None:
    forbidden.topic(DESCRIBE)
    reply = await talk.ask(enter("m", topics=("open", "orders")), ConsumerGroupHeartbeatResponse)
    assert reply.error_code == NO_TOPIC
    reply = await talk.ask(enter("m", topics=("open",)), ConsumerGroupHeartbeatResponse)
    assert reply.error_code == 0


async def test_expression_does_not_find_a_hidden_topic(
    node: TalkingNode, talk: Conversation, forbidden: Forbidden
) -> None:
    forbidden.topic(DESCRIBE)
    topic_id = node.shell("open").log.home.topic_id
    reply = await talk.ask(enter("m", topics=None, regex=".*"), ConsumerGroupHeartbeatResponse)
    assert partitions_of(reply) == {topic_id: [0, 1]}
    # What it is allowed to see later reaches it as a topic does that is new.
    forbidden.deeds.clear()
    node.broker.generation += 1
    reply = await talk.ask(report("m", 1, owned={topic_id: [0, 1]}), ConsumerGroupHeartbeatResponse)
    assert len(partitions_of(reply) or ()) == 2


async def test_group_that_reads_a_hidden_topic_is_hidden_too(talk: Conversation, forbidden: Forbidden) -> None:
    await talk.ask(enter("m", topics=("open", "orders")), ConsumerGroupHeartbeatResponse)
    forbidden.topic(DESCRIBE)
    reply = await talk.ask(ConsumerGroupDescribeRequest(group_ids=(GROUP,)), ConsumerGroupDescribeResponse)
    assert (reply.groups[0].error_code, list(reply.groups[0].members)) == (NO_TOPIC, [])


async def test_groups_are_listed_to_who_may_see_them(talk: Conversation, forbidden: Forbidden) -> None:
    for group in ("one", "two"):
        await talk.ask(commit({0: 5}, group=group), OffsetCommitResponse, 9)
    forbidden.group(DESCRIBE, name="two")
    reply = await talk.ask(ListGroupsRequest(), ListGroupsResponse)
    # Who may see the cluster sees every group, as with Kafka.
    assert [group.group_id for group in reply.groups] == ["one", "two"]
    forbidden.deeds.add((DESCRIBE, CLUSTER.type, CLUSTER.name))
    reply = await talk.ask(ListGroupsRequest(), ListGroupsResponse)
    assert [group.group_id for group in reply.groups] == ["one"]


async def test_what_is_allowed_is_told_by_bits(talk: Conversation, forbidden: Forbidden) -> None:
    await talk.ask(commit({0: 5}), OffsetCommitResponse, 9)
    forbidden.group(DELETE)
    request = DescribeGroupsRequest(groups=(GROUP,), include_authorized_operations=True)
    reply = await talk.ask(request, DescribeGroupsResponse)
    assert reply.groups[0].authorized_operations & (1 << DELETE | 1 << READ) == 1 << READ


async def test_groups_that_may_be_deleted_are(talk: Conversation, forbidden: Forbidden) -> None:
    for group in ("one", "two"):
        await talk.ask(commit({0: 5}, group=group), OffsetCommitResponse, 9)
    forbidden.group(DELETE, name="two")
    reply = await talk.ask(DeleteGroupsRequest(groups_names=("two", "one")), DeleteGroupsResponse)
    assert [(result.group_id, result.error_code) for result in reply.results] == [("two", NO_GROUP), ("one", 0)]


async def test_other_coordinators_are_hidden_too(talk: Conversation, forbidden: Forbidden) -> None:
    forbidden.deeds.add((DESCRIBE, ResourceType.TRANSACTIONAL_ID, "t"))
    forbidden.deeds.add((Operation.CLUSTER_ACTION, CLUSTER.type, CLUSTER.name))
    for key_type, code in (
        (1, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (2, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ):
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=("t",))
        reply = await talk.ask(request, FindCoordinatorResponse, 6)
        assert reply.coordinators[0].error_code == code
