"""Classic members within a consumer group, while the group moves from one protocol to the other (KIP-848, migration).

Such a member joins and syncs as it always did, and is treated as any member of a consumer group: its generation is
its member epoch, nobody leads, and instead of waiting for the others it is answered at once. When its assignment has
to change its heartbeat is told to rebalance; it then joins again, naming what it holds.

    join        what it wants and holds: one step of the consumer protocol, two if it has given up already
    sync        what it has now
    heartbeat   "rebalance" while the target has moved on, or while something it waits for has become free

Its deadlines: its session; `rejoin`, to come back once told to rebalance; `sync`, to ask for its assignment.
"""

from __future__ import annotations

from penstock.domain.group.classic import protocol_names
from penstock.domain.group.classic_join import join_problem
from penstock.domain.group.commands import (
    ALIVE,
    JOIN_EPOCH,
    GroupReply,
    Heartbeat,
    Join,
    Joined,
    Leave,
    LeavingMember,
    Left,
    LeftMember,
    Outbox,
    Refused,
    Sync,
    Synced,
)
from penstock.domain.group.consumer import ConsumerGroup, remove_members
from penstock.domain.group.consumer_heartbeat import Arrival, advance
from penstock.domain.group.records import (
    ClassicForm,
    CurrentStored,
    MemberState,
    MemberStored,
    Protocols,
    TargetStored,
)
from penstock.domain.group.subscription import (
    Subscription,
    partitions_by_id,
    partitions_by_name,
    read_subscription,
    write_assignment,
)
from penstock.domain.group.values import (
    CONSUMER_PROTOCOL_TYPE,
    NO_PARTITIONS,
    GroupError,
    TopicFacts,
)


def decide_bridge_join(group: ConsumerGroup, command: Join, topics: TopicFacts, now_ms: int, out: Outbox) -> GroupReply:
    subscription = read_subscription(command.protocols[0][1]) if command.protocols else None
    problem = _join_problem(group, command, subscription)
    if problem is not None or subscription is None:
        return Refused(problem or GroupError.INCONSISTENT_GROUP_PROTOCOL, command.member_id)
    if not command.member_id and command.instance_id is None and command.requires_known_id:
        return Refused(GroupError.MEMBER_ID_REQUIRED, command.new_member_id)
    arrival = _identify(group, command)
    if isinstance(arrival, Refused):
        return arrival
    owned = partitions_by_id(subscription.owned or (), topics)
    if not frozenset(owned) <= frozenset((*arrival.current.assigned, *arrival.current.pending_revocation)):
        # It was away, and others may have what it still holds: this makes it let go and join anew.
        return Refused(GroupError.UNKNOWN_MEMBER_ID, command.member_id)
    if arrival.replaces is not None:
        group.forget_deadlines(arrival.replaces)
        remove_members([arrival.replaces], out)
        out.records.append(TargetStored(arrival.member_id, arrival.target))
    member = _member(arrival, command, subscription)
    current = advance(group, arrival, member, owned, topics, now_ms, out, is_settled=True)
    member_id = arrival.member_id
    group.deadlines.cancel(("rejoin", member_id))
    group.deadlines.cancel(("revoke", member_id))
    group.deadlines.set(("session", member_id), now_ms + command.session_timeout_ms)
    group.deadlines.set(("sync", member_id), now_ms + command.rebalance_timeout_ms)
    return Joined(member_id, current.epoch, CONSUMER_PROTOCOL_TYPE, command.protocols[0][0], leader="")


def _join_problem(group: ConsumerGroup, command: Join, subscription: Subscription | None) -> GroupError | None:
    problem = join_problem(command, group.config)
    if problem is not None:
        return problem
    if command.protocol_type != CONSUMER_PROTOCOL_TYPE or subscription is None:
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if not _shares_a_protocol(group, command.protocols):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    is_known = command.member_id in group.members or command.instance_id in group.by_instance
    if not is_known and len(group.members) >= group.config.consumer_members_max:
        return GroupError.GROUP_MAX_SIZE_REACHED
    return None


def _shares_a_protocol(group: ConsumerGroup, protocols: Protocols) -> bool:
    """Should the group become classic again, its members must have a protocol in common."""
    shared = set(protocol_names(protocols))
    for member in group.members.values():
        if member.classic is not None:
            shared &= set(protocol_names(member.classic.protocols))
    return bool(shared)


