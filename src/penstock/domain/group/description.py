"""A group as DescribeGroups, ConsumerGroupDescribe and ListGroups show it: values, for whoever asks."""

from __future__ import annotations

import msgspec

from penstock.domain.group.classic import ClassicGroup
from penstock.domain.group.consumer import ConsumerGroup
from penstock.domain.group.machine import Group
from penstock.domain.group.subscription import read_assignment, read_subscription
from penstock.domain.group.target import preferred_assignor
from penstock.domain.group.values import CONSUMER_PROTOCOL_TYPE, NO_PARTITIONS, Assignment, GroupKind

DEAD = "Dead"


class MemberDescription(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    # Of the classic protocol: opaque.
    metadata: bytes = b""
    assignment: bytes = b""
    # Of a consumer group.
    rack_id: str | None = None
    member_epoch: int = -1
    topic_names: tuple[str, ...] = ()
    topic_regex: str = ""
    assigned: Assignment = NO_PARTITIONS
    target: Assignment = NO_PARTITIONS
    uses_classic_protocol: bool = False


class GroupDescription(msgspec.Struct, frozen=True):
    kind: GroupKind
    # A `ClassicState` or a `ConsumerState`; DEAD if there is no such group.
    state: str
    protocol_type: str
    # The classic group's protocol, the consumer group's assignor.
    protocol: str
    # The classic group's generation, the consumer group's epoch.
    epoch: int
    target_epoch: int
    members: tuple[MemberDescription, ...] = ()


class GroupPosition(msgspec.Struct, frozen=True):
    """How a group stands in one partition."""

    group_id: str
    # None: it reads the topic, and has not committed anything.
    position: int | None
    # Positions that wait for the end of a transaction: producer id and position.
    pending: tuple[tuple[int, int], ...]
    state: str
    member_count: int
    # Who has the partition, by member and client id.
    owner: tuple[str, str] | None


NO_GROUP = GroupDescription(GroupKind.CLASSIC, DEAD, "", "", -1, -1)


def describe(group: Group | None) -> GroupDescription:
    if group is None or not group.exists:
        return NO_GROUP
    return _classic(group.classic) if group.consumer is None else _consumer(group.consumer)


def summary(group: Group | None) -> GroupDescription:
    """Without the members and what follows from them, for lists."""
    if group is None or not group.exists:
        return NO_GROUP
    if group.consumer is not None:
        return GroupDescription(GroupKind.CONSUMER, group.consumer.state(), CONSUMER_PROTOCOL_TYPE, "", -1, -1)
    return GroupDescription(GroupKind.CLASSIC, group.classic.state, group.classic.protocol_type, "", -1, -1)


def state_of(group: Group) -> str:
    """Without the members, for lists."""
    return group.classic.state if group.consumer is None else group.consumer.state()


def _classic(group: ClassicGroup) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol),
            member.assignment,
            uses_classic_protocol=True,
        )
        for member in group.roster.members.values()
    )
    return GroupDescription(
        GroupKind.CLASSIC,
        group.state,
        group.protocol_type,
        group.protocol,
        group.generation,
        group.generation,
        members,
    )


def _consumer(group: ConsumerGroup) -> GroupDescription:
    members = tuple(
        MemberDescription(
            member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            rack_id=member.rack_id,
            member_epoch=group.current(member_id).epoch,
            topic_names=member.topic_names,
            topic_regex=member.topic_regex,
            assigned=group.current(member_id).assigned,
            target=group.target(member_id),
            uses_classic_protocol=member.classic is not None,
        )
        for member_id, member in sorted(group.members.items())
    )
    return GroupDescription(
        GroupKind.CONSUMER,
        group.state(),
        CONSUMER_PROTOCOL_TYPE,
        preferred_assignor(group.members, group.config.assignors),
        group.epoch,
        group.target_epoch,
        members,
    )


def position_of(group_id: str, group: Group, topic: str, topic_id: bytes, partition: int) -> GroupPosition | None:
    """None: it has nothing to do with the partition."""
    stored = group.offsets.get(topic, partition)
    waiting = group.offsets.pending_as_dict() if group.offsets.has_open_transactions else {}
    pending = [
        (producer_id, offsets[topic, partition].offset)
        for producer_id, offsets in waiting.items()
        if (topic, partition) in offsets
    ]
    described = describe(group) if group.has_more_than_offsets else NO_GROUP
    owner = next((member for member in described.members if _has(member, topic, topic_id, partition)), None)
    if stored is None and not pending and owner is None and not _is_read_by(described, topic):
        return None
    return GroupPosition(
        group_id,
        None if stored is None else stored.offset,
        tuple(pending),
        described.state,
        len(described.members),
        None if owner is None else (owner.member_id, owner.client_id),
    )


def _has(member: MemberDescription, topic: str, topic_id: bytes, partition: int) -> bool:
    if (topic_id, partition) in member.assigned:
        return True
    named = read_assignment(member.assignment) if member.assignment else None
    return named is not None and any(name == topic and partition in numbers for name, numbers in named)


def _is_read_by(described: GroupDescription, topic: str) -> bool:
    for member in described.members:
        subscription = read_subscription(member.metadata) if member.metadata else None
        topics = member.topic_names if subscription is None else subscription.topics
        if topic in topics:
            return True
    return False
