"""Who of a share group reads which partition: unlike in other groups, several members may read the same one.

For each topic: every partition has a member, every member a partition, and the load is even: with more members than
partitions the members are spread over the partitions, otherwise the partitions over the members. What a member has, it
keeps as long as that holds: whoever moves leaves leases behind that nobody settles.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.domain.group.assign.values import MemberFacts
from penstock.domain.group.values import Assignment, Partition


def assign_share(members: Mapping[str, MemberFacts], partition_counts: Mapping[bytes, int]) -> dict[str, Assignment]:
    """The same facts, the same answer."""
    assigned: dict[str, list[Partition]] = {member_id: [] for member_id in sorted(members)}
    for topic_id in sorted(partition_counts):
        readers = [member_id for member_id in assigned if topic_id in members[member_id].topics]
        if readers and partition_counts[topic_id]:
            _assign_topic(topic_id, partition_counts[topic_id], readers, members, assigned)
    return {member_id: tuple(sorted(partitions)) for member_id, partitions in assigned.items()}


def _assign_topic(
    topic_id: bytes,
    partition_count: int,
    readers: list[str],
    members: Mapping[str, MemberFacts],
    assigned: dict[str, list[Partition]],
) -> None:
    before = {
        member_id: [
            number for topic, number in members[member_id].previous if topic == topic_id and number < partition_count
        ]
        for member_id in readers
    }
    if len(readers) >= partition_count:
        for member_id, number in _spread_members(before, partition_count).items():
            assigned[member_id].append((topic_id, number))
    else:
        for number, member_id in _spread_partitions(before, partition_count).items():
            assigned[member_id].append((topic_id, number))


def _spread_members(before: dict[str, list[int]], partition_count: int) -> dict[str, int]:
    """One partition for each member, and as many members for each partition, or one more."""
    loads = dict.fromkeys(range(partition_count), 0)
    few, extras = divmod(len(before), partition_count)
    targets: dict[str, int] = {}
    for member_id, numbers in before.items():
        for number in numbers:
            if loads[number] < few or (loads[number] == few and extras):
                extras -= loads[number] == few
                loads[number] += 1
                targets[member_id] = number
                break
    for member_id in before:
        if member_id not in targets:
            number = min(loads, key=lambda each: (loads[each], each))
            loads[number] += 1
            targets[member_id] = number
    return targets


def _spread_partitions(before: dict[str, list[int]], partition_count: int) -> dict[int, str]:
    """One member for each partition, and as many partitions for each member, or one more."""
    loads = dict.fromkeys(before, 0)
    few, extras = divmod(partition_count, len(before))
    targets: dict[int, str] = {}
    for member_id, numbers in before.items():
        for number in numbers:
            if number not in targets and (loads[member_id] < few or (loads[member_id] == few and extras)):
                extras -= loads[member_id] == few
                loads[member_id] += 1
                targets[number] = member_id
    for number in range(partition_count):
        if number not in targets:
            member_id = min(loads, key=lambda each: (loads[each], each))
            loads[member_id] += 1
            targets[number] = member_id
    return targets
