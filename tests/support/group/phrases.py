"""What members of groups say at the Kafka door, in few words, and a node on which groups do not wait for latecomers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from penstock.codec.kafka import NO_UUID
from penstock.codec.kafka.messages import consumer_group_heartbeat as cgh
from penstock.codec.kafka.messages import leave_group as lg
from penstock.codec.kafka.messages import offset_commit as oc
from penstock.codec.kafka.messages import offset_fetch as of
from penstock.codec.kafka.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.codec.kafka.messages.heartbeat import HeartbeatRequest
from penstock.codec.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.codec.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from penstock.config import Config, NodeConfig
from penstock.domain.group.subscription import write_assignment, write_subscription
from penstock.domain.group.values import GroupConfig
from penstock.domain.security.access import Authorizer
from penstock.gateways.http.server import HttpServerConfig
from penstock.gateways.kafka.server_config import KafkaServerConfig
from support.door.conversation import ANY_PORT, PATIENCE_SECONDS, Conversation, TalkingNode, assembly_with

GROUP: Final = "billing"
LONG_MS: Final = 300_000
# A group is complete as soon as those have joined who are there.
AT_ONCE: Final = GroupConfig(initial_rebalance_delay_ms=0, session_timeout_ms_min=1)


@asynccontextmanager
async def node_with_groups(
    *, data_dir: str = "", authorizer: Authorizer | None = None, groups: GroupConfig = AT_ONCE
) -> AsyncIterator[TalkingNode]:
    node = TalkingNode(
        Config(
            node=NodeConfig(data_dir=data_dir or "memory", memory=not data_dir),
            kafka=KafkaServerConfig(listen=ANY_PORT),
            http=HttpServerConfig(listen="off"),
            groups=groups,
        ),
        assembly_with(authorizer=authorizer),
    )
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


# The classic protocol


def join(
    member_id: str = "",
    *,
    group: str = GROUP,
    topics: Iterable[str] = ("orders",),
    protocols: Sequence[str] = ("range",),
    protocol_type: str = "consumer",
    instance_id: str | None = None,
    session_ms: int = LONG_MS,
    rebalance_ms: int = LONG_MS,
) -> JoinGroupRequest:
    metadata = write_subscription(topics, version=0)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type=protocol_type,
        protocols=tuple(JoinGroupRequestProtocol(name, metadata) for name in protocols),
    )


def sync(
    member_id: str,
    generation: int,
    assignments: Mapping[str, bytes] | None = None,
    *,
    group: str = GROUP,
    instance_id: str | None = None,
    protocol: str | None = "range",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocol_name=protocol,
        assignments=tuple(SyncGroupRequestAssignment(*given) for given in (assignments or {}).items()),
    )


def heartbeat(
    member_id: str, generation: int, *, group: str = GROUP, instance_id: str | None = None
) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance_id
    )


def leave(*members: tuple[str, str | None], group: str = GROUP) -> lg.LeaveGroupRequest:
    """(member id, instance id) of each; in old versions the first one's id alone is said."""
    return lg.LeaveGroupRequest(
        group_id=group,
        member_id=members[0][0] if members else "",
        members=tuple(lg.MemberIdentity(member_id, instance_id) for member_id, instance_id in members),
    )


def assigned(topic: str, *partitions: int) -> bytes:
    return write_assignment(((topic, partitions),), version=0)


async def joined(talk: Conversation, request: JoinGroupRequest, version: int = 9) -> JoinGroupResponse:
    """Says it again with the id it is given, where that is asked for."""
    reply = await talk.ask(request, JoinGroupResponse, version)
    if reply.error_code == 79:
        named = msgspec.structs.replace(request, member_id=reply.member_id)
        reply = await talk.ask(named, JoinGroupResponse, version)
    assert reply.error_code == 0, reply
    return reply


async def only_member(talk: Conversation, *partitions: int, **how: object) -> tuple[str, int]:
    """Joins, assigns itself these partitions of `orders`, and is alone: its id and generation."""
    reply = await joined(talk, join(**how))  # type: ignore[arg-type]
    own = {reply.member_id: assigned("orders", *partitions)}
    group = str(how.get("group", GROUP))
    instance_id = how.get("instance_id")
    request = sync(
        reply.member_id,
        reply.generation_id,
        own,
        group=group,
        instance_id=None if instance_id is None else str(instance_id),
    )
    synced = await talk.ask(request, SyncGroupResponse)
    assert synced.error_code == 0, synced
    return reply.member_id, reply.generation_id


