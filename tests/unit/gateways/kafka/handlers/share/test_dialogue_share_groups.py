"""Share groups at the door: members that join, are assigned, are missed and leave; operators that look and delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_share_group_offsets as alter
from penstock.codec.kafka.messages import delete_share_group_offsets as delete
from penstock.codec.kafka.messages import describe_share_group_offsets as describe
from penstock.codec.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.codec.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from penstock.codec.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.codec.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.codec.kafka.messages.join_group import JoinGroupResponse
from penstock.codec.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.codec.kafka.messages.produce import ProduceResponse
from penstock.codec.kafka.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from support.door.conversation import PATIENCE_SECONDS, Conversation, TalkingNode
from support.door.kafka_phrases import batch, produce
from support.group.phrases import enter, join, node_with_groups
from support.share.phrases import GROUP, ShareMember, accept, once, set_group


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with node_with_groups() as running:
        await set_group(running.catalog, share_auto_offset_reset="earliest")
        yield running


@pytest.fixture
async def orders(node: TalkingNode) -> bytes:
    return await node.create_topic("orders", 2)


async def enrol(node: TalkingNode, name: str, *topics: str) -> ShareMember:
    joined = ShareMember(await node.connect(), name)
    await joined.join(*topics or ("orders",))
    return joined


async def described(talk: Conversation, group: str = GROUP) -> DescribedGroup:
    reply = await talk.ask(ShareGroupDescribeRequest([group]), ShareGroupDescribeResponse)
    return reply.groups[0]


async def listed(talk: Conversation, types: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    reply = await talk.ask(ListGroupsRequest(types_filter=types), ListGroupsResponse)
    return [(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in reply.groups]


async def removed(talk: Conversation, group: str = GROUP) -> int:
    reply = await talk.ask(DeleteGroupsRequest([group]), DeleteGroupsResponse)
    return reply.results[0].error_code


async def put(talk: Conversation, count: int, partition: int = 0) -> None:
    request = produce("orders", batch(*[b"x"] * count), partition)
    reply = await talk.ask(request, ProduceResponse, 9)
    assert reply.responses[0].partition_responses[0].error_code == ErrorCode.NONE


# ---------------------------------------------------------------------------- members


async def test_a_member_is_assigned_the_partitions_of_its_topics(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    assert ann.assigned == [(orders, 0), (orders, 1)]
    beat = await ann.beat()
    assert (beat.error_code, beat.member_epoch, beat.assignment) == (0, ann.epoch, None)


async def test_more_members_than_partitions_share_them(node: TalkingNode, orders: bytes) -> None:
    members = [await enrol(node, name) for name in ("ann", "bob", "cid")]
    for member in members:
        await member.beat()
    assert all(member.assigned for member in members)
    assert {place for member in members for place in member.assigned} == {(orders, 0), (orders, 1)}


async def test_who_leaves_is_gone_and_the_others_get_its_part(node: TalkingNode, orders: bytes) -> None:
    ann, bob = await enrol(node, "ann"), await enrol(node, "bob")
    gone = await ann.leave()
    assert (gone.error_code, gone.member_epoch) == (ErrorCode.NONE, -1)
    await bob.beat()
    assert bob.assigned == [(orders, 0), (orders, 1)]
    assert (await ann.beat(epoch=2)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_topic_that_comes_later_is_assigned_when_it_is_there(node: TalkingNode) -> None:
    ann = await enrol(node, "ann", "later")
    assert ann.assigned == []
    topic_id = await node.create_topic("later")
    await ann.beat()
    assert ann.assigned == [(topic_id, 0)]


async def test_another_epoch_is_fenced_and_a_stranger_unknown(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    assert (await ann.beat(epoch=99)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    stranger = ShareMember(ann.talk, "zoe")
    assert (await stranger.beat(epoch=1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("group", "member", "topics"), [("", "ann", ["orders"]), (GROUP, "", ["orders"]), (GROUP, "ann", [])]
)
async def test_a_heartbeat_that_says_too_little_is_refused(
    node: TalkingNode, orders: bytes, group: str, member: str, topics: list[str]
) -> None:
    reply = await ShareMember(await node.connect(), member, group).beat(*topics, epoch=0)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    assert reply.error_message


async def test_who_is_silent_for_too_long_is_gone(node: TalkingNode, orders: bytes) -> None:
    await set_group(node.catalog, share_session_timeout_ms="1000")
    talk = (await enrol(node, "ann")).talk
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await described(talk)).group_state != "Empty":
            pass


async def test_a_group_tells_its_members_how_often_it_wants_to_hear_them(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    await set_group(node.catalog, share_heartbeat_interval_ms="777")
    assert (await ann.beat()).heartbeat_interval_ms == 777


# ---------------------------------------------------------------------------- one id, one kind of group


async def test_the_id_of_another_kind_of_group_is_taken(node: TalkingNode, orders: bytes) -> None:
    talk = await node.connect()
    await talk.ask(enter("eve", group=GROUP), ConsumerGroupHeartbeatResponse)
    reply = await ShareMember(talk, "ann").beat("orders", epoch=0)
    assert reply.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_others_cannot_join_a_share_group(node: TalkingNode, orders: bytes) -> None:
    await enrol(node, "ann")
    talk = await node.connect()
    classic = await talk.ask(join(group=GROUP), JoinGroupResponse)
    consumer = await talk.ask(enter("eve", group=GROUP), ConsumerGroupHeartbeatResponse)
    assert (classic.error_code, consumer.error_code) == (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.GROUP_ID_NOT_FOUND,
    )


# ---------------------------------------------------------------------------- looking


async def test_a_group_is_described_with_its_members(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    group = await described(ann.talk)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
    (member,) = group.members
    assert (member.member_id, member.member_epoch, list(member.subscribed_topic_names)) == ("ann", 1, ["orders"])
    assert (member.client_id, member.client_host) == ("dialogue", "/127.0.0.1")
    (place,) = member.assignment.topic_partitions
    assert (place.topic_id, place.topic_name, list(place.partitions)) == (orders, "orders", [0, 1])


async def test_a_group_without_members_is_empty_and_one_that_never_was_is_not_found(
    node: TalkingNode, orders: bytes
) -> None:
    ann = await enrol(node, "ann")
    await ann.leave()
    assert (await described(ann.talk)).group_state == "Empty"
    assert (await described(ann.talk, "no-such-group")).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_share_groups_are_listed_with_their_type(node: TalkingNode, orders: bytes) -> None:
    talk = (await enrol(node, "ann")).talk
    await talk.ask(enter("eve", group="readers"), ConsumerGroupHeartbeatResponse)
    share = (GROUP, "share", "Stable", "share")
    assert share in await listed(talk)
    assert await listed(talk, ("share",)) == [share]
    assert [group_id for group_id, *_ in await listed(talk, ("consumer",))] == ["readers"]


async def test_describe_groups_does_not_know_share_groups(node: TalkingNode, orders: bytes) -> None:
    talk = (await enrol(node, "ann")).talk
    reply = await talk.ask(DescribeGroupsRequest([GROUP]), DescribeGroupsResponse)
    assert reply.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_the_feature_is_switched_on(node: TalkingNode) -> None:
    talk = await node.connect()
    reply = await talk.ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
    assert {76, 77, 78, 79, 90, 91, 92} <= {each.api_key for each in reply.api_keys}
    full = await talk.ask(
        ApiVersionsRequest(client_software_name="t", client_software_version="1"), ApiVersionsResponse, 4
    )
    features = {each.name: each.max_version_level for each in full.finalized_features}
    assert features["share.version"] == 1


async def test_the_coordinator_of_a_share_partition_is_this_node(node: TalkingNode, orders: bytes) -> None:
    talk = await node.connect()
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=[f"{GROUP}:{orders.hex()}:0", "nonsense"])
    found = (await talk.ask(request, FindCoordinatorResponse)).coordinators
    assert [each.error_code for each in found] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


# ---------------------------------------------------------------------------- offsets


async def where(talk: Conversation, version: int = 1) -> dict[int, tuple[int, int]]:
    wanted = describe.DescribeShareGroupOffsetsRequestGroup(GROUP, None)
    reply = await talk.ask(
        describe.DescribeShareGroupOffsetsRequest([wanted]), describe.DescribeShareGroupOffsetsResponse, version
    )
    (group,) = reply.groups
    assert group.error_code == ErrorCode.NONE, group
    return {each.partition_index: (each.start_offset, each.lag) for topic in group.topics for each in topic.partitions}


async def moved(talk: Conversation, offset: int, partition: int = 0, topic: str = "orders") -> tuple[int, int]:
    place = alter.AlterShareGroupOffsetsRequestPartition(partition, offset)
    request = alter.AlterShareGroupOffsetsRequest(GROUP, [alter.AlterShareGroupOffsetsRequestTopic(topic, [place])])
    reply = await talk.ask(request, alter.AlterShareGroupOffsetsResponse)
    return reply.error_code, reply.responses[0].partitions[0].error_code if reply.responses else -1


async def forgotten(talk: Conversation, topic: str = "orders") -> tuple[int, int]:
    request = delete.DeleteShareGroupOffsetsRequest(GROUP, [delete.DeleteShareGroupOffsetsRequestTopic(topic)])
    reply = await talk.ask(request, delete.DeleteShareGroupOffsetsResponse)
    return reply.error_code, reply.responses[0].error_code if reply.responses else -1


async def test_start_and_lag_tell_what_is_not_finished(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    await put(ann.talk, 5)
    await put(ann.talk, 3)
    await ann.fetch(count=1)
    assert await ann.acknowledge(accept(0, 1), accept(3)) == ErrorCode.NONE
    talk = await node.connect()
    assert await where(talk) == {0: (2, 5), 1: (0, 0)}
    assert await where(talk, 0) == {0: (2, -1), 1: (0, -1)}


async def test_a_group_is_moved_only_when_it_has_no_members(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    await put(ann.talk, 6)
    assert await moved(ann.talk, 4) == (ErrorCode.NON_EMPTY_GROUP, -1)
    await ann.leave()
    assert await moved(ann.talk, 4) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (await where(ann.talk))[0] == (4, 2)
    bob = await enrol(node, "bob")
    assert await bob.fetch() == once([4, 5])
    assert await moved(ann.talk, 0, 9) == (ErrorCode.NON_EMPTY_GROUP, -1)


async def test_a_partition_that_is_not_there_cannot_be_moved(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    await ann.leave()
    unknown = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await moved(ann.talk, 0, 9) == unknown
    assert await moved(ann.talk, 0, topic="no-such-topic") == unknown
    # Beyond the end is at the end.
    assert await moved(ann.talk, 1_000) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (await where(ann.talk))[0] == (0, 0)


async def test_deleted_offsets_let_a_group_begin_anew(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    await put(ann.talk, 2)
    await ann.fetch()
    assert await ann.acknowledge(accept(0, 1)) == ErrorCode.NONE
    assert await forgotten(ann.talk) == (ErrorCode.NON_EMPTY_GROUP, -1)
    await ann.leave()
    assert await forgotten(ann.talk) == (ErrorCode.NONE, ErrorCode.NONE)
    assert await where(ann.talk) == {}
    assert await forgotten(ann.talk) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    bob = await enrol(node, "bob")
    assert await bob.fetch() == once([0, 1])


async def test_offsets_of_a_group_that_is_not_there(node: TalkingNode, orders: bytes) -> None:
    talk = await node.connect()
    assert await where(talk) == {}
    assert await forgotten(talk) == (ErrorCode.GROUP_ID_NOT_FOUND, -1)
    # Moving it makes it.
    await put(talk, 3)
    assert await moved(talk, 2) == (ErrorCode.NONE, ErrorCode.NONE)
    assert await listed(talk) == [(GROUP, "share", "Empty", "share")]
    assert (await where(talk))[0] == (2, 1)
    ann = await enrol(node, "ann")
    assert await ann.fetch() == once([2])


async def test_a_deleted_group_leaves_nothing_behind(node: TalkingNode, orders: bytes) -> None:
    ann = await enrol(node, "ann")
    await put(ann.talk, 2)
    await ann.fetch()
    assert await removed(ann.talk) == ErrorCode.NON_EMPTY_GROUP
    await ann.leave()
    assert await removed(ann.talk) == ErrorCode.NONE
    assert await listed(ann.talk, ("share",)) == []
    assert node.shares.queues.all() == []
    assert await removed(ann.talk) == ErrorCode.GROUP_ID_NOT_FOUND
