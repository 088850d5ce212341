"""Range: each topic's partitions in contiguous runs, in the order of the members.

Topics with equally many partitions are cut at the same places, so a member gets the same partition numbers of each:
that is what a join of two topics by key needs. Nothing is sticky but the order: static members come first, by
instance id, and keep their place when they restart under a new member id.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.domain.group.assign.values import MemberFacts
from penstock.domain.group.values import Assignment, Partition


def assign_range(members: Mapping[str, MemberFacts], partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    assigned: dict[str, list[Partition]] = {member_id: [] for member_id in members}
    subscribers: dict[bytes, list[str]] = {}
    for member in sorted(members.values(), key=_order):
        for topic_id in member.topics:
            subscribers.setdefault(topic_id, []).append(member.member_id)
    for topic_id in sorted(subscribers):
        readers = subscribers[topic_id]
        share, extra = divmod(partition_counts[topic_id], len(readers))
        start = 0
        for position, member_id in enumerate(readers):
            end = start + share + (position < extra)
            assigned[member_id] += [(topic_id, number) for number in range(start, end)]
            start = end
    return {member_id: tuple(sorted(partitions)) for member_id, partitions in assigned.items()}


def _order(member: MemberFacts) -> tuple[bool, str, str]:
    return (member.instance_id is None, member.instance_id or "", member.member_id)