async def until_state(talk: Conversation, state: str, *, group: str = GROUP) -> None:
    """What others said on their connections has reached the group. Every question gives the node a turn."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            reply = await talk.ask(DescribeGroupsRequest(groups=(group,)), DescribeGroupsResponse)
            if reply.groups[0].group_state == state:
                return


# The consumer protocol


def report(
    member_id: str,
    epoch: int,
    *,
    group: str = GROUP,
    topics: Sequence[str] | None = None,
    regex: str | None = None,
    owned: Mapping[bytes, Sequence[int]] | None = None,
    instance_id: str | None = None,
    rack_id: str | None = None,
    assignor: str | None = None,
    rebalance_ms: int = -1,
) -> cgh.ConsumerGroupHeartbeatRequest:
    held = None
    if owned is not None:
        held = tuple(cgh.TopicPartitions(topic_id, tuple(numbers)) for topic_id, numbers in owned.items())
    return cgh.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        instance_id=instance_id,
        rack_id=rack_id,
        rebalance_timeout_ms=rebalance_ms,
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex,
        server_assignor=assignor,
        topic_partitions=held,
    )


def enter(
    member_id: str, *, topics: Sequence[str] | None = ("orders",), **others: object
) -> cgh.ConsumerGroupHeartbeatRequest:
    """The first heartbeat of a member."""
    return report(member_id, 0, topics=topics, owned={}, rebalance_ms=LONG_MS, **others)  # type: ignore[arg-type]


def partitions_of(reply: cgh.ConsumerGroupHeartbeatResponse) -> dict[bytes, list[int]] | None:
    """What it was assigned; None: as before."""
    if reply.assignment is None:
        return None
    return {topic.topic_id: list(topic.partitions) for topic in reply.assignment.topic_partitions}


# Offsets


def commit(
    offsets: Mapping[int, int],
    *,
    group: str = GROUP,
    topic: str = "orders",
    topic_id: bytes = NO_UUID,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
    metadata: str | None = "",
    retention_ms: int = -1,
) -> oc.OffsetCommitRequest:
    partitions = tuple(
        oc.OffsetCommitRequestPartition(
            partition_index=partition,
            committed_offset=offset,
            committed_leader_epoch=0,
            committed_metadata=metadata,
        )
        for partition, offset in offsets.items()
    )
    return oc.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        retention_time_ms=retention_ms,
        topics=(oc.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions),),
    )


def commit_codes(reply: oc.OffsetCommitResponse) -> list[int]:
    return [partition.error_code for topic in reply.topics for partition in topic.partitions]


def positions(
    partitions: Sequence[int] | None,
    *,
    group: str = GROUP,
    topic: str = "orders",
    topic_id: bytes = NO_UUID,
    stable: bool = False,
    member_id: str | None = None,
    member_epoch: int = -1,
) -> of.OffsetFetchRequest:
    """None asks for everything. Can be said in any version."""
    old = new = None
    if partitions is not None:
        old = (of.OffsetFetchRequestTopic(topic, tuple(partitions)),)
        new = (of.OffsetFetchRequestTopics(topic, topic_id, tuple(partitions)),)
    wanted = of.OffsetFetchRequestGroup(group_id=group, member_id=member_id, member_epoch=member_epoch, topics=new)
    return of.OffsetFetchRequest(group_id=group, topics=old, groups=(wanted,), require_stable=stable)


FetchedPlaces = dict[tuple[str, int], of.OffsetFetchResponsePartition | of.OffsetFetchResponsePartitions]


def found_positions(reply: of.OffsetFetchResponse) -> FetchedPlaces:
    """By topic and partition, in whatever version it was said; by id the topic's name is empty."""
    assert reply.error_code == 0
    found: FetchedPlaces = {}
    for group in reply.groups:
        assert group.error_code == 0
        found |= {(topic.name, place.partition_index): place for topic in group.topics for place in topic.partitions}
    found |= {(topic.name, place.partition_index): place for topic in reply.topics for place in topic.partitions}
    return found


def offsets_of(reply: of.OffsetFetchResponse) -> dict[int, int]:
    """Of the one topic asked for."""
    return {partition: place.committed_offset for (_, partition), place in found_positions(reply).items()}
