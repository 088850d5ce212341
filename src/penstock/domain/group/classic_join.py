"""JoinGroup to a classic group: who may come in, under which id, and whether the group has to rebalance for it.

no id, no instance id      is given an id and joins with its next request (KIP-394), so that a client which gives up
                           and retries does not fill the group with ghosts
no id, instance id         a static member: new, or back again and then it takes its old place; the old id is fenced
an id that was given out   comes in
a member's id              has joined this round; a stable group rebalances only for its leader or for news
"""

from __future__ import annotations

from penstock.domain.group.classic import ClassicGroup, ClassicState, protocol_names
from penstock.domain.group.classic_roster import ClassicMember
from penstock.domain.group.commands import GroupReply, Join, Joined, Outbox, Refused
from penstock.domain.group.subscription import gave_up_something
from penstock.domain.group.values import GroupConfig, GroupError


def decide_join(group: ClassicGroup, command: Join, config: GroupConfig, now_ms: int, out: Outbox) -> GroupReply | None:
    problem = join_problem(command, config)
    if problem is None and not _suits(group, command):
        problem = GroupError.INCONSISTENT_GROUP_PROTOCOL
    if problem is not None:
        return Refused(problem, command.member_id)
    if not _has_room(group, command.member_id, config.classic_members_max):
        # Of a group that shrank to its new limit, the last to rejoin goes.
        group.expel(command.member_id, GroupError.GROUP_MAX_SIZE_REACHED, out)
        group.maybe_complete_join(now_ms, out)
        return Refused(GroupError.GROUP_MAX_SIZE_REACHED)
    if command.member_id:
        return _join_known(group, command, now_ms, out)
    if command.instance_id is not None:
        return _join_static(group, command, now_ms, out)
    if command.requires_known_id:
        group.add_pending(command.new_member_id, command.session_timeout_ms, now_ms)
        return Refused(GroupError.MEMBER_ID_REQUIRED, command.new_member_id)
    return _add(group, command, command.new_member_id, now_ms, out)


def join_problem(command: Join, config: GroupConfig) -> GroupError | None:
    if not config.session_timeout_ms_min <= command.session_timeout_ms <= config.session_timeout_ms_max:
        return GroupError.INVALID_SESSION_TIMEOUT
    if not command.protocol_type or not command.protocols:
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    return None


def _suits(group: ClassicGroup, command: Join) -> bool:
    if group.state is ClassicState.EMPTY:
        return True
    return group.protocol_type == command.protocol_type and group.roster.shares_one_of(
        protocol_names(command.protocols)
    )


def _has_room(group: ClassicGroup, member_id: str, members_max: int) -> bool:
    if group.state is ClassicState.PREPARING:
        # By those who have joined: the group may be over a limit that has become smaller.
        return member_id in group.joining or len(group.joining) < members_max
    if member_id in group.roster.members or member_id in group.pending:
        return True
    return len(group.roster.members) + len(group.pending) < members_max


def _join_static(group: ClassicGroup, command: Join, now_ms: int, out: Outbox) -> GroupReply | None:
    assert command.instance_id is not None
    known = group.roster.by_instance.get(command.instance_id)
    if known is None:
        return _add(group, command, command.new_member_id, now_ms, out)
    return _return_static(group, command, group.roster.members[known], now_ms, out)


def _join_known(group: ClassicGroup, command: Join, now_ms: int, out: Outbox) -> GroupReply | None:
    if command.member_id in group.pending and command.instance_id is None:
        return _add(group, command, command.member_id, now_ms, out)
    problem = group.roster.problem(command.member_id, command.instance_id)
    if problem is not None:
        return Refused(problem, command.member_id)
    member = group.roster.members[command.member_id]
    if member.is_behind:
        # This makes it let go of everything and come back by its instance id. Kafka takes it in as it is, and a
        # cooperative member would go on with partitions that were given to others while it was away.
        return Refused(GroupError.UNKNOWN_MEMBER_ID, command.member_id)
    is_news = member.protocols != command.protocols
    if group.state is ClassicState.COMPLETING and not is_news:
        # Its answer may have been lost: it is told the same again.
        group.touch(member, now_ms)
        return group.joined(member.member_id)
    if group.state is ClassicState.STABLE and not is_news and member.member_id != group.roster.leader:
        group.touch(member, now_ms)
        return group.joined(member.member_id)
    # A leader rejoins a stable group because it saw something change that its metadata does not show, such as
    # a topic with more partitions.
    _update(group, member, command)
    group.await_join(member, command.ticket, now_ms, out)
    group.rebalance_or_complete(now_ms, out)
    return None


def _add(group: ClassicGroup, command: Join, member_id: str, now_ms: int, out: Outbox) -> GroupReply | None:
    group.forget_pending(member_id)
    if not group.roster.members:
        group.protocol_type = command.protocol_type
    member = ClassicMember(
        member_id,
        command.instance_id,
        command.client_id,
        command.client_host,
        command.rebalance_timeout_ms,
        command.session_timeout_ms,
        command.protocols,
        is_new=True,
    )
    group.roster.add(member)
    group.note_newcomer()
    group.await_join(member, command.ticket, now_ms, out)
    group.rebalance_or_complete(now_ms, out)
    return None


def _return_static(
    group: ClassicGroup, command: Join, member: ClassicMember, now_ms: int, out: Outbox
) -> GroupReply | None:
    """It takes its place under a new id. A stable group goes on without a rebalance, that is what static means; unless
    the others wait for something that the member was to let go, of which the new process knows nothing.
    """
    old_leader = group.roster.leader
    owes_a_join = group.uses_consumer_protocol and gave_up_something(member.metadata(group.protocol), member.assignment)
    group.answer_member(member.member_id, GroupError.FENCED_INSTANCE_ID, out)
    group.deadlines.cancel(("session", member.member_id))
    group.owing_sync.pop(member.member_id, None)
    group.roster.give_new_id(member, command.new_member_id)
    _update(group, member, command)
    is_the_same = group.roster.select_protocol() == group.protocol and not owes_a_join
    if group.state is ClassicState.STABLE and is_the_same:
        group.touch(member, now_ms)
        assignments = {each.member_id: each.assignment for each in group.roster.members.values()}
        group.remember(assignments, now_ms, out)
        return _answer_returned(group, member.member_id, old_leader, command.supports_skip_assignment)
    group.await_join(member, command.ticket, now_ms, out)
    # Also while completing: the leader assigns by ids that it was told before, and would leave the new one out.
    group.rebalance_or_complete(now_ms, out)
    return None


def _answer_returned(group: ClassicGroup, member_id: str, old_leader: str, supports_skip_assignment: bool) -> Joined:
    """A leader that comes back must not assign anew, or partitions would move: it is told to skip that, or, if its
    version cannot be told, that the old id leads.
    """
    joined = group.joined(member_id)
    if supports_skip_assignment:
        return Joined(
            member_id,
            joined.generation,
            joined.protocol_type,
            joined.protocol,
            joined.leader,
            joined.members,
            skip_assignment=member_id == joined.leader,
        )
    return Joined(member_id, joined.generation, joined.protocol_type, joined.protocol, old_leader)


def _update(group: ClassicGroup, member: ClassicMember, command: Join) -> None:
    group.roster.change_protocols(member, command.protocols)
    member.rebalance_timeout_ms = command.rebalance_timeout_ms
    member.session_timeout_ms = command.session_timeout_ms
    member.client_id = command.client_id
    member.client_host = command.client_host
