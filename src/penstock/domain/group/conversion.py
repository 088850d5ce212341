"""A group with members changes its protocol while they go on (KIP-848, migration).

Up, when the first member of the consumer protocol joins a classic group: its classic members become members of a
consumer group that hold what they held, at an epoch that is their generation; `bridge` serves them from then
on. Down, when the last member of the consumer protocol leaves: the others become a classic group that rebalances at
once.

Both ways the whole change is one set of records, written together.
"""

from __future__ import annotations

from penstock.domain.group.classic import ClassicGroup
from penstock.domain.group.classic_roster import ClassicMember, Roster
from penstock.domain.group.commands import Outbox
from penstock.domain.group.consumer import ConsumerGroup
from penstock.domain.group.records import (
    ClassicForm,
    ClassicGroupStored,
    ConsumerRecord,
    CurrentStored,
    EpochStored,
    GenerationStored,
    MemberState,
    MemberStored,
    TargetEpochStored,
    TargetStored,
)
from penstock.domain.group.subscription import (
    partitions_by_id,
    partitions_by_name,
    read_assignment,
    read_subscription,
    write_assignment,
)
from penstock.domain.group.target import resolve_topics
from penstock.domain.group.values import (
    CONSUMER_PROTOCOL_TYPE,
    Assignment,
    GroupConfig,
    GroupError,
    Migration,
    Partition,
    TopicFacts,
)


def can_become_consumer(classic: ClassicGroup, config: GroupConfig) -> bool:
    return (
        config.migration in (Migration.UPGRADE, Migration.BIDIRECTIONAL)
        and classic.uses_consumer_protocol
        and len(classic.roster.members) <= config.consumer_members_max
    )


def become_consumer(
    classic: ClassicGroup, config: GroupConfig, topics: TopicFacts, now_ms: int, out: Outbox
) -> ConsumerGroup | None:
    """None if a member's bytes cannot be read: the group stays classic. The records are in the group already; applying
    them again changes nothing.
    """
    members: dict[str, MemberStored] = {}
    for member_id, member in classic.roster.members.items():
        known = _consumer_member(classic, member)
        if known is None or read_assignment(member.assignment) is None:
            return None
        members[member_id] = known
    currents = _what_they_hold(classic, topics)
    # Members may know of a later generation than the stable one that they are taken over from; the next is nobody's.
    epoch = classic.generation_told + 1
    classic.answer_all(GroupError.REBALANCE_IN_PROGRESS, out)
    records: list[ConsumerRecord] = [
        *members.values(),
        EpochStored(epoch, resolve_topics(members, topics).digest, now_ms),
        *(TargetStored(current.member_id, current.assigned) for current in currents),
        TargetEpochStored(epoch),
        *currents,
    ]
    group = ConsumerGroup(config)
    for record in records:
        group.apply(record)
    for member_id in members:
        group.touch(member_id, now_ms)
    classic.tombstones(out)
    out.records += records
    return group


def _what_they_hold(classic: ClassicGroup, topics: TopicFacts) -> list[CurrentStored]:
    """Each holds what it was assigned. One that held more when it last joined may be giving that up at this moment:
    it is not free before it has joined again.
    """
    holders: dict[Partition, str] = {}
    assigned: dict[str, Assignment] = {}
    for member_id, member in classic.roster.members.items():
        named = read_assignment(member.assignment) or ()
        # A leader may have given a partition to two members; here it can have one holder.
        assigned[member_id] = tuple(each for each in partitions_by_id(named, topics) if each not in holders)
        holders.update(dict.fromkeys(assigned[member_id], member_id))
    currents = []
    for member_id, member in classic.roster.members.items():
        subscription = read_subscription(_metadata(classic, member))
        held = () if subscription is None else partitions_by_id(subscription.owned or (), topics)
        unrevoked = tuple(each for each in held if holders.setdefault(each, member_id) == member_id)
        unrevoked = tuple(each for each in unrevoked if each not in assigned[member_id])
        state = MemberState.UNREVOKED if unrevoked else MemberState.STABLE
        # Who has joined for the next generation may have given partitions up for it, and a commit of them may still
        # be on its way. It must not count any more, so its member gets a number that it does not know; it is told to
        # join again anyway.
        epoch = classic.generation_told + 1 if member_id in classic.joining else classic.generation
        currents.append(CurrentStored(member_id, epoch, epoch, state, assigned[member_id], unrevoked))
    return currents


def _metadata(classic: ClassicGroup, member: ClassicMember) -> bytes:
    """Of the protocol that the group has agreed on; of its first, if it has not yet."""
    return member.metadata(classic.protocol) or member.protocols[0][1]


def _consumer_member(classic: ClassicGroup, member: ClassicMember) -> MemberStored | None:
    subscription = read_subscription(_metadata(classic, member))
    if subscription is None:
        return None
    return MemberStored(
        member.member_id,
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        tuple(sorted(set(subscription.topics))),
        "",
        None,
        ClassicForm(member.session_timeout_ms, member.protocols),
    )


def can_become_classic(group: ConsumerGroup, gone: list[str], config: GroupConfig) -> bool:
    """The last member of the consumer protocol is going, and there are others."""
    staying = [member for member_id, member in group.members.items() if member_id not in gone]
    return (
        config.migration in (Migration.DOWNGRADE, Migration.BIDIRECTIONAL)
        and 0 < len(staying) <= config.classic_members_max
        and all(member.classic is not None for member in staying)
    )


def become_classic(
    group: ConsumerGroup, gone: list[str], config: GroupConfig, topics: TopicFacts, now_ms: int, out: Outbox
) -> ClassicGroup:
    roster = Roster()
    for member_id in sorted(group.members):
        member = group.members[member_id]
        if member_id not in gone and member.classic is not None:
            roster.add(_classic_member(member, member.classic, group.current(member_id).assigned, topics))
    record = ClassicGroupStored(
        group.epoch,
        CONSUMER_PROTOCOL_TYPE,
        roster.select_protocol(),
        roster.leader,
        now_ms,
        tuple(member.stored(member.assignment) for member in roster.members.values()),
    )
    group.tombstones(out)
    out.records.append(record)
    classic = ClassicGroup(config)
    classic.apply(record)
    classic.load(now_ms, out)
    # What the members that go have held belongs to nobody now. Not at once: `apply` will set the group stable.
    classic.rebalance_soon(now_ms)
    return classic


def become_empty_classic(group: ConsumerGroup, config: GroupConfig, out: Outbox) -> ClassicGroup:
    """Generations count on from the epoch, so that no two members ever hold a partition under the same number."""
    group.tombstones(out)
    out.records.append(GenerationStored(group.epoch))
    classic = ClassicGroup(config)
    classic.generation_told = group.epoch
    return classic


def _classic_member(member: MemberStored, form: ClassicForm, assigned: Assignment, topics: TopicFacts) -> ClassicMember:
    subscription = read_subscription(form.protocols[0][1])
    version = 0 if subscription is None else min(subscription.version, 3)
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        form.session_timeout_ms,
        form.protocols,
        write_assignment(partitions_by_name(assigned, topics), version=version),
    )
