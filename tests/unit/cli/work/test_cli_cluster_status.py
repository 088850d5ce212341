"""What `penstock cluster status` makes of the metadata."""

from __future__ import annotations

from penstock.cli.work.cluster.status import _cells, survey
from penstock.client.kafka.cluster_client import Broker, PartitionInfo, TopicInfo
from penstock.net.address import Address

BROKERS = [Broker(1, Address("a", 1), "rack-a"), Broker(2, Address("b", 1))]
SOUND = PartitionInfo(partition=0, leader=1, leader_epoch=3, replicas=(1, 2), in_sync=(1, 2))
LAGGING = PartitionInfo(partition=1, leader=1, leader_epoch=4, replicas=(1, 2), in_sync=(1,))
LEADERLESS = PartitionInfo(partition=2, leader=-1, leader_epoch=5, replicas=(3, 2), in_sync=(3,))


def topic(*partitions: PartitionInfo) -> TopicInfo:
    return TopicInfo(name="orders", topic_id=bytes(16), is_internal=False, partitions=partitions)


def test_sound_cluster_has_no_problems() -> None:
    found = survey(BROKERS, [topic(SOUND)], {}, cluster_id="c", controller=2)
    assert (found.partitions, found.problems) == (1, [])
    assert [(node.node_id, node.rack, node.is_controller, node.leads, node.replicas) for node in found.nodes] == [
        (1, "rack-a", False, 1, 1),
        (2, None, True, 0, 1),
    ]


def test_partitions_out_of_sync_under_the_minimum_and_without_leader_are_counted_apart() -> None:
    found = survey(BROKERS, [topic(SOUND, LAGGING, LEADERLESS)], {"orders": 1}, cluster_id="c", controller=1)
    assert (found.out_of_sync, found.under_minimum, found.without_leader) == (2, 0, 1)
    assert [(each.partition, each.leader) for each in found.problems] == [(1, 1), (2, None)]
    stricter = survey(BROKERS, [topic(LAGGING)], {"orders": 2}, cluster_id="c", controller=1)
    assert stricter.under_minimum == 1


def test_minimum_above_the_replicas_is_told_as_the_reason() -> None:
    found = survey(BROKERS, [topic(SOUND)], {"orders": 3}, cluster_id="c", controller=1)
    assert (found.out_of_sync, found.under_minimum) == (0, 1)
    (problem,) = found.problems
    assert (problem.minimum, problem.is_under_minimum) == (3, True)
    assert _cells(problem)[-1] == "min.insync.replicas is 3, and there are 2 replicas"
