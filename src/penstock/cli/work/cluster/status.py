"""What `penstock cluster status` shows: the nodes with what they lead, and the partitions that are not well.

Asked by the wire alone, of whatever broker answers: Metadata, and DescribeConfigs for how many replicas must be in
sync.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.cli.output import counted, print_json, print_table, run_async, say
from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import Broker, ClusterClient, PartitionInfo, TopicInfo
from penstock.domain.replication.sets import minimum_in_sync
from penstock.net.address import parse_addresses

MINIMUM: Final = "min.insync.replicas"
# The others are counted: a node that is away leaves thousands of them.
PARTITIONS_SHOWN_MAX: Final = 50


class NodeStatus(msgspec.Struct, frozen=True):
    node_id: int
    address: str
    rack: str | None
    is_controller: bool
    leads: int
    replicas: int


class PartitionStatus(msgspec.Struct, frozen=True):
    """Of a partition that is not as it should be."""

    topic: str
    partition: int
    # None: nobody leads.
    leader: int | None
    epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    # So few are in sync that nobody can write to it with acks=all.
    is_under_minimum: bool
    # How many must be.
    minimum: int = 1


class ClusterStatus(msgspec.Struct, frozen=True):
    cluster_id: str | None
    controller: int
    nodes: list[NodeStatus]
    topics: int
    partitions: int
    out_of_sync: int
    under_minimum: int
    without_leader: int
    problems: list[PartitionStatus]


def status(bootstrap: str, *, as_json: bool) -> None:
    found = run_async(_status(bootstrap))
    if as_json:
        print_json(found)
        return
    columns = ("node", "address", "rack", "controller", "leads", "replicas")
    rows = [(str(n.node_id), n.address, n.rack, n.is_controller, n.leads, n.replicas) for n in found.nodes]
    print_table(columns, rows, title=f"cluster {found.cluster_id or ''}".rstrip())
    if found.problems:
        shown = [_cells(each) for each in found.problems[:PARTITIONS_SHOWN_MAX]]
        print_table(("topic", "partition", "leader", "epoch", "replicas", "in sync", "what is wrong"), shown)
    say(_sentence(found))


async def _status(bootstrap: str) -> ClusterStatus:
    async with ClusterClient(parse_addresses(bootstrap)) as client:
        topics = await client.topics()
        found = await admin.describe_setting(client, [topic.name for topic in topics], MINIMUM)
        minimums = {topic.name: _minimum(topic, found.get(topic.name)) for topic in topics}
        return survey(client.brokers, topics, minimums, cluster_id=client.cluster_id, controller=client.controller_id)


def survey(
    brokers: Iterable[Broker],
    topics: list[TopicInfo],
    minimums: dict[str, int],
    *,
    cluster_id: str | None,
    controller: int,
) -> ClusterStatus:
    """`minimums`: how many replicas must be in sync, by topic."""
    partitions = [(topic.name, each) for topic in topics for each in topic.partitions]
    leads = Counter(each.leader for _, each in partitions)
    replicas = Counter(node_id for _, each in partitions for node_id in each.replicas)
    problems = [
        _problem(name, each, minimums.get(name, 1))
        for name, each in partitions
        if _is_short(each, minimums.get(name, 1))
    ]
    return ClusterStatus(
        cluster_id=cluster_id,
        controller=controller,
        nodes=[
            NodeStatus(
                node_id=each.node_id,
                address=str(each.address),
                rack=each.rack,
                is_controller=each.node_id == controller,
                leads=leads[each.node_id],
                replicas=replicas[each.node_id],
            )
            for each in brokers
        ],
        topics=len(topics),
        partitions=len(partitions),
        out_of_sync=sum(len(each.in_sync) < len(each.replicas) for each in problems),
        under_minimum=sum(each.is_under_minimum for each in problems),
        without_leader=sum(each.leader is None for each in problems),
        problems=problems,
    )


def _is_short(partition: PartitionInfo, minimum: int) -> bool:
    return partition.leader < 0 or len(partition.in_sync) < max(minimum, len(partition.replicas))


def _minimum(topic: TopicInfo, configured: str | None) -> int:
    replication = max((len(each.replicas) for each in topic.partitions), default=1)
    return minimum_in_sync(None if configured is None else int(configured), replication)


def _problem(topic: str, partition: PartitionInfo, minimum: int) -> PartitionStatus:
    return PartitionStatus(
        topic=topic,
        partition=partition.partition,
        leader=partition.leader if partition.leader >= 0 else None,
        epoch=partition.leader_epoch,
        replicas=partition.replicas,
        in_sync=partition.in_sync,
        is_under_minimum=len(partition.in_sync) < minimum,
        minimum=minimum,
    )


def _cells(problem: PartitionStatus) -> tuple[object, ...]:
    words = ["no leader"] if problem.leader is None else []
    away = sorted(set(problem.replicas) - set(problem.in_sync))
    words += [f"not in sync: {', '.join(map(str, away))}"] if away else []
    if problem.minimum > len(problem.replicas):
        words.append(f"{MINIMUM} is {problem.minimum}, and there are {len(problem.replicas)} replicas")
    elif problem.is_under_minimum:
        words.append("under the minimum")
    replicas, in_sync = (" ".join(map(str, nodes)) for nodes in (problem.replicas, problem.in_sync))
    return (problem.topic, problem.partition, problem.leader, problem.epoch, replicas, in_sync, "; ".join(words))


def _sentence(found: ClusterStatus) -> str:
    of_all = f"{counted(len(found.nodes), 'node')}, {counted(found.partitions, 'partition')}"
    if not found.problems:
        return f"{of_all}: all in sync"
    left_out = len(found.problems) - PARTITIONS_SHOWN_MAX
    more = f" ({left_out:,} more are not shown)" if left_out > 0 else ""
    return (
        f"{of_all}: {found.out_of_sync:,} not in sync, {found.under_minimum:,} under the minimum, "
        f"{found.without_leader:,} without a leader{more}"
    )
