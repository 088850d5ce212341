"""The classic protocol at the door: members find their coordinator, join, sync, stay, are thrown out, and leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.codec import kafka as wire
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from penstock.codec.kafka.messages.heartbeat import HeartbeatResponse
from penstock.codec.kafka.messages.join_group import JoinGroupResponse
from penstock.codec.kafka.messages.leave_group import LeaveGroupResponse, MemberResponse
from penstock.codec.kafka.messages.sync_group import SyncGroupResponse
from support.door.conversation import Conversation, TalkingNode
from support.group.phrases import (
    LONG_MS,
    assigned,
    heartbeat,
    join,
    joined,
    leave,
    node_with_groups,
    only_member,
    sync,
    until_state,
)

ALIVE = HeartbeatResponse()
ILLEGAL = HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION)
REBALANCING = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
UNKNOWN = HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
# What the highest versions are to one another: a client that speaks JoinGroup 9 speaks these.
JOIN_VERSIONS = pytest.mark.parametrize("version", range(10))


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with node_with_groups() as running:
        await running.create_topic("orders", 4)
        yield running


# Finding the coordinator


@pytest.mark.parametrize("version", range(7))
async def test_this_node_coordinates_groups(node: TalkingNode, talk: Conversation, version: int) -> None:
    host, _, port = node.addresses["kafka"].rpartition(":")
    request = FindCoordinatorRequest(key="one", key_type=0, coordinator_keys=("one", "two"))
    await talk.send(request, version)
    if version < 4:
        await talk.expect(FindCoordinatorResponse(node_id=1, host=host, port=int(port)))
    else:
        found = [Coordinator(key=key, node_id=1, host=host, port=int(port)) for key in ("one", "two")]
        await talk.expect(FindCoordinatorResponse(coordinators=found))


@pytest.mark.parametrize(
    ("key_type", "version", "code"),
    [
        (2, 5, ErrorCode.INVALID_REQUEST),
        (2, 6, ErrorCode.INVALID_REQUEST),
        (3, 6, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_nobody_coordinates_other_things(talk: Conversation, key_type: int, version: int, code: int) -> None:
    request = FindCoordinatorRequest(key="it", key_type=key_type, coordinator_keys=("it",))
    reply = await talk.ask(request, FindCoordinatorResponse, version)
    answer = reply if version < 4 else reply.coordinators[0]
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (code, -1, "", -1)
    assert answer.error_message


async def test_internal_topic_is_there_once_the_coordinator_is_named(node: TalkingNode, talk: Conversation) -> None:
    assert node.broker.topic("__consumer_offsets") is None
    await talk.ask(FindCoordinatorRequest(key="one"), FindCoordinatorResponse, 3)
    topic = node.broker.topic("__consumer_offsets")
    assert topic is not None
    assert topic.description.is_internal


# One member


@JOIN_VERSIONS
async def test_member_lives_its_life_in_every_version(talk: Conversation, version: int) -> None:
    reply = await joined(talk, join(protocols=("sticky", "range")), version)
    member_id, generation = reply.member_id, reply.generation_id
    assert member_id.startswith("dialogue-")
    assert (generation, reply.leader, reply.protocol_name) == (1, member_id, "sticky")
    assert reply.protocol_type == ("consumer" if version >= 7 else None)
    assert [member.member_id for member in reply.members] == [member_id]
    assert not reply.skip_assignment

    request = sync(member_id, generation, {member_id: b"all of it"}, protocol="sticky")
    await talk.send(request, min(version, 5))
    await talk.expect(SyncGroupResponse(protocol_type="consumer", protocol_name="sticky", assignment=b"all of it"))
    await talk.send(heartbeat(member_id, generation), min(version, 4))
    await talk.expect(ALIVE)
    await talk.send(leave((member_id, None)), min(version, 5))
    await talk.expect(LeaveGroupResponse(members=[MemberResponse(member_id)]))
    await talk.send(heartbeat(member_id, generation), min(version, 4))
    await talk.expect(UNKNOWN)


@JOIN_VERSIONS
async def test_member_is_given_an_id_before_it_joins(talk: Conversation, version: int) -> None:
    reply = await talk.ask(join(), JoinGroupResponse, version)
    if version < 4:
        assert (reply.error_code, reply.generation_id) == (ErrorCode.NONE, 1)
        return
    assert (reply.error_code, reply.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
    given = reply.member_id
    reply = await talk.ask(join(given), JoinGroupResponse, version)
    assert (reply.error_code, reply.member_id) == (ErrorCode.NONE, given)


async def test_client_without_a_name_is_given_an_id_all_the_same(node: TalkingNode) -> None:
    talk = await node.connect(client_id=None)
    reply = await joined(talk, join())
    assert len(reply.member_id) > 30


async def test_first_version_takes_the_session_for_the_rebalance_timeout(node: TalkingNode, talk: Conversation) -> None:
    """Else the silent member would never be waited for, or for ever."""
    member_id = (await joined(talk, join(session_ms=400), 0)).member_id
    other = await node.connect()
    reply = await joined(other, join(session_ms=LONG_MS), 0)
    assert reply.generation_id == 2
    assert [member.member_id for member in reply.members] == [reply.member_id]
    assert member_id != reply.member_id


# Several members


async def test_second_member_starts_a_new_generation(node: TalkingNode, talk: Conversation) -> None:
    first, generation = await only_member(talk, 0, 1, 2, 3)
    other = await node.connect()
    given = await other.ask(join(), JoinGroupResponse)
    await other.send(join(given.member_id))
    await until_state(talk, "PreparingRebalance")
    await talk.send(heartbeat(first, generation))
    await talk.expect(REBALANCING)
    leading = await talk.ask(join(first), JoinGroupResponse)
    following = await other.hear(JoinGroupResponse)
    assert leading.generation_id == following.generation_id == 2
    assert leading.leader == following.leader == first
    assert sorted(member.member_id for member in leading.members) == sorted([first, given.member_id])
    assert following.members == ()

    await other.send(sync(given.member_id, 2))
    await talk.send(sync(first, 2, {first: assigned("orders", 0, 1), given.member_id: assigned("orders", 2, 3)}))
    await talk.expect(SyncGroupResponse(0, 0, "consumer", "range", assigned("orders", 0, 1)))
    await other.expect(SyncGroupResponse(0, 0, "consumer", "range", assigned("orders", 2, 3)))
    await talk.send(heartbeat(first, 1))
    await talk.expect(ILLEGAL)


async def test_silent_member_is_gone_when_its_session_ends(node: TalkingNode, talk: Conversation) -> None:
    await only_member(talk, 0, session_ms=300)
    other = await node.connect()
    reply = await joined(other, join())
    assert reply.generation_id == 2
    assert [member.member_id for member in reply.members] == [reply.member_id]


async def test_member_who_leaves_starts_a_new_generation(node: TalkingNode, talk: Conversation) -> None:
    first, _ = await only_member(talk, 0)
    other = await node.connect()
    given = await other.ask(join(), JoinGroupResponse)
    await other.send(join(given.member_id))
    await talk.send(leave((first, None)))
    await talk.expect(LeaveGroupResponse(members=[MemberResponse(first)]))
    reply = await other.hear(JoinGroupResponse)
    assert [member.member_id for member in reply.members] == [given.member_id]


async def test_several_leave_at_once_each_with_its_own_answer(talk: Conversation) -> None:
    first, _ = await only_member(talk, 0)
    static, _ = await only_member(talk, 0, group="other", instance_id="i1")
    await talk.send(leave((first, None), ("stranger", None)))
    await talk.expect(
        LeaveGroupResponse(
            members=[MemberResponse(first), MemberResponse("stranger", None, ErrorCode.UNKNOWN_MEMBER_ID)]
        )
    )
    # An operator knows the instance id alone.
    await talk.send(leave(("", "i1"), ("", "i2"), group="other"))
    await talk.expect(
        LeaveGroupResponse(members=[MemberResponse("", "i1"), MemberResponse("", "i2", ErrorCode.UNKNOWN_MEMBER_ID)])
    )
    await talk.send(heartbeat(static, 1, group="other"))
    await talk.expect(UNKNOWN)


@pytest.mark.parametrize("version", range(3))
async def test_stranger_cannot_leave(talk: Conversation, version: int) -> None:
    await talk.send(leave(("stranger", None)), version)
    await talk.expect(LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))


# Static members


@pytest.mark.parametrize("version", [5, 7, 9])
async def test_static_member_comes_back_to_its_place(talk: Conversation, version: int) -> None:
    reply = await talk.ask(join(instance_id="i1"), JoinGroupResponse, version)
    before, generation = reply.member_id, reply.generation_id
    assert before.startswith("i1-")
    await talk.ask(sync(before, generation, {before: b"mine"}, instance_id="i1"), SyncGroupResponse)
    again = await talk.ask(join(instance_id="i1"), JoinGroupResponse, version)
    assert again.error_code == ErrorCode.NONE
    assert again.generation_id == generation
    assert again.member_id != before
    # It must not assign anew: it is told so, or, in versions that cannot say it, that another leads.
    assert again.skip_assignment == (version >= 9)
    assert (again.leader == again.member_id) == (version >= 9)
    reply = await talk.ask(sync(again.member_id, generation, instance_id="i1"), SyncGroupResponse)
    assert (reply.error_code, reply.assignment) == (ErrorCode.NONE, b"mine")
    await talk.send(heartbeat(before, generation, instance_id="i1"))
    await talk.expect(HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))


# Refusals


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (join(group=""), JoinGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID, protocol_name=None)),
        (sync("m", 1, group=""), SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)),
        (heartbeat("m", 1, group=""), HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)),
        (leave(("m", None), group=""), LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)),
    ],
    ids=["JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"],
)
async def test_group_needs_a_name(talk: Conversation, request_: wire.Request, response: wire.Response) -> None:
    await talk.send(request_)
    await talk.expect(response)


@JOIN_VERSIONS
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"session_ms": 0}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 2_000_000}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ("another",)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
    ids=str,
)
async def test_unfit_member_is_refused(
    node: TalkingNode, talk: Conversation, version: int, how: dict[str, object], code: int
) -> None:
    await only_member(talk, 0)
    other = await node.connect()
    reply = await other.ask(join(**how), JoinGroupResponse, version)  # type: ignore[arg-type]
    assert (reply.error_code, reply.generation_id) == (code, -1)
    assert reply.member_id == how.get("member_id", "")
    assert reply.members == ()


async def test_who_is_not_of_this_generation_is_refused(talk: Conversation) -> None:
    member_id, generation = await only_member(talk, 0)
    for request, code in (
        (sync(member_id, generation + 1), ErrorCode.ILLEGAL_GENERATION),
        (sync("stranger", generation), ErrorCode.UNKNOWN_MEMBER_ID),
        (sync(member_id, generation, protocol="another"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (sync(member_id, generation, protocol=None), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ):
        await talk.send(request, 5)
        await talk.expect(SyncGroupResponse(error_code=code))
    await talk.send(heartbeat(member_id, generation + 1))
    await talk.expect(ILLEGAL)
    await talk.send(heartbeat("stranger", generation))
    await talk.expect(UNKNOWN)


async def test_old_sync_names_no_protocol(talk: Conversation) -> None:
    member_id, generation = await only_member(talk, 0)
    reply = await talk.ask(sync(member_id, generation, protocol=None), SyncGroupResponse, 4)
    assert (reply.error_code, reply.assignment) == (ErrorCode.NONE, assigned("orders", 0))


async def test_stopping_node_sends_whoever_waits_away() -> None:
    async with node_with_groups() as node:
        await node.create_topic("orders")
        talk, other = await node.connect(), await node.connect()
        await only_member(talk, 0)
        given = await other.ask(join(), JoinGroupResponse)
        await other.send(join(given.member_id))
        await until_state(talk, "PreparingRebalance")
        began = asyncio.get_running_loop().time()
    # Far less than the door waits for those who do not take their replies.
    assert asyncio.get_running_loop().time() - began < 3
    reply = await other.hear(JoinGroupResponse)
    assert reply.error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
