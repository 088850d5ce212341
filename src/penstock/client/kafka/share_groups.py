"""Share groups (KIP-932) from outside: who is in one, and what it has not finished yet."""

from __future__ import annotations

import msgspec

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.coordinators import CoordinatorKind, find_coordinator
from penstock.client.kafka.groups import GroupInfo, GroupMember, Place, assigned_places
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from penstock.codec.kafka.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from penstock.net.errors import BrokerError


class ShareStart(msgspec.Struct, frozen=True):
    # Everything below is finished.
    offset: int
    # Not finished, whoever has it; None: the broker does not tell.
    lag: int | None


async def describe_share_group(client: ClusterClient, group_id: str) -> GroupInfo | None:
    """None: there is no share group of that name."""
    connection, node_id = await find_coordinator(client, CoordinatorKind.GROUP, group_id)
    if not connection.supports(ShareGroupDescribeRequest.api_key):
        return None
    reply = await connection.call(ShareGroupDescribeRequest(group_ids=(group_id,)), ShareGroupDescribeResponse)
    (found,) = reply.groups
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if found.error_code != ErrorCode.NONE:
        raise BrokerError(found.error_code, f"group {group_id!r}", found.error_message)
    return _info(found, node_id)


def _info(found: DescribedGroup, node_id: int) -> GroupInfo:
    members = tuple(
        GroupMember(
            member.member_id,
            None,
            member.client_id,
            member.client_host.removeprefix("/"),
            assigned_places(member.assignment.topic_partitions),
        )
        for member in found.members
    )
    return GroupInfo(
        found.group_id, "share", found.group_state, found.assignor_name, found.group_epoch, node_id, members
    )


async def share_starts(client: ClusterClient, group_id: str) -> dict[Place, ShareStart]:
    """Where the group is, in every partition that it has ever read."""
    connection, _ = await find_coordinator(client, CoordinatorKind.GROUP, group_id)
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id, None)
    reply = await connection.call(DescribeShareGroupOffsetsRequest((wanted,)), DescribeShareGroupOffsetsResponse)
    (group,) = reply.groups
    if group.error_code != ErrorCode.NONE:
        raise BrokerError(group.error_code, f"offsets of group {group_id!r}", group.error_message)
    return {
        (topic.topic_name, place.partition_index): ShareStart(place.start_offset, place.lag if place.lag >= 0 else None)
        for topic in group.topics
        for place in topic.partitions
        if place.error_code == ErrorCode.NONE and place.start_offset >= 0
    }
