"""What members bring into a group, in bytes, and how much of it is taken.

A member's subscription and its assignment are the clients' own business: bytes that are kept, stored and handed to
others unread. So they have bounds, of one member, of one group, and of all groups of a coordinator partition.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.domain.group.commands import ConsumerHeartbeat, GroupCommand, Join, Refused, Sync
from penstock.domain.group.records import MemberStored, Protocols
from penstock.domain.group.values import GroupConfig, GroupError


def protocols_bytes(protocols: Protocols) -> int:
    return sum(len(name) + len(metadata) for name, metadata in protocols)


def stored_bytes(member: MemberStored | None) -> int:
    """Of a member of the consumer protocol."""
    if member is None:
        return 0
    classic_bytes = 0 if member.classic is None else protocols_bytes(member.classic.protocols)
    return names_bytes(member.topic_names) + classic_bytes


def names_bytes(names: Iterable[str]) -> int:
    return sum(map(len, names))


class GroupSizes:
    """The bytes of all groups of a table. `weigh` says what a group has now."""

    __slots__ = ("_by_group", "bytes")

    def __init__(self) -> None:
        self._by_group: dict[str, int] = {}
        self.bytes = 0

    def weigh(self, group_id: str, size_bytes: int) -> None:
        self.bytes += size_bytes - self._by_group.get(group_id, 0)
        if size_bytes:
            self._by_group[group_id] = size_bytes
        else:
            self._by_group.pop(group_id, None)


def size_problem(
    command: GroupCommand, config: GroupConfig, *, held_bytes: int, group_bytes: int, all_bytes: int
) -> Refused | None:
    """`held_bytes`: what the command would replace."""
    match command:
        case Join():
            brought_bytes, bytes_max = protocols_bytes(command.protocols), config.member_bytes_max
        case ConsumerHeartbeat(topic_names=names) if names:
            brought_bytes, bytes_max = names_bytes(names), config.member_bytes_max
        case Sync(assignments=assignments) if assignments:
            brought_bytes, bytes_max = protocols_bytes(assignments), config.group_bytes_max
        case _:
            return None
    if brought_bytes > bytes_max:
        detail = f"{brought_bytes} bytes, at most {bytes_max} are kept"
        return Refused(GroupError.INVALID_REQUEST, command.member_id, detail)
    growth_bytes = brought_bytes - held_bytes
    if growth_bytes <= 0:
        return None
    if group_bytes + growth_bytes > config.group_bytes_max or all_bytes + growth_bytes > config.groups_bytes_max:
        detail = f"{growth_bytes} bytes more than the {group_bytes} of the group, and {all_bytes} of all, are too many"
        return Refused(GroupError.GROUP_MAX_SIZE_REACHED, command.member_id, detail)
    return None
