"""Where new partitions are put: the rules of `domain.replication.placement`, asked with the nodes that serve now.

A node that is alone puts everything on itself, also before it has registered: it needs nobody's word for that. Only
nodes with an internal door share partitions: the others could neither fetch from a leader nor be fetched from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from penstock.cluster.catalog.first_placement import Runs, make_runs, replicas_of
from penstock.cluster.catalog.nodes import NodeCatalog
from penstock.domain.replication.placement import PlaceableNode, check_assignment, check_replication, place

# A topic that does not say has three replicas, or as many as there are nodes.
REPLICATION_BY_DEFAULT: Final = 3
# Of a request that leaves the number of replicas to the cluster.
BY_DEFAULT: Final = -1

# The replicas of each partition, who is preferred to lead first, where somebody has chosen them.
Assignment = tuple[tuple[int, ...], ...]


class InvalidReplication(msgspec.Struct, frozen=True):
    reason: str


class InvalidAssignment(msgspec.Struct, frozen=True):
    reason: str


class Candidates(msgspec.Struct, frozen=True):
    """The nodes that take partitions, and the life of each."""

    nodes: tuple[PlaceableNode, ...]
    lives: dict[int, int]


class Placing:
    """`owner_of_unplaced`: this node, if what an older version made without a placement is its own."""

    def __init__(
        self,
        node_id: int,
        nodes: NodeCatalog | None = None,
        *,
        owner_of_unplaced: int | None = None,
        by_default: int | None = None,
        draw_start: Callable[[], int] = lambda: 0,
    ) -> None:
        self.owner_of_unplaced = owner_of_unplaced
        self.node_id = node_id
        self._nodes = nodes
        self._by_default = by_default
        self._draw_start = draw_start

    def replication(self, wanted: int) -> int | InvalidReplication:
        """How many replicas a new topic has."""
        if wanted == BY_DEFAULT:
            sharing = len(self._candidates(replication=2).nodes)
            wanted = self._by_default or min(REPLICATION_BY_DEFAULT, max(1, sharing))
        reason = self._check_replication(wanted)
        return wanted if reason is None else InvalidReplication(reason)

    def _check_replication(self, replication: int) -> str | None:
        node_count = len(self._candidates(replication).nodes)
        reason = check_replication(replication, node_count)
        if reason is None or len(self._candidates().nodes) == node_count:
            return reason
        return f"{reason}; nodes without an internal door ([cluster] listen) are not counted"

    def place(
        self, count: int, replication: int, assignment: Assignment | None, *, existing: Runs = ()
    ) -> Runs | InvalidReplication | InvalidAssignment:
        """The runs of `count` new partitions."""
        candidates = self._candidates(replication)
        if assignment is not None:
            reason = _check_assignment(assignment, count, replication, candidates)
            return make_runs(assignment, candidates.lives) if reason is None else InvalidAssignment(reason)
        reason = self._check_replication(replication)
        if reason is not None:
            return InvalidReplication(reason)
        if len(candidates.nodes) == 1:
            # The same for all of them, however many: nothing is to be weighed up.
            return make_runs([(candidates.nodes[0].id,)] * count, candidates.lives)
        start, before = self._draw_start(), replicas_of(existing)
        return make_runs(place(count, replication, candidates.nodes, start=start, existing=before), candidates.lives)

    def _candidates(self, replication: int = 1) -> Candidates:
        serving = [] if self._nodes is None else self._nodes.serving()
        if replication > 1:
            serving = [each for each in serving if each.record.internal]
        if not serving and self.owner_of_unplaced is not None:
            return Candidates((PlaceableNode(self.node_id),), {})
        return Candidates(
            tuple(PlaceableNode(each.record.node_id, each.record.rack) for each in serving),
            {each.record.node_id: each.epoch for each in serving},
        )


def _check_assignment(
    assignment: Sequence[Sequence[int]], count: int, replication: int, candidates: Candidates
) -> str | None:
    if len(assignment) != count:
        return f"{len(assignment)} assignments for {count} new partitions"
    reason = check_assignment(assignment, {node.id for node in candidates.nodes})
    if reason is not None or len(assignment[0]) == replication:
        return reason
    return f"{len(assignment[0])} replicas are given, and the other partitions have {replication}"


# Of a catalog without a cluster around it.
ON_NODE_1: Final = Placing(1, owner_of_unplaced=1)
