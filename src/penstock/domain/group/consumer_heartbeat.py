"""ConsumerGroupHeartbeat, the one request of the consumer protocol: join, report, be assigned, leave.

A heartbeat that brings no news and finds none is answered from three look-ups. Any other goes through all steps:

1. who is it: a new member, one that is known, a static one that is back, or one that must be fenced;
2. what does it want: a changed subscription, or changed topics, raise the group's epoch;
3. what shall everybody have: a new epoch needs a new target;
4. what can this member have now: one step of `reconcile`. Others take theirs at their own heartbeats.

A member that joins again under its own id (epoch 0) says that it holds nothing, and is believed.
"""

from __future__ import annotations

import msgspec

from penstock.domain.group.commands import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    UNCHANGED_MS,
    ConsumerAlive,
    ConsumerHeartbeat,
    GroupReply,
    Outbox,
    Refused,
)
from penstock.domain.group.consumer import ConsumerGroup, left_for_a_while, remove_members
from penstock.domain.group.reconcile import may_have_missed_an_answer, reconcile
from penstock.domain.group.records import CurrentStored, EpochStored, MemberState, MemberStored, TargetStored
from penstock.domain.group.target import decide_targets, resolve_topics
from penstock.domain.group.values import NO_PARTITIONS, Assignment, GroupError, TopicFacts, heartbeat_interval_ms


class Arrival(msgspec.Struct, frozen=True):
    """A member as it was before this request, and what it was called then if it has come back under a new id."""

    member_id: str
    known: MemberStored | None
    current: CurrentStored
    target: Assignment
    replaces: str | None = None


def decide_consumer_heartbeat(
    group: ConsumerGroup, command: ConsumerHeartbeat, topics: TopicFacts, now_ms: int, out: Outbox
) -> GroupReply:
    """Any epoch but those of leaving."""
    if _brings_no_news(group, command, topics):
        group.touch(command.member_id, now_ms)
        return _alive(group, command.member_id, command.member_epoch, None)
    arrival = _identify(group, command)
    if isinstance(arrival, Refused):
        return arrival
    if arrival.replaces is not None:
        _replace(group, arrival, out)
    member = _updated(arrival, command)
    joins = command.member_epoch == JOIN_EPOCH
    current = advance(group, arrival, member, command.owned, topics, now_ms, out, is_settled=joins)
    group.deadlines.set(("session", member.member_id), now_ms + group.config.consumer_session_timeout_ms)
    told = current.assigned if _is_full(command) or current.assigned != arrival.current.assigned else None
    return _alive(group, member.member_id, current.epoch, told, newcomers=int(arrival.known is None))


def _brings_no_news(group: ConsumerGroup, command: ConsumerHeartbeat, topics: TopicFacts) -> bool:
    current = group.currents.get(command.member_id)
    if (
        current is None
        or command.member_epoch != current.epoch
        or current.epoch != group.target_epoch
        or current.state is not MemberState.STABLE
        or group.stored_epoch.epoch != group.target_epoch
        or group.seen_revision != topics.revision
        or command.topic_names is not None
        or command.topic_regex is not None
        or command.owned is not None
        or command.assignor is not None
        or command.rack_id is not None
        or command.rebalance_timeout_ms != UNCHANGED_MS
    ):
        return False
    member = group.members.get(command.member_id)
    return (
        member is not None
        and member.classic is None
        and member.instance_id == command.instance_id
        and member.client_id == command.client_id
        and member.client_host == command.client_host
        and member.principal == command.principal
    )


def heartbeat_problem(group: ConsumerGroup, command: ConsumerHeartbeat, topics: TopicFacts) -> Refused | None:
    """Whatever is wrong with the request itself, whoever sends it."""
    detail = _contradiction(command)
    if detail is not None:
        return Refused(GroupError.INVALID_REQUEST, command.member_id, detail)
    if command.assignor is not None and command.assignor not in group.config.assignors:
        known = ", ".join(group.config.assignors)
        return Refused(GroupError.UNSUPPORTED_ASSIGNOR, command.member_id, f"{command.assignor}: there are {known}")
    if command.topic_regex:
        too_long = len(command.topic_regex) > group.config.regex_characters_max
        if too_long or topics.matching(command.topic_regex, command.principal) is None:
            return Refused(GroupError.INVALID_REGULAR_EXPRESSION, command.member_id)
    return None


