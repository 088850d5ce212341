"""What a group of real consumers notices when one of them goes: a small edition of `make bench-rebalance`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from bench.rebalance_gaps import departure
from bench.rebalance_group import GroupPlan, measure
from bench.rebalance_members import Arrivals

from support.node_process import NodeProcess

MEMBERS, PARTITIONS = 10, 30
# Half a second of heartbeat and a moment to begin; the rest is for a machine that does other things meanwhile.
RECOVERY_MS_MAX = 5_000
GAP_MS_MAX = 2_000


@pytest.mark.parametrize("protocol", ["consumer", pytest.param("classic", marks=pytest.mark.slow)])
def test_partitions_of_a_gone_member_move_at_once_and_others_read_on(tmp_path: Path, protocol: str) -> None:
    plan = GroupPlan(
        protocol=protocol,
        members=MEMBERS,
        partitions=PARTITIONS,
        directory=tmp_path,
        session_ms=2_000,
        calm_seconds=3.5,
    )
    with NodeProcess(tmp_path / "node", environment=plan.environment) as node:
        left, killed = measure(msgspec.structs.replace(plan, bootstrap=node.kafka))
    for found in (left, killed):
        # The second one had one more, if it was given one of the first one's.
        assert found.moved_partitions in (PARTITIONS // MEMBERS, PARTITIONS // MEMBERS + 1)
        assert found.recovered_ms < RECOVERY_MS_MAX
        assert found.gaps_ms[-1] < GAP_MS_MAX
        # A classic leader may take the opportunity to balance.
        assert found.needless_moves == 0 or protocol == "classic"
    # All but the leaver, then all but both.
    assert (len(left.gaps_ms), len(killed.gaps_ms)) == (MEMBERS - 1, MEMBERS - 2)


def test_gaps_are_counted_from_the_moment_of_departure() -> None:
    arrivals = Arrivals()
    # Member 0 has partition 0 and gets a record every tenth of a second, but none from 10.2 to 10.7.
    for tenth in range(60, 140):
        if not 102 <= tenth < 107:
            arrivals.add(tenth / 10, 0, 0)
        # Member 1 has partition 1 until 9.9, member 0 from 10.5 on.
        if tenth < 99:
            arrivals.add(tenth / 10, 1, 1)
        elif tenth >= 105:
            arrivals.add(tenth / 10, 0, 1)
    found = departure(arrivals, how="left", gone=1, moved=[1], known_at=10.0, until=14.0)
    assert found.recovery_ms == pytest.approx([500])
    assert found.gaps_ms == pytest.approx([600])
    assert found.steady_gaps_ms == pytest.approx([100])
    assert found.needless_moves == 0


def test_a_partition_that_moved_between_members_that_stayed_is_counted() -> None:
    arrivals = Arrivals()
    for tenth in range(60, 140):
        arrivals.add(tenth / 10, 0 if tenth < 110 else 2, 0)
        arrivals.add(tenth / 10, 1 if tenth < 100 else 2, 1)
    found = departure(arrivals, how="left", gone=1, moved=[1], known_at=10.0, until=14.0)
    assert found.needless_moves == 1