def _identify(group: ConsumerGroup, command: Join) -> Arrival | Refused:
    member_id = command.member_id or command.new_member_id
    if command.instance_id is not None:
        known_id = group.by_instance.get(command.instance_id)
        if command.member_id and known_id != command.member_id:
            error = GroupError.UNKNOWN_MEMBER_ID if known_id is None else GroupError.FENCED_INSTANCE_ID
            return Refused(error, command.member_id)
        if known_id is not None and known_id != member_id:
            held = group.current(known_id)
            current = CurrentStored(member_id, JOIN_EPOCH, JOIN_EPOCH, MemberState.STABLE, held.assigned)
            return Arrival(member_id, group.members[known_id], current, group.target(known_id), known_id)
    known = group.members.get(member_id)
    if known is None:
        nothing = CurrentStored(member_id, JOIN_EPOCH, JOIN_EPOCH, MemberState.STABLE, NO_PARTITIONS)
        return Arrival(member_id, None, nothing, NO_PARTITIONS)
    return Arrival(member_id, known, group.current(member_id), group.target(member_id))


def _member(arrival: Arrival, command: Join, subscription: Subscription) -> MemberStored:
    return MemberStored(
        arrival.member_id,
        command.instance_id,
        subscription.rack_id,
        command.client_id,
        command.client_host,
        command.rebalance_timeout_ms,
        tuple(sorted(set(subscription.topics))),
        "",
        None,
        ClassicForm(command.session_timeout_ms, command.protocols),
    )


def decide_bridge_sync(group: ConsumerGroup, command: Sync, topics: TopicFacts, now_ms: int) -> GroupReply:
    problem = _member_problem(group, command.member_id, command.instance_id, command.generation)
    if problem is not None:
        return Refused(problem)
    member, current = group.members[command.member_id], group.current(command.member_id)
    assert member.classic is not None
    protocol, metadata = member.classic.protocols[0]
    is_other_type = command.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)
    if is_other_type or command.protocol not in (None, protocol):
        return Refused(GroupError.INCONSISTENT_GROUP_PROTOCOL)
    if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
        _call_back(group, member, now_ms)
        return Refused(GroupError.REBALANCE_IN_PROGRESS)
    group.deadlines.cancel(("sync", member.member_id))
    group.touch(member.member_id, now_ms)
    subscription = read_subscription(metadata)
    version = 0 if subscription is None else min(subscription.version, 3)
    assignment = write_assignment(partitions_by_name(current.assigned, topics), version=version)
    return Synced(CONSUMER_PROTOCOL_TYPE, protocol, assignment)


def decide_bridge_heartbeat(group: ConsumerGroup, command: Heartbeat, now_ms: int) -> GroupReply:
    problem = _member_problem(group, command.member_id, command.instance_id, command.generation)
    if problem is not None:
        return Refused(problem)
    group.touch(command.member_id, now_ms)
    if not _has_to_rejoin(group, group.current(command.member_id)):
        return ALIVE
    _call_back(group, group.members[command.member_id], now_ms)
    return Refused(GroupError.REBALANCE_IN_PROGRESS)


def _has_to_rejoin(group: ConsumerGroup, current: CurrentStored) -> bool:
    if current.epoch < group.epoch or current.state is MemberState.UNREVOKED:
        return True
    if current.state is MemberState.STABLE:
        return False
    return any(partition not in group.owners for partition in group.target(current.member_id))


def _call_back(group: ConsumerGroup, member: MemberStored, now_ms: int) -> None:
    key = ("rejoin", member.member_id)
    if key not in group.deadlines:
        group.deadlines.set(key, now_ms + member.rebalance_timeout_ms)


def _member_problem(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> GroupError | None:
    if instance_id is not None:
        known = group.by_instance.get(instance_id)
        if known is not None and known != member_id:
            return GroupError.FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        return GroupError.UNKNOWN_MEMBER_ID
    return None if generation == group.current(member_id).epoch else GroupError.ILLEGAL_GENERATION


def bridge_leave(group: ConsumerGroup, command: Leave) -> tuple[Left, list[str]]:
    """The answer, and who is to be fenced for it."""
    gone: list[str] = []
    outcomes = []
    for leaving in command.members:
        found = _find_leaving(group, leaving)
        if isinstance(found, GroupError):
            outcomes.append(LeftMember(leaving.member_id, leaving.instance_id, found))
            continue
        if found not in gone:
            gone.append(found)
        outcomes.append(LeftMember(leaving.member_id, leaving.instance_id))
    return Left(tuple(outcomes)), gone


def _find_leaving(group: ConsumerGroup, leaving: LeavingMember) -> str | GroupError:
    member_id = leaving.member_id
    if leaving.instance_id is not None:
        known = group.by_instance.get(leaving.instance_id)
        if known is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if member_id and member_id != known:
            return GroupError.FENCED_INSTANCE_ID
        member_id = known
    member = group.members.get(member_id)
    # An operator, who knows the instance id alone, may remove a member of either protocol.
    if member is None or (member.classic is None and leaving.member_id):
        return GroupError.UNKNOWN_MEMBER_ID
    return member_id
