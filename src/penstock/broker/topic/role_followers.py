"""Who lives with the partitions that this node leads: told at the very moment when a partition's role changes here.

    machines of the old leadership go ─► its promises are broken ─► the new role ─► machines of the new leadership come

All of it is one step, without an `await`: a machine that outlived its leadership for a moment would answer for somebody
else's log. In which order they are told stands with the order of all changes (`cluster/catalog/order`).
"""

from __future__ import annotations

from bisect import insort
from typing import Protocol

from penstock.broker.partition.role import Leading, Role
from penstock.broker.partition.shell import PartitionShell
from penstock.cluster.catalog.order import Kind, Part, place_of_part


class RoleFollower(Protocol):
    def resign(self, partition: PartitionShell) -> None:
        """Its leadership here ends, or there was none. The role is still the old one."""
        ...

    def lead(self, partition: PartitionShell) -> None:
        """A leadership of it has begun here."""
        ...


class RoleFollowers:
    def __init__(self) -> None:
        self._followers: list[tuple[int, RoleFollower]] = []

    def add(self, follower: RoleFollower, part: Part) -> None:
        insort(self._followers, (place_of_part(Kind.PARTITIONS, part), follower), key=lambda row: row[0])

    def resign(self, partition: PartitionShell) -> None:
        for _, follower in self._followers:
            follower.resign(partition)

    def lead(self, partition: PartitionShell) -> None:
        for _, follower in self._followers:
            follower.lead(partition)


def goes_on(before: Role, now: Role) -> bool:
    """It is the same leadership, whatever else has changed."""
    return isinstance(before, Leading) and isinstance(now, Leading) and before.epoch == now.epoch
