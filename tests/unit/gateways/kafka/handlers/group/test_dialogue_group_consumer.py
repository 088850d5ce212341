"""The consumer protocol (KIP-848) at the door: one request in which members join, report, are assigned and leave."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import consumer_group_describe as cgd
from penstock.codec.kafka.messages import describe_groups as dg
from penstock.codec.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.codec.kafka.messages.heartbeat import HeartbeatResponse
from penstock.codec.kafka.messages.join_group import JoinGroupResponse
from penstock.codec.kafka.messages.sync_group import SyncGroupResponse
from support.door.conversation import Conversation, TalkingNode
from support.group.phrases import (
    GROUP,
    enter,
    heartbeat,
    join,
    joined,
    node_with_groups,
    only_member,
    partitions_of,
    report,
    sync,
)
from support.share.phrases import set_group

VERSIONS = pytest.mark.parametrize("version", [0, 1])


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with node_with_groups() as running:
        yield running


@pytest.fixture
async def orders(node: TalkingNode) -> bytes:
    return await node.create_topic("orders", 4)


async def ask(
    talk: Conversation, request: ConsumerGroupHeartbeatRequest, version: int = 1
) -> ConsumerGroupHeartbeatResponse:
    reply = await talk.ask(request, ConsumerGroupHeartbeatResponse, version)
    assert reply.error_code == ErrorCode.NONE, reply
    return reply


async def code_of(talk: Conversation, request: ConsumerGroupHeartbeatRequest, version: int = 1) -> int:
    reply = await talk.ask(request, ConsumerGroupHeartbeatResponse, version)
    assert bool(reply.error_message) == bool(reply.error_code)
    return reply.error_code


@VERSIONS
async def test_member_lives_its_life(talk: Conversation, orders: bytes, version: int) -> None:
    first = await ask(talk, enter("mine"), version)
    assert (first.member_id, first.member_epoch) == ("mine", 1)
    assert first.heartbeat_interval_ms == 500
    assert partitions_of(first) == {orders: [0, 1, 2, 3]}
    second = await ask(talk, report("mine", 1, owned={orders: [0, 1, 2, 3]}), version)
    assert (second.member_epoch, partitions_of(second)) == (1, None)
    last = await ask(talk, report("mine", -1), version)
    assert (last.member_epoch, partitions_of(last)) == (-1, None)
    assert await code_of(talk, report("mine", 1), version) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.usefixtures("orders")
async def test_first_version_is_given_its_id_and_the_next_brings_it(talk: Conversation) -> None:
    reply = await ask(talk, enter(""), 0)
    assert reply.member_id
    assert (await ask(talk, report(reply.member_id, 1), 0)).member_id == reply.member_id
    assert await code_of(talk, enter(""), 1) == ErrorCode.INVALID_REQUEST


async def test_partition_moves_once_its_owner_has_given_it_up(talk: Conversation, orders: bytes) -> None:
    await ask(talk, enter("a"))
    entering = await ask(talk, enter("b"))
    assert (entering.member_epoch, partitions_of(entering)) == (2, {})
    asked = await ask(talk, report("a", 1))
    kept = partitions_of(asked)
    assert kept is not None
    assert len(kept[orders]) == 2
    # Nothing has changed hands before the owner says that it holds no more than it was left.
    assert partitions_of(await ask(talk, report("b", 2))) is None
    settled = await ask(talk, report("a", 1, owned=kept))
    assert settled.member_epoch == 2
    given = partitions_of(await ask(talk, report("b", 2)))
    assert given is not None
    assert sorted(given[orders] + kept[orders]) == [0, 1, 2, 3]


async def test_expression_subscribes_to_what_it_matches_now_and_later(
    node: TalkingNode, talk: Conversation, orders: bytes
) -> None:
    assert partitions_of(await ask(talk, enter("a", topics=None, regex="ord.*"))) == {orders: [0, 1, 2, 3]}
    later = await node.create_topic("ordinals")
    await node.create_topic("disorder")
    # It gives nothing up, so both are its own at once.
    found = partitions_of(await ask(talk, report("a", 1, owned={orders: [0, 1, 2, 3]})))
    assert found == {orders: [0, 1, 2, 3], later: [0]}


async def test_new_partitions_reach_the_member(node: TalkingNode, talk: Conversation, orders: bytes) -> None:
    await ask(talk, enter("a"))
    await node.catalog.create_partitions("orders", 6)
    assert partitions_of(await ask(talk, report("a", 1))) == {orders: [0, 1, 2, 3, 4, 5]}


async def test_static_member_comes_back_to_its_partitions(talk: Conversation, orders: bytes) -> None:
    await ask(talk, enter("before", instance_id="i1"))
    assert await code_of(talk, enter("after", instance_id="i1")) == ErrorCode.UNRELEASED_INSTANCE_ID
    assert (await ask(talk, report("before", -2, instance_id="i1"))).member_epoch == -2
    back = await ask(talk, enter("after", instance_id="i1"))
    assert partitions_of(back) == {orders: [0, 1, 2, 3]}
    assert await code_of(talk, report("before", 1, instance_id="i1")) == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (enter("a", group=""), ErrorCode.INVALID_REQUEST),
        (report("a", 0, topics=("orders",)), ErrorCode.INVALID_REQUEST),
        (enter("a", instance_id=""), ErrorCode.INVALID_REQUEST),
        (enter("a", rack_id=""), ErrorCode.INVALID_REQUEST),
        (report("known", -3), ErrorCode.INVALID_REQUEST),
        (report("known", -2), ErrorCode.INVALID_REQUEST),
        (enter("a", assignor="cleverest"), ErrorCode.UNSUPPORTED_ASSIGNOR),
        (enter("a", topics=None, regex="a(b"), ErrorCode.INVALID_REGULAR_EXPRESSION),
        (report("stranger", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (report("stranger", -1), ErrorCode.UNKNOWN_MEMBER_ID),
        (report("known", 7), ErrorCode.FENCED_MEMBER_EPOCH),
    ],
)
async def test_unfit_heartbeat_is_refused(
    talk: Conversation, request_: ConsumerGroupHeartbeatRequest, code: int
) -> None:
    await ask(talk, enter("known"))
    assert await code_of(talk, request_) == code


# Both protocols in one group


async def test_group_moves_from_the_classic_protocol_without_a_stop(
    node: TalkingNode, talk: Conversation, orders: bytes
) -> None:
    old, generation = await only_member(talk, 0, 1, 2, 3)
    new = await node.connect()
    entering = await ask(new, enter("new"))
    assert partitions_of(entering) == {}
    reply = await talk.ask(heartbeat(old, generation), HeartbeatResponse)
    assert reply.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    again = await joined(talk, join(old))
    synced = await talk.ask(sync(old, again.generation_id), SyncGroupResponse)
    assert (synced.error_code, len(synced.assignment)) == (ErrorCode.NONE, len(b"\0\0\0\0\0\1\0\6orders") + 16)
    given = partitions_of(await ask(new, report("new", entering.member_epoch)))
    assert given is not None
    assert len(given[orders]) == 2


@pytest.mark.usefixtures("orders")
async def test_member_of_another_kind_cannot_enter_a_consumer_group(talk: Conversation) -> None:
    await ask(talk, enter("a"))
    reply = await talk.ask(join(protocol_type="connect"), JoinGroupResponse)
    assert reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


# Describing


@VERSIONS
async def test_group_is_described_with_its_members(talk: Conversation, orders: bytes, version: int) -> None:
    await ask(talk, enter("a", instance_id="i1", rack_id="r1"))
    reply = await talk.ask(
        cgd.ConsumerGroupDescribeRequest(group_ids=(GROUP, "missing", "")), cgd.ConsumerGroupDescribeResponse, version
    )
    found, missing, unnamed = reply.groups
    everything = cgd.Assignment((cgd.TopicPartitions(orders, "orders", (0, 1, 2, 3)),))
    assert (found.error_code, found.group_id, found.group_state) == (ErrorCode.NONE, GROUP, "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (1, 1, "uniform")
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("a", "i1", "r1", 1)
    assert (member.client_id, member.client_host) == ("dialogue", "/127.0.0.1")
    assert list(member.subscribed_topic_names) == ["orders"]
    assert member.assignment == member.target_assignment == everything
    assert member.member_type == (1 if version == 1 else -1)
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert unnamed.error_code == ErrorCode.INVALID_GROUP_ID
    assert missing.error_message
    assert found.authorized_operations == -(2**31)


@pytest.mark.usefixtures("orders")
async def test_each_kind_of_describing_knows_its_own_kind_alone(talk: Conversation) -> None:
    await ask(talk, enter("a"))
    await only_member(talk, 0, group="classic")
    consumer = await talk.ask(
        cgd.ConsumerGroupDescribeRequest(group_ids=(GROUP, "classic")), cgd.ConsumerGroupDescribeResponse
    )
    assert [group.error_code for group in consumer.groups] == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    for version in range(7):
        classic = await talk.ask(
            dg.DescribeGroupsRequest(groups=(GROUP, "classic")), dg.DescribeGroupsResponse, version
        )
        code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        assert [(group.error_code, group.group_state) for group in classic.groups] == [(code, "Dead"), (0, "Stable")]


async def test_deleted_topic_is_left_out_of_the_description(
    node: TalkingNode, talk: Conversation, orders: bytes
) -> None:
    other = await node.create_topic("other")
    await ask(talk, enter("a", topics=("orders", "other")))
    await node.catalog.delete_topic("orders")
    request = cgd.ConsumerGroupDescribeRequest(group_ids=(GROUP,))
    reply = await talk.ask(request, cgd.ConsumerGroupDescribeResponse)
    (member,) = reply.groups[0].members
    assert [topic.topic_id for topic in member.assignment.topic_partitions] == [other]
    assert other != orders


async def test_heartbeat_of_a_group_is_the_one_that_it_was_given(
    node: TalkingNode, talk: Conversation, orders: bytes
) -> None:
    assert (await ask(talk, enter("mine"))).heartbeat_interval_ms == 500
    await set_group(node.catalog, GROUP, consumer_heartbeat_interval_ms="2000")
    assert (await ask(talk, report("mine", 1))).heartbeat_interval_ms == 2_000
    await node.catalog.alter_group(GROUP, lambda _stored: {})
    assert (await ask(talk, report("mine", 1))).heartbeat_interval_ms == 500
