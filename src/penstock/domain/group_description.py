"""A group as DescribeGroups, ConsumerGroupDescribe and ListGroups show it: values, for whoever asks."""

from __future__ import annotations

import msgspec

from penstock.domain.group_classic import ClassicGroup
from penstock.domain.group_consumer import ConsumerGroup
from penstock.domain.group_machine import Group
from penstock.domain.group_target import preferred_assignor
from penstock.domain.group_values import CONSUMER_PROTOCOL_TYPE, NO_PARTITIONS, Assignment, GroupKind

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


NO_GROUP = GroupDescription(GroupKind.CLASSIC, DEAD, "", "", -1, -1)


def describe(group: Group | None) -> GroupDescription:
    if group is None or not group.exists:
        return NO_GROUP
    return _classic(group.classic) if group.consumer is None else _consumer(group.consumer)


def state_of(group: Group) -> str:
    """Without the members, for lists."""
    return group.classic.state if group.consumer is None else group.consumer.state()


def protocol_type_of(group: Group) -> str:
    return group.classic.protocol_type if group.consumer is None else CONSUMER_PROTOCOL_TYPE


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
