"""Why a node was elected, as far as it can tell itself."""

from __future__ import annotations

import enum

from penstock.domain.replication.state import FIRST_EPOCH, PartitionState
from penstock.domain.replication.view import View


class ElectionCause(enum.Enum):
    # Who led before is not there any more.
    DEATH = "death"
    # Who led before is there and leads no longer: it drains, is damaged, or was not preferred.
    HAND_OVER = "hand-over"
    # Nobody led, or nobody knows who did: this node, or all of them, have been started anew.
    RETURN = "return"
    # By an operator, with what may be less than was promised.
    UNCLEAN = "unclean"


def cause_of(state: PartitionState, led_before: int | None, view: View) -> ElectionCause | None:
    """None: nobody was elected, the partition is as it was placed."""
    if state.epoch == FIRST_EPOCH:
        return None
    if state.unclean_epoch == state.epoch:
        return ElectionCause.UNCLEAN
    if led_before is None or led_before == state.leader:
        return ElectionCause.RETURN
    return ElectionCause.HAND_OVER if led_before in view else ElectionCause.DEATH
