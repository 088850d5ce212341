"""Why a node was elected, as it tells its operators."""

from __future__ import annotations

import pytest

from penstock.domain.replication.causes import ElectionCause, cause_of
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Standing

VIEW = {1: Standing(1), 2: Standing(1)}


@pytest.mark.parametrize(
    ("epoch", "unclean", "before", "cause"),
    [
        (0, -1, None, None),
        (3, -1, 2, ElectionCause.HAND_OVER),
        (3, -1, 3, ElectionCause.DEATH),
        (3, -1, None, ElectionCause.RETURN),
        (3, -1, 1, ElectionCause.RETURN),
        (3, 3, 3, ElectionCause.UNCLEAN),
        (4, 3, 3, ElectionCause.DEATH),
    ],
)
def test_election_is_counted_by_its_cause(
    epoch: int, unclean: int, before: int | None, cause: ElectionCause | None
) -> None:
    state = PartitionState(leader=1, life=1, epoch=epoch, replicas=(1, 2, 3), in_sync=(1,), unclean_epoch=unclean)
    assert cause_of(state, before, VIEW) is cause
