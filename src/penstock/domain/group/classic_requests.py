"""Sync, heartbeat, leave, and who may commit, in a classic group."""

from __future__ import annotations

from penstock.domain.group.classic import ClassicGroup, ClassicState
from penstock.domain.group.commands import (
    ALIVE,
    GroupReply,
    Heartbeat,
    Leave,
    LeavingMember,
    Left,
    LeftMember,
    Outbox,
    Refused,
    Sync,
)
from penstock.domain.group.values import GroupError


def decide_sync(group: ClassicGroup, command: Sync, now_ms: int, out: Outbox) -> GroupReply | None:
    problem = _sync_problem(group, command)
    if problem is not None:
        return Refused(problem)
    member = group.roster.members[command.member_id]
    group.note_sync(member.member_id)
    if group.state is ClassicState.STABLE:
        group.touch(member, now_ms)
        return group.synced(member.assignment)
    group.await_sync(member, command.ticket, out)
    if member.member_id == group.roster.leader:
        assignments = dict(command.assignments)
        # The record first: it makes the group stable. Nobody is told before it is durable.
        group.remember(assignments, now_ms, out)
        group.hand_out(assignments, now_ms, out)
    return None


def _sync_problem(group: ClassicGroup, command: Sync) -> GroupError | None:
    problem = group.roster.problem(command.member_id, command.instance_id)
    if problem is not None:
        return problem
    if command.generation != group.generation:
        return GroupError.ILLEGAL_GENERATION
    if command.protocol_type is not None and command.protocol_type != group.protocol_type:
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if command.protocol is not None and command.protocol != group.protocol:
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    return GroupError.REBALANCE_IN_PROGRESS if group.state is ClassicState.PREPARING else None


def decide_heartbeat(group: ClassicGroup, command: Heartbeat, now_ms: int) -> GroupReply:
    problem = group.roster.problem(command.member_id, command.instance_id)
    if problem is not None:
        return Refused(problem)
    if command.generation != group.generation:
        return Refused(GroupError.ILLEGAL_GENERATION)
    group.touch(group.roster.members[command.member_id], now_ms)
    if group.state is ClassicState.PREPARING:
        return Refused(GroupError.REBALANCE_IN_PROGRESS)
    return ALIVE


def decide_leave(group: ClassicGroup, command: Leave, now_ms: int, out: Outbox) -> Left:
    """All of them first, then one rebalance for all."""
    outcomes = tuple(
        LeftMember(leaving.member_id, leaving.instance_id, _leave_one(group, leaving, out))
        for leaving in command.members
    )
    somebody_left = any(outcome.error is None for outcome in outcomes)
    if somebody_left and group.state is not ClassicState.EMPTY:
        group.rebalance_or_complete(now_ms, out)
    return Left(outcomes)


def _leave_one(group: ClassicGroup, leaving: LeavingMember, out: Outbox) -> GroupError | None:
    member_id = leaving.member_id
    if not member_id:
        # An operator removes a static member, of which the instance id is all one knows.
        known = group.roster.by_instance.get(leaving.instance_id or "")
        if known is None:
            return GroupError.UNKNOWN_MEMBER_ID
        member_id = known
    elif member_id in group.pending:
        group.forget_pending(member_id)
        return None
    problem = group.roster.problem(member_id, leaving.instance_id)
    if problem is None:
        group.expel(member_id, GroupError.UNKNOWN_MEMBER_ID, out)
    return problem


def commit_problem(
    group: ClassicGroup, *, member_id: str, instance_id: str | None, generation: int, is_transactional: bool
) -> GroupError | None:
    """Who is not of this generation may have lost its partitions, and must not move their offsets."""
    if generation < 0 and group.state is ClassicState.EMPTY:
        # Nobody is here who could be disturbed: a consumer that assigns itself, or an operator.
        return None
    if generation >= 0 or member_id or instance_id is not None:
        problem = group.roster.problem(member_id, instance_id)
        if problem is not None:
            return problem
        if generation != group.generation:
            return GroupError.ILLEGAL_GENERATION
    elif not is_transactional:
        return GroupError.UNKNOWN_MEMBER_ID
    if not is_transactional and group.state is ClassicState.COMPLETING:
        # It knows the generation and nobody knows the assignment yet.
        return GroupError.REBALANCE_IN_PROGRESS
    return None


def touch_committer(group: ClassicGroup, member_id: str, now_ms: int) -> None:
    """A commit shows life, as a heartbeat does."""
    member = group.roster.members.get(member_id)
    if member is not None and not group.waits(member_id):
        group.touch(member, now_ms)
