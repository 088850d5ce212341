"""DescribeGroups, ListGroups, DeleteGroups: what operators see of groups, and may throw away."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from penstock.codec.kafka.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from penstock.codec.kafka.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.codec.kafka.messages.leave_group import LeaveGroupResponse
from penstock.codec.kafka.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from penstock.codec.kafka.messages.offset_commit import OffsetCommitResponse
from penstock.codec.kafka.messages.offset_fetch import OffsetFetchResponse
from penstock.domain.group.subscription import write_subscription
from support.door.conversation import Conversation, TalkingNode
from support.group.phrases import (
    GROUP,
    assigned,
    commit,
    enter,
    join,
    joined,
    leave,
    node_with_groups,
    offsets_of,
    only_member,
    positions,
)

VERSIONS = pytest.mark.parametrize("version", range(7))


@pytest.fixture
async def node() -> AsyncIterator[TalkingNode]:
    async with node_with_groups() as running:
        await running.create_topic("orders", 4)
        yield running


async def describe(talk: Conversation, version: int, *groups: str, operations: bool = False) -> list[DescribedGroup]:
    request = DescribeGroupsRequest(groups=groups, include_authorized_operations=operations)
    return list((await talk.ask(request, DescribeGroupsResponse, version)).groups)


@VERSIONS
async def test_stable_group_is_described_with_its_members(talk: Conversation, version: int) -> None:
    member_id, _ = await only_member(talk, 0, 3, instance_id="i1")
    (found,) = await describe(talk, version, GROUP)
    assert (found.error_code, found.group_id, found.group_state) == (ErrorCode.NONE, GROUP, "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    (member,) = found.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "dialogue", "/127.0.0.1")
    assert member.group_instance_id == ("i1" if version >= 4 else None)
    assert member.member_metadata == write_subscription(["orders"], version=0)
    assert member.member_assignment == assigned("orders", 0, 3)
    assert found.authorized_operations == -(2**31)


async def test_group_in_the_making_shows_no_assignment(talk: Conversation) -> None:
    reply = await joined(talk, join())
    (found,) = await describe(talk, 6, GROUP)
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("CompletingRebalance", "consumer", "")
    (member,) = found.members
    assert (member.member_id, member.member_metadata, member.member_assignment) == (reply.member_id, b"", b"")


@VERSIONS
async def test_group_that_is_not_there_is_dead(talk: Conversation, version: int) -> None:
    missing, unnamed = await describe(talk, version, "missing", "")
    for found in (missing, unnamed):
        assert found.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)
        assert bool(found.error_message) == (version >= 6)
        assert found.group_state == "Dead"


async def test_group_without_members_is_empty(talk: Conversation) -> None:
    await talk.ask(commit({0: 5}, group="offsets"), OffsetCommitResponse, 9)
    member_id, _ = await only_member(talk, 0)
    await talk.ask(leave((member_id, None)), LeaveGroupResponse)
    offsets, left = await describe(talk, 6, "offsets", GROUP)
    assert (offsets.group_state, offsets.protocol_type, list(offsets.members)) == ("Empty", "", [])
    assert (left.group_state, left.protocol_type, list(left.members)) == ("Empty", "consumer", [])


@pytest.mark.parametrize("version", range(3, 7))
async def test_operations_are_told_to_who_asks(talk: Conversation, version: int) -> None:
    await only_member(talk, 0)
    (found,) = await describe(talk, version, GROUP, operations=True)
    read, delete, see = 1 << 3, 1 << 6, 1 << 8
    assert found.authorized_operations & (read | delete | see) == read | delete | see


# Lists


@pytest.fixture
async def three_groups(talk: Conversation) -> None:
    await talk.ask(commit({0: 5}, group="a-offsets"), OffsetCommitResponse, 9)
    await only_member(talk, 0, group="b-classic")
    await talk.ask(enter("m", group="c-consumer"), ConsumerGroupHeartbeatResponse)


A = ListedGroup("a-offsets", "", "Empty", "classic")
B = ListedGroup("b-classic", "consumer", "Stable", "classic")
C = ListedGroup("c-consumer", "consumer", "Stable", "consumer")


@pytest.mark.usefixtures("three_groups")
@pytest.mark.parametrize("version", range(6))
async def test_every_group_is_listed(talk: Conversation, version: int) -> None:
    await talk.send(ListGroupsRequest(), version)
    await talk.expect(ListGroupsResponse(groups=[A, B, C]))


@pytest.mark.usefixtures("three_groups")
@pytest.mark.parametrize(
    ("states", "types", "listed"),
    [
        (("Stable",), (), [B, C]),
        (("stable", "EMPTY"), (), [A, B, C]),
        (("PreparingRebalance",), (), []),
        (("No such state",), (), []),
        ((), ("consumer",), [C]),
        ((), ("Classic",), [A, B]),
        ((), ("share",), []),
        (("Stable",), ("classic",), [B]),
    ],
)
async def test_groups_are_listed_by_state_and_type(
    talk: Conversation, states: tuple[str, ...], types: tuple[str, ...], listed: list[ListedGroup]
) -> None:
    await talk.send(ListGroupsRequest(states_filter=states, types_filter=types), 5)
    await talk.expect(ListGroupsResponse(groups=listed))


async def test_no_groups_are_listed_as_none(talk: Conversation) -> None:
    await talk.send(ListGroupsRequest())
    await talk.expect(ListGroupsResponse())


# Deleting


@pytest.mark.usefixtures("three_groups")
@pytest.mark.parametrize("version", range(3))
async def test_empty_group_is_deleted_and_others_stay(talk: Conversation, version: int) -> None:
    names = ("a-offsets", "missing", "b-classic", "c-consumer", "a-offsets")
    await talk.send(DeleteGroupsRequest(groups_names=names), version)
    await talk.expect(
        DeleteGroupsResponse(
            results=[
                DeletableGroupResult("a-offsets"),
                DeletableGroupResult("missing", ErrorCode.GROUP_ID_NOT_FOUND),
                DeletableGroupResult("b-classic", ErrorCode.NON_EMPTY_GROUP),
                DeletableGroupResult("c-consumer", ErrorCode.NON_EMPTY_GROUP),
            ]
        )
    )
    await talk.send(ListGroupsRequest())
    await talk.expect(ListGroupsResponse(groups=[B, C]))
    reply = await talk.ask(positions([0], group="a-offsets"), OffsetFetchResponse, 9)
    assert offsets_of(reply) == {0: -1}