def _contradiction(command: ConsumerHeartbeat) -> str | None:
    if command.instance_id == "" or command.rack_id == "":
        return "an instance id or a rack id, if there is one, is not empty"
    if command.member_epoch != JOIN_EPOCH and not command.member_id:
        return "only a member that joins may have no id"
    if command.member_epoch == JOIN_EPOCH:
        if command.rebalance_timeout_ms == UNCHANGED_MS:
            return "a member that joins gives its rebalance timeout"
        if command.owned is None or command.owned:
            return "a member that joins holds no partitions, and says so"
        if not command.topic_names and not command.topic_regex:
            return "a member that joins subscribes to something"
    elif command.member_epoch == STATIC_LEAVE_EPOCH and command.instance_id is None:
        return "only a member with an instance id can leave for a while"
    return "no such epoch" if command.member_epoch < STATIC_LEAVE_EPOCH else None


# ---------------------------------------------------------------------- who is it


def _identify(group: ConsumerGroup, command: ConsumerHeartbeat) -> Arrival | Refused:
    member_id = command.member_id or command.new_member_id
    if command.member_epoch == JOIN_EPOCH:
        return _identify_joining(group, command, member_id)
    problem = _member_problem(group, member_id, command.instance_id)
    if problem is not None:
        return Refused(problem, member_id)
    current = group.current(member_id)
    if command.member_epoch != current.epoch and not may_have_missed_an_answer(
        current, command.member_epoch, command.owned
    ):
        return Refused(GroupError.FENCED_MEMBER_EPOCH, member_id, f"it is at epoch {current.epoch}")
    return Arrival(member_id, group.members[member_id], current, group.target(member_id))


def _member_problem(group: ConsumerGroup, member_id: str, instance_id: str | None) -> GroupError | None:
    if instance_id is not None:
        known = group.by_instance.get(instance_id)
        if known is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if known != member_id:
            return GroupError.FENCED_INSTANCE_ID
    return None if member_id in group.members else GroupError.UNKNOWN_MEMBER_ID


def _identify_joining(group: ConsumerGroup, command: ConsumerHeartbeat, member_id: str) -> Arrival | Refused:
    previous_id = group.by_instance.get(command.instance_id) if command.instance_id is not None else None
    if previous_id is not None and previous_id != member_id:
        held = group.current(previous_id)
        is_classic = group.members[previous_id].classic is not None
        if not left_for_a_while(held) and not is_classic:
            return Refused(GroupError.UNRELEASED_INSTANCE_ID, member_id)
        current = CurrentStored(member_id, JOIN_EPOCH, JOIN_EPOCH, MemberState.STABLE, held.assigned)
        return Arrival(member_id, group.members[previous_id], current, group.target(previous_id), previous_id)
    known = group.members.get(member_id)
    if known is None and len(group.members) >= group.config.consumer_members_max:
        return Refused(GroupError.GROUP_MAX_SIZE_REACHED, member_id)
    nothing = CurrentStored(member_id, JOIN_EPOCH, JOIN_EPOCH, MemberState.STABLE, NO_PARTITIONS)
    return Arrival(member_id, known, nothing, group.target(member_id))


def _replace(group: ConsumerGroup, arrival: Arrival, out: Outbox) -> None:
    assert arrival.replaces is not None
    group.forget_deadlines(arrival.replaces)
    remove_members([arrival.replaces], out)
    out.records.append(TargetStored(arrival.member_id, arrival.target))


# ---------------------------------------------------------------------- what it wants, what it gets


def _updated(arrival: Arrival, command: ConsumerHeartbeat) -> MemberStored:
    known = arrival.known
    if known is None:
        known = MemberStored(arrival.member_id, None, None, "", "", 0, (), "", None)
    given_ms = command.rebalance_timeout_ms
    names = known.topic_names if command.topic_names is None else tuple(sorted(set(command.topic_names)))
    return MemberStored(
        arrival.member_id,
        known.instance_id if command.instance_id is None else command.instance_id,
        known.rack_id if command.rack_id is None else command.rack_id,
        command.client_id,
        command.client_host,
        known.rebalance_timeout_ms if given_ms == UNCHANGED_MS else given_ms,
        names,
        known.topic_regex if command.topic_regex is None else command.topic_regex,
        known.assignor if command.assignor is None else command.assignor,
        principal=command.principal,
    )


