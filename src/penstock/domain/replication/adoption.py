"""What becomes of a partition's state when metadata are adopted that are behind what nodes have acted on. Pure.

Nobody knows who was in sync last, or which epochs began since. So every replica is `unsure`, and when all are back the
longest log leads (`election.choose_longest`): whoever was in sync holds all that was committed, and nobody's log is
longer. Epochs are raised above any that a log can have.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.domain.replication.state import NO_LEADER, NO_LIFE, PartitionState

# More elections than a partition has seen since the copy was made.
EPOCHS_RAISED: Final = 1_000


def adopted(state: PartitionState) -> PartitionState:
    epoch = state.epoch + EPOCHS_RAISED
    if state.is_alone(state.leader):
        # There is nobody to be compared with: it goes on with what it has.
        return replace(state, epoch=epoch)
    members = tuple(sorted(state.replicas))
    return replace(
        state,
        leader=NO_LEADER,
        life=NO_LIFE,
        epoch=epoch,
        in_sync=members,
        eligible=(),
        unsure=members,
        mending=(),
    )


def with_found(state: PartitionState, node: int) -> PartitionState:
    """With a replica of which nobody knew until its node's directory was looked at."""
    members = tuple(sorted({*state.replicas, node}))
    replicas = (*state.replicas, *((node,) if node not in state.replicas else ()))
    return replace(state, leader=NO_LEADER, life=NO_LIFE, replicas=replicas, in_sync=members, unsure=members)
