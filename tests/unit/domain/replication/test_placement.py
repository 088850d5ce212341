from __future__ import annotations

from collections import Counter

import pytest

from penstock.domain.replication.placement import PlaceableNode, check_assignment, check_replication, place
from penstock.domain.replication.sets import minimum_in_sync


def nodes(racks: str) -> list[PlaceableNode]:
    """One node for each letter, which names its rack; '-' has none."""
    return [PlaceableNode(number, None if rack == "-" else rack) for number, rack in enumerate(racks, 1)]


@pytest.mark.parametrize("racks", ["---", "-----", "aabbcc", "aabb", "abc", "aaab"])
@pytest.mark.parametrize("start", [0, 1, 17])
def test_replicas_are_on_different_nodes_and_in_as_many_racks_as_there_are(racks: str, start: int) -> None:
    rack_of = {node.id: node.rack or str(node.id) for node in nodes(racks)}
    most = min(3, len(set(rack_of.values())))
    for replicas in place(50, 3, nodes(racks), start=start):
        assert len(set(replicas)) == 3
        assert len({rack_of[node] for node in replicas}) == most


@pytest.mark.parametrize("racks", ["---", "-----", "aabbcc", "aaabbb", "-------"])
@pytest.mark.parametrize("replication", [1, 2, 3])
def test_leaders_and_replicas_are_spread_evenly(racks: str, replication: int) -> None:
    placed = place(len(racks) * 7 + 2, replication, nodes(racks), start=4)
    led = Counter(replicas[0] for replicas in placed)
    held = Counter(node for replicas in placed for node in replicas)
    assert max(led.values()) - min(led.values()) <= 1
    assert max(held.values()) - min(held.values()) <= 1


def test_followers_of_a_node_are_not_always_the_same() -> None:
    placed = place(60, 3, nodes("------"), start=0)
    seconds = {replicas[1] for replicas in placed if replicas[0] == 1}
    assert len(seconds) >= 4


def test_start_moves_the_first_leader_and_nothing_else_is_left_to_chance() -> None:
    firsts = {place(1, 2, nodes("----"), start=start)[0][0] for start in range(8)}
    assert firsts == {1, 2, 3, 4}
    assert place(20, 3, nodes("aabbc"), start=3) == place(20, 3, list(reversed(nodes("aabbc"))), start=3)


def test_growth_goes_on_where_the_topic_was() -> None:
    at_once = place(12, 3, nodes("aabbcc"), start=2)
    first = place(5, 3, nodes("aabbcc"), start=2)
    assert first + place(7, 3, nodes("aabbcc"), start=2, existing=first) == at_once


def test_new_node_is_filled_first_and_a_gone_one_is_forgotten() -> None:
    existing = [*place(4, 1, nodes("--"), start=0), (9,)]
    assert place(2, 1, nodes("---"), start=0, existing=existing) == [(3,), (3,)]


def test_replication_is_checked_with_its_numbers() -> None:
    assert check_replication(3, 3) is None
    assert check_replication(0, 3) == "a partition needs at least 1 replica, not 0"
    assert check_replication(3, 1) == "3 replicas need 3 nodes that take partitions, and there is 1"
    assert "and there are 2" in (check_replication(3, 2) or "")


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ([[1, 2], [2, 1]], None),
        ([[1], []], "partition 1 is given no replicas"),
        ([[1, 2], [2, 2]], "partition 1 is given to node 2 more than once"),
        ([[1, 7]], "partition 0 is given to node 7, which is not there"),
        ([[1, 2], [1]], "partition 1 is given 1 replicas and partition 0 2"),
    ],
)
def test_assignment_is_checked_by_partition(assignment: list[list[int]], sentence: str | None) -> None:
    found = check_assignment(assignment, {1, 2, 3})
    assert found is None if sentence is None else sentence in (found or "")


def test_minimum_in_sync_is_half_rounded_up_unless_configured() -> None:
    assert [minimum_in_sync(None, replication) for replication in (1, 2, 3, 4, 5)] == [1, 1, 2, 2, 3]
    assert minimum_in_sync(3, 3) == 3
