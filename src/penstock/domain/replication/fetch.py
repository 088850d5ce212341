"""Whether a fetch of a replica counts at all, before its offset is looked at.

Every refusal is told to the follower as it is: what it does next depends on which of the two is behind.
"""

from __future__ import annotations

import enum

from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import View


class Refusal(enum.Enum):
    NOT_A_REPLICA = "the node has no replica of the partition"
    OLD_EPOCH = "the fetch is of an earlier leader epoch"
    NEW_EPOCH = "the fetch is of a leader epoch that has not begun here yet"
    STALE_LIFE = "the fetch is of another life of its node than the one that is registered and admitted"


def refuse(state: PartitionState, view: View, *, follower: int, life: int, epoch: int) -> Refusal | None:
    """By the leader of `state`; `epoch` is the leader epoch that the follower knows, `life` its own broker epoch.

    A fetch of an earlier life speaks of a disk or a memory that may be gone.
    """
    if follower not in state.replicas and follower not in state.adding:
        return Refusal.NOT_A_REPLICA
    if epoch != state.epoch:
        return Refusal.OLD_EPOCH if epoch < state.epoch else Refusal.NEW_EPOCH
    standing = view.get(follower)
    if standing is None or standing.life != life or not standing.is_admitted:
        return Refusal.STALE_LIFE
    return None
