"""How a partition gets more replicas than it has: pure.

    adding ──► it fetches as a follower does ──► in sync ──► one of the replicas, and electable

Rules:
- Who is being added is waited for when it is in the set and not before, like everybody else.
- A partition of one replica begins a new epoch with the first that is added: from then on there is somebody whose log
  could differ, and who leads must not go on in the epoch of an earlier life.
- Who is being added stays so while it is away: what it has fetched is worth keeping. Only where somebody else could be
  asked is it given up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from penstock.domain.replication.election import led_by
from penstock.domain.replication.placement import PlaceableNode, rack_of
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import View

# Internal topics have so many replicas, or as many as there are nodes.
INTERNAL_REPLICATION: Final = 3
# More at a time would take the disks of those that are added from what they serve.
MOVES_AT_ONCE: Final = 8


def added(state: PartitionState, *, first: bool = False) -> PartitionState | None:
    """With those among the replicas who were added and are in sync. `first`: the cluster prefers that they lead."""
    joined = tuple(node for node in state.adding if node in state.in_sync)
    if not joined:
        return None
    replicas = (*joined, *state.replicas) if first else (*state.replicas, *joined)
    return replace(state, replicas=replicas, adding=tuple(node for node in state.adding if node not in joined))


def add(state: PartitionState, new: int, view: View) -> PartitionState | None:
    """With `new` on its way. None: nobody leads whom it could fetch from, or it is there already."""
    leader = view.get(state.leader)
    if new in state.replicas or new in state.adding or leader is None:
        return None
    if not leader.may_join or not state.is_led_by(state.leader, leader.life):
        return None
    grown = replace(state, adding=tuple(sorted({*state.adding, new})))
    is_first = len(state.replicas) == 1 and not state.adding
    return led_by(grown, state.leader, leader.life) if is_first else grown


def give_up(state: PartitionState, view: View, others: Collection[int]) -> PartitionState | None:
    """Without those who are being added and are away, if any of `others` could be asked instead."""
    away = [node for node in state.adding if node not in view and node not in state.in_sync]
    if not away or not any(node not in state.replicas and node not in state.adding for node in others):
        return None
    return replace(state, adding=tuple(node for node in state.adding if node not in away))


def next_replica(
    state: PartitionState, nodes: Sequence[PlaceableNode], held: Mapping[int, int], moving: Mapping[int, int]
) -> int | None:
    """The node that is to have the next replica: in a rack of its own, and with the least to hold. None: nobody may.

    `held` and `moving` say how many replicas each node has, and how many are on their way to it.
    """
    there = {*state.replicas, *state.adding}
    racks = [rack_of(node) for node in nodes if node.id in there]
    free = [node for node in nodes if node.id not in there and moving.get(node.id, 0) < MOVES_AT_ONCE]
    if not free:
        return None
    return min(free, key=lambda node: (racks.count(rack_of(node)), held.get(node.id, 0), node.id)).id
