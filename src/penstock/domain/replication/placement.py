"""Which nodes get the replicas of new partitions.

Rules:
- Replicas of one partition are on different nodes, and in as many racks as there are.
- Leaders are spread first, then replicas: who leads least leads next, who holds least holds next.
- Among equals a ring decides, in which the racks alternate. It begins at a number that the caller draws, and followers
  shift by one with every round of leaders: when a node dies, its leaders go to all the others, not to one neighbour.
- What is there already counts, so that a topic which grows goes on where it was.

Each check returns a whole sentence for the person who asked, or None.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

import msgspec


class PlaceableNode(msgspec.Struct, frozen=True):
    id: int
    # A node without a rack is a rack of its own.
    rack: str | None = None


def place(
    count: int,
    replication: int,
    nodes: Sequence[PlaceableNode],
    *,
    start: int,
    existing: Sequence[tuple[int, ...]] = (),
) -> list[tuple[int, ...]]:
    """The replicas of `count` new partitions; the first of each leads. Deterministic: chance is in `start` alone."""
    assert check_replication(replication, len(nodes)) is None
    book = _Book(nodes, start, existing)
    return [book.place_next(len(existing) + number, replication) for number in range(count)]


def check_replication(factor: int, node_count: int) -> str | None:
    if factor < 1:
        return f"a partition needs at least 1 replica, not {factor}"
    if factor > node_count:
        there = "there is 1" if node_count == 1 else f"there are {node_count}"
        return f"{factor} replicas need {factor} nodes that take partitions, and {there}"
    return None


def check_assignment(assignment: Sequence[Sequence[int]], known: Collection[int]) -> str | None:
    """Of replicas that somebody chose by hand: one row for each partition."""
    for index, replicas in enumerate(assignment):
        if not replicas:
            return f"partition {index} is given no replicas"
        doubled = sorted({node for node in replicas if list(replicas).count(node) > 1})
        if doubled:
            return f"partition {index} is given to node {doubled[0]} more than once"
        unknown = [node for node in replicas if node not in known]
        if unknown:
            return f"partition {index} is given to node {unknown[0]}, which is not there"
        if len(replicas) != len(assignment[0]):
            return (
                f"partition {index} is given {len(replicas)} replicas and partition 0 {len(assignment[0])}: "
                "all partitions of a topic have the same number"
            )
    return None


class _Book:
    """How much each node has, while partitions are placed one after the other."""

    __slots__ = ("_held", "_led", "_place", "_rack", "_ring")

    def __init__(self, nodes: Sequence[PlaceableNode], start: int, existing: Sequence[tuple[int, ...]]) -> None:
        ring = _alternating(nodes)
        begin = start % len(ring)
        self._ring = [node.id for node in ring[begin:] + ring[:begin]]
        self._place = {node: place for place, node in enumerate(self._ring)}
        self._rack = {node.id: rack_of(node) for node in nodes}
        self._led = dict.fromkeys(self._ring, 0)
        self._held = dict.fromkeys(self._ring, 0)
        for replicas in existing:
            self._note(replicas)

    def place_next(self, index: int, replication: int) -> tuple[int, ...]:
        leader = min(self._ring, key=lambda node: (self._led[node], self._held[node], self._place[node]))
        replicas = [leader]
        racks = {self._rack[leader]: 1}
        while len(replicas) < replication:
            node = self._follower(index, replicas, racks)
            replicas.append(node)
            racks[self._rack[node]] = racks.get(self._rack[node], 0) + 1
        self._note(replicas)
        return tuple(replicas)

    def _follower(self, index: int, replicas: list[int], racks: dict[str, int]) -> int:
        size = len(self._ring)
        leader_place, shift = self._place[replicas[0]], index // size
        return min(
            (node for node in self._ring if node not in replicas),
            key=lambda node: (
                racks.get(self._rack[node], 0),
                self._held[node],
                ((self._place[node] - leader_place) % size - 1 - shift) % (size - 1),
            ),
        )

    def _note(self, replicas: Sequence[int]) -> None:
        # Nodes that are gone may still be named by what is there.
        if replicas[0] in self._led:
            self._led[replicas[0]] += 1
        for node in replicas:
            if node in self._held:
                self._held[node] += 1


def rack_of(node: PlaceableNode) -> str:
    # No rack's name ends in a zero byte: the store keeps none that does.
    return f"{node.id}\0" if node.rack is None else node.rack


def _alternating(nodes: Sequence[PlaceableNode]) -> list[PlaceableNode]:
    racks: dict[str, list[PlaceableNode]] = {}
    for node in sorted(nodes, key=lambda node: node.id):
        racks.setdefault(rack_of(node), []).append(node)
    turns = zip_longest(*(racks[name] for name in sorted(racks)))
    return [node for turn in turns for node in turn if node is not None]
