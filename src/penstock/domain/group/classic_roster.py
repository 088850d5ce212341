"""The members of a classic group: who they are, which protocols they share, who leads.

A static member is known by its instance id: whoever comes next with that id takes its place under a new member id, and
the old member id is fenced.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from penstock.domain.group.records import ClassicMemberStored, Protocols
from penstock.domain.group.sizes import protocols_bytes
from penstock.domain.group.values import GroupError


@dataclass(slots=True, eq=False)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    # It was away for a whole round, as only a static member can be: others may have what it still holds.
    is_behind: bool = False
    # It has never been answered, so it does not know its id and cannot heartbeat. Not kept.
    is_new: bool = False

    def metadata(self, protocol: str) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def stored(self, assignment: bytes) -> ClassicMemberStored:
        return ClassicMemberStored(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.protocols,
            assignment,
            self.is_behind,
        )


class Roster:
    """Changed only by its own methods, which keep the counts of shared protocols and the instance ids right."""

    __slots__ = ("_supporters", "assignment_bytes", "by_instance", "leader", "members", "protocol_bytes")

    def __init__(self) -> None:
        # In the order in which they came: the first to come leads.
        self.members: dict[str, ClassicMember] = {}
        self.by_instance: dict[str, str] = {}
        self.leader = ""
        self._supporters: dict[str, int] = {}
        self.protocol_bytes = 0
        self.assignment_bytes = 0

    def add(self, member: ClassicMember) -> None:
        self.members[member.member_id] = member
        self._count(member.protocols, 1)
        self.assignment_bytes += len(member.assignment)
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member.member_id
        if not self.leader:
            self.leader = member.member_id

    def remove(self, member_id: str) -> ClassicMember | None:
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._count(member.protocols, -1)
        self.assignment_bytes -= len(member.assignment)
        if member.instance_id is not None and self.by_instance.get(member.instance_id) == member_id:
            del self.by_instance[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), "")
        return member

    def change_protocols(self, member: ClassicMember, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def give_new_id(self, member: ClassicMember, new_member_id: str) -> None:
        """A static member has come back. It keeps its place in the order, its assignment and its lead."""
        assert member.instance_id is not None
        old_member_id = member.member_id
        self.members = {
            (new_member_id if member_id == old_member_id else member_id): kept
            for member_id, kept in self.members.items()
        }
        member.member_id = new_member_id
        member.is_behind = False
        self.by_instance[member.instance_id] = new_member_id
        if self.leader == old_member_id:
            self.leader = new_member_id

    def problem(self, member_id: str, instance_id: str | None) -> GroupError | None:
        """Why this is no member; None if it is one."""
        if instance_id is not None:
            known = self.by_instance.get(instance_id)
            if known is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if known != member_id:
                return GroupError.FENCED_INSTANCE_ID
        return None if member_id in self.members else GroupError.UNKNOWN_MEMBER_ID

    def shares_one_of(self, names: Iterable[str]) -> bool:
        count = len(self.members)
        return any(self._supporters.get(name, 0) == count for name in names)

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all have; a tie goes to the leader's favourite."""
        count = len(self.members)
        votes: dict[str, int] = {}
        for member in self._leader_first():
            for name, _metadata in member.protocols:
                if self._supporters[name] == count:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=lambda name: votes[name], default="")

    def elect_leader(self, candidates: Container[str]) -> bool:
        """Who leads goes on leading, if it can. False if no member is a candidate."""
        if self.leader in candidates:
            return True
        self.leader = next((member_id for member_id in self.members if member_id in candidates), self.leader)
        return self.leader in candidates

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _leader_first(self) -> list[ClassicMember]:
        leader = self.members.get(self.leader)
        others = [member for member in self.members.values() if member is not leader]
        return others if leader is None else [leader, *others]

    def _count(self, protocols: Protocols, step: int) -> None:
        self.protocol_bytes += step * protocols_bytes(protocols)
        # A name that is given twice counts once, or the group would seem to share what one member does not have.
        for name in dict.fromkeys(name for name, _metadata in protocols):
            self._supporters[name] = self._supporters.get(name, 0) + step
            if not self._supporters[name]:
                del self._supporters[name]