def advance(
    group: ConsumerGroup,
    arrival: Arrival,
    member: MemberStored,
    owned: Assignment | None,
    topics: TopicFacts,
    now_ms: int,
    out: Outbox,
    *,
    is_settled: bool = False,
) -> CurrentStored:
    """Steps 2 to 4, for members of either protocol.

    `is_settled`: the member adds and drops nothing at this moment, because it joins. Then what it does not name it does
    not have, and need not be asked to give up.
    """
    target_epoch, target = _next_target(group, arrival, member, topics, now_ms, out)
    owners = _owners(group, arrival)
    current = reconcile(arrival.current, target=target, target_epoch=target_epoch, owned=owned, owners=owners)
    if is_settled and current.state is MemberState.UNREVOKED:
        current = reconcile(current, target=target, target_epoch=target_epoch, owned=owned, owners=owners)
    if current != group.currents.get(member.member_id):
        out.records.append(current)
        if member.classic is None:
            group.watch_revocation(current, member.rebalance_timeout_ms, now_ms)
    return current


def _next_target(
    group: ConsumerGroup, arrival: Arrival, member: MemberStored, topics: TopicFacts, now_ms: int, out: Outbox
) -> tuple[int, Assignment]:
    """The epoch before what is new in it, so that nothing is stored of which no new target would come."""
    epoch, target_epoch, target = group.epoch, group.target_epoch, arrival.target
    wishes_differ = arrival.known is None or _wish(member) != _wish(arrival.known)
    if not wishes_differ and group.seen_revision == topics.revision and epoch == target_epoch:
        if member != arrival.known:
            out.records.append(member)
        return target_epoch, target
    members = {each: kept for each, kept in group.members.items() if each != arrival.replaces}
    members[member.member_id] = member
    resolved = resolve_topics(members, topics)
    group.seen_revision = topics.revision
    if wishes_differ or resolved.digest != group.stored_epoch.topics_digest:
        epoch += 1
        out.records.append(EpochStored(epoch, resolved.digest, now_ms))
    if member != arrival.known:
        out.records.append(member)
    if epoch == target_epoch:
        return target_epoch, target
    previous = {**group.targets, member.member_id: target}
    targets = decide_targets(members, resolved, previous, epoch=epoch, configured=group.config.assignors, out=out)
    return epoch, targets[member.member_id]


def _wish(member: MemberStored) -> tuple[tuple[str, ...], str, str | None, str]:
    return (member.topic_names, member.topic_regex, member.assignor, member.principal)


def _owners(group: ConsumerGroup, arrival: Arrival) -> dict[tuple[bytes, int], str]:
    if arrival.replaces is None:
        return group.owners
    return {partition: owner for partition, owner in group.owners.items() if owner != arrival.replaces}


def _is_full(command: ConsumerHeartbeat) -> bool:
    """A client that joins, or is not sure what its last answer was, sends everything and is told everything."""
    subscribes = command.topic_names is not None or command.topic_regex is not None
    is_complete = command.rebalance_timeout_ms != UNCHANGED_MS and subscribes and command.owned is not None
    return command.member_epoch == JOIN_EPOCH or is_complete


def _alive(
    group: ConsumerGroup, member_id: str, epoch: int, assignment: Assignment | None, *, newcomers: int = 0
) -> ConsumerAlive:
    interval_ms = heartbeat_interval_ms(group.config, len(group.members) + newcomers)
    return ConsumerAlive(member_id, epoch, interval_ms, assignment)


# ---------------------------------------------------------------------- leaving


def leaving_member_problem(group: ConsumerGroup, command: ConsumerHeartbeat) -> Refused | None:
    problem = _member_problem(group, command.member_id, command.instance_id)
    return None if problem is None else Refused(problem, command.member_id)


def decide_static_leave(group: ConsumerGroup, command: ConsumerHeartbeat, out: Outbox) -> GroupReply:
    """It keeps what it has, so that it can come back to it; what it was asked to give up it has given up."""
    refusal = leaving_member_problem(group, command)
    if refusal is not None:
        return refusal
    member_id, current = command.member_id, group.current(command.member_id)
    out.records.append(
        CurrentStored(member_id, STATIC_LEAVE_EPOCH, current.epoch, MemberState.STABLE, current.assigned)
    )
    group.deadlines.cancel(("revoke", member_id))
    return ConsumerAlive(member_id, STATIC_LEAVE_EPOCH, 0)


def fence_members(group: ConsumerGroup, member_ids: list[str], topics: TopicFacts, now_ms: int, out: Outbox) -> None:
    """They are out, and what they held is free at once. The target follows with the next heartbeat of anybody."""
    for member_id in member_ids:
        group.forget_deadlines(member_id)
    staying = {each: member for each, member in group.members.items() if each not in member_ids}
    digest = resolve_topics(staying, topics).digest
    group.seen_revision = topics.revision
    # The epoch first: should only the beginning of this be stored, nobody is gone without a new target being due.
    out.records.append(EpochStored(group.epoch + 1, digest, now_ms))
    remove_members(member_ids, out)
