"""Who leaves the in-sync set of a partition, and what becomes of them. The same for leaders, followers, the controller.

Whoever is in the set holds everything that is committed. When the set falls below the minimum, nothing more is
committed (`progress`), so that those who leave in that step go on holding all of it: they become `eligible`. It does
not matter whether everybody has the same minimum in mind: while anybody is eligible the watermark stands still.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from penstock.domain.replication.state import PartitionState


def minimum_in_sync(configured: int | None, replication: int) -> int:
    """How many must hold a batch before it is committed. Half of the replicas, rounded up, if nobody said: 2 of 3."""
    return (replication + 1) // 2 if configured is None else configured


def without(state: PartitionState, leaving: Iterable[int], *, minimum: int, lost: Iterable[int] = ()) -> PartitionState:
    """The set after those have left it who are `leaving`, and those who no longer hold what is committed (`lost`)."""
    lost = frozenset(lost)
    gone = lost.union(leaving)
    in_sync = tuple(node for node in state.in_sync if node not in gone)
    eligible = [node for node in state.eligible if node not in lost]
    if len(in_sync) < minimum:
        eligible += [node for node in state.in_sync if node in gone and node not in lost]
    return replace(
        state,
        in_sync=in_sync,
        eligible=tuple(sorted(eligible)),
        unsure=tuple(node for node in state.unsure if node not in lost),
    )


def joined_by(state: PartitionState, joining: Iterable[int], *, minimum: int) -> PartitionState:
    """The set with those in it who hold everything that is committed.

    Back at the minimum nobody stays eligible: the store says so before anything more is committed.
    """
    in_sync = tuple(sorted({*state.in_sync, *joining}))
    eligible = () if len(in_sync) >= minimum else tuple(node for node in state.eligible if node not in in_sync)
    return replace(state, in_sync=in_sync, eligible=eligible)
