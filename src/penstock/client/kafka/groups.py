"""Consumer groups from outside: which there are, who is in one, what it has read, and how to move or remove it.

A group is asked about at its coordinator; lists are put together from every broker. Groups of both protocols come out
in one shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

import msgspec

from penstock.client.errors import TopicMissingError
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.coordinators import CoordinatorKind, find_coordinator
from penstock.codec.kafka import NO_UUID, ErrorCode
from penstock.codec.kafka.messages import consumer_group_describe as consumer_wire
from penstock.codec.kafka.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.codec.kafka.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.codec.kafka.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.codec.kafka.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.codec.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.codec.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from penstock.domain.group.subscription import read_assignment
from penstock.net.connection import Connection
from penstock.net.errors import BrokerError, ClientError

DEAD: Final = "Dead"
EMPTY: Final = "Empty"

# A topic's name and a partition's number.
Place = tuple[str, int]


class GroupMissingError(ClientError):
    def __init__(self, group_id: str) -> None:
        super().__init__(f"group {group_id!r} does not exist")


class ListedGroup(msgspec.Struct, frozen=True):
    group: str
    type: str
    state: str
    protocol_type: str


class GroupMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: tuple[Place, ...]


class GroupInfo(msgspec.Struct, frozen=True):
    group: str
    type: str
    state: str
    # The classic group's protocol, the consumer group's assignor.
    assignor: str
    # A consumer group's; a classic group does not tell its generation.
    epoch: int | None
    coordinator: int
    members: tuple[GroupMember, ...]


async def list_groups(
    client: ClusterClient, *, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[ListedGroup]:
    found: dict[str, ListedGroup] = {}
    for broker in client.brokers:
        connection = await client.connection_to(broker.node_id)
        request = ListGroupsRequest(states_filter=tuple(states), types_filter=tuple(types))
        reply = await connection.call(request, ListGroupsResponse)
        _check(reply.error_code, "groups were not listed")
        for group in reply.groups:
            found[group.group_id] = ListedGroup(
                group.group_id, group.group_type or "classic", group.group_state, group.protocol_type
            )
    return [found[group_id] for group_id in sorted(found)]


async def describe_group(client: ClusterClient, group_id: str) -> GroupInfo:
    """Raises `GroupMissingError`."""
    connection, node_id = await _coordinator(client, group_id)
    if connection.supports(ConsumerGroupDescribeRequest.api_key):
        request = ConsumerGroupDescribeRequest(group_ids=(group_id,))
        reply = await connection.call(request, ConsumerGroupDescribeResponse)
        (found,) = reply.groups
        if found.error_code == ErrorCode.NONE:
            return _consumer_info(found, node_id)
        if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise BrokerError(found.error_code, f"group {group_id!r}", found.error_message)
    classic = await connection.call(DescribeGroupsRequest(groups=(group_id,)), DescribeGroupsResponse)
    (described,) = classic.groups
    if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND or described.group_state == DEAD:
        raise GroupMissingError(group_id)
    _check(described.error_code, f"group {group_id!r}")
    return _classic_info(described, node_id)


def _consumer_info(found: consumer_wire.DescribedGroup, node_id: int) -> GroupInfo:
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host.removeprefix("/"),
            assigned_places(member.assignment.topic_partitions),
        )
        for member in found.members
    )
    return GroupInfo(
        found.group_id, "consumer", found.group_state, found.assignor_name, found.group_epoch, node_id, members
    )


class AssignedTopic(Protocol):
    @property
    def topic_name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[int]: ...


def assigned_places(topics: Iterable[AssignedTopic]) -> tuple[Place, ...]:
    """What a member has, of a group of any kind that tells it by topic."""
    return tuple(sorted((topic.topic_name, number) for topic in topics for number in topic.partitions))


def _classic_info(found: DescribedGroup, node_id: int) -> GroupInfo:
    members = []
    for member in found.members:
        # What other protocols than the consumers' put there is their own business.
        read = read_assignment(member.member_assignment) if found.protocol_type == "consumer" else None
        places = sorted((topic, number) for topic, numbers in read or () for number in numbers)
        members.append(
            GroupMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host.removeprefix("/"),
                tuple(places),
            )
        )
    return GroupInfo(found.group_id, "classic", found.group_state, found.protocol_data, None, node_id, tuple(members))


async def committed_offsets(client: ClusterClient, group_id: str) -> dict[Place, int]:
    """Everything that the group has committed; nothing, if there is no such group."""
    connection, _ = await _coordinator(client, group_id)
    wanted = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    request = OffsetFetchRequest(group_id=group_id, topics=None, groups=(wanted,))
    reply = await connection.call(request, OffsetFetchResponse)
    _check(reply.error_code, f"offsets of group {group_id!r}")
    found = {
        (topic.name, place.partition_index): place.committed_offset
        for topic in reply.topics
        for place in topic.partitions
    }
    # From version 10 on topics are named by id.
    names: dict[bytes, str] = {}
    if any(topic.topic_id != NO_UUID for group in reply.groups for topic in group.topics):
        names = {topic.topic_id: topic.name for topic in await client.topics()}
    for group in reply.groups:
        _check(group.error_code, f"offsets of group {group_id!r}")
        for answered in group.topics:
            name = answered.name or names.get(bytes(answered.topic_id))
            if name is not None:
                found |= {(name, place.partition_index): place.committed_offset for place in answered.partitions}
    return {place: offset for place, offset in sorted(found.items()) if offset >= 0}


async def commit_offsets(client: ClusterClient, group_id: str, offsets: Mapping[Place, int]) -> None:
    """From outside, which a group with members refuses."""
    connection, _ = await _coordinator(client, group_id)
    topics = []
    for name, places in groupby(sorted(offsets), key=itemgetter(0)):
        info = await client.topic(name)
        partitions = tuple(
            OffsetCommitRequestPartition(partition_index=number, committed_offset=offsets[topic, number])
            for topic, number in places
        )
        topics.append(OffsetCommitRequestTopic(name=name, topic_id=info.topic_id, partitions=partitions))
    reply = await connection.call(OffsetCommitRequest(group_id=group_id, topics=topics), OffsetCommitResponse)
    for answered in reply.topics:
        for outcome in answered.partitions:
            if outcome.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise TopicMissingError(answered.name)
            what = f"offset of partition {outcome.partition_index} of {answered.name!r} was not committed"
            _check(outcome.error_code, what)


async def delete_group(client: ClusterClient, group_id: str) -> None:
    connection, _ = await _coordinator(client, group_id)
    reply = await connection.call(DeleteGroupsRequest(groups_names=(group_id,)), DeleteGroupsResponse)
    for result in reply.results:
        if result.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise GroupMissingError(group_id)
        _check(result.error_code, f"group {group_id!r} was not deleted")


async def _coordinator(client: ClusterClient, group_id: str) -> tuple[Connection, int]:
    return await find_coordinator(client, CoordinatorKind.GROUP, group_id)


def _check(code: int, what: str) -> None:
    if code != 0:
        raise BrokerError(code, what)
