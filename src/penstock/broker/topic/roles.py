"""What this node is to a partition, by what the metadata say of it. Pure.

leader is this node, in this life of it        → leading
leader is this node, alone, in whatever life   → leading: there is nobody whom an epoch would have to be told from,
                                                 and a start of ten thousand partitions would write as many keys
leader is this node, in an earlier life        → idle: nobody goes on in the epoch of an earlier life
leader is another node                         → following
nobody leads                                   → idle
"""

from __future__ import annotations

from penstock.broker.partition.role import Following, Idle, Leading, Role
from penstock.domain.replication.state import PartitionState


def has_replica(state: PartitionState, node_id: int) -> bool:
    """Its logs are here, or are to be."""
    return node_id in state.replicas or node_id in state.adding


def is_shared(state: PartitionState) -> bool:
    """Several nodes have it, or are about to: what is committed is theirs to say."""
    return len(state.replicas) > 1 or bool(state.adding)


def role_of(state: PartitionState, node_id: int, life: int) -> Role:
    if not state.has_leader:
        return Idle(f"none of its replicas {list(state.replicas)} may lead", state.epoch)
    if state.is_led_by(node_id, life):
        return Leading(state.epoch, is_shared(state))
    if state.leader != node_id:
        return Following(state.epoch, state.leader)
    return Idle(f"node {node_id} led it in an earlier life and waits to be elected anew", state.epoch)
