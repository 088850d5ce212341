"""Where a topic's partitions were placed when they were made, as its key has it.

A partition has a key of its own from its first change on. Until then the topic's key tells all of it, so that a topic
of any size is made in one transaction. Neighbours that were placed alike are one run: on a node alone a topic of ten
thousand partitions is one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from penstock.domain.replication.state import NO_LEADER, NO_LIFE, PartitionState, first_state


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """The next `count` partitions. The first of `replicas` leads, in that life of its."""

    replicas: tuple[int, ...]
    life: int = NO_LIFE
    count: int = 1


Runs = tuple[Run, ...]


def make_runs(placed: Iterable[Sequence[int]], lives: Mapping[int, int]) -> Runs:
    """Of partitions in their order; `lives` are the broker epochs of the nodes that live now."""
    return tuple(
        Run(replicas, lives.get(replicas[0], NO_LIFE), sum(1 for _ in alike))
        for replicas, alike in groupby(map(tuple, placed))
    )


def join_runs(first: Runs, then: Runs) -> Runs:
    """Without a seam where both were placed alike."""
    if first and then and (first[-1].replicas, first[-1].life) == (then[0].replicas, then[0].life):
        joined = msgspec.structs.replace(then[0], count=first[-1].count + then[0].count)
        return (*first[:-1], joined, *then[1:])
    return (*first, *then)


def fill_runs(runs: Runs, partition_count: int, owner: int | None) -> Runs | None:
    """Of all partitions, or what comes behind them would take their place. None: nobody knows whose they are."""
    missing = partition_count - sum(run.count for run in runs)
    if missing <= 0:
        return runs
    return None if owner is None else join_runs(runs, (Run((owner,), count=missing),))


def replicas_of(runs: Runs) -> list[tuple[int, ...]]:
    """Of each partition, in order."""
    return [run.replicas for run in runs for _ in range(run.count)]


def nodes_of(runs: Runs) -> set[int]:
    return {node_id for run in runs for node_id in run.replicas}


def first_states(runs: Runs, partition_count: int, owner: int | None) -> list[PartitionState]:
    """Of each partition; those of a run are one value. What no run tells was made by a node alone: the `owner`'s, if
    this node knows who that was."""
    states: list[PartitionState] = []
    for run in runs:
        states += [first_state(run.replicas, run.life)] * run.count
    return states[:partition_count] + [_unplaced(owner)] * (partition_count - len(states))


def _unplaced(owner: int | None) -> PartitionState:
    if owner is not None:
        return first_state((owner,), NO_LIFE)
    return PartitionState(leader=NO_LEADER, life=NO_LIFE, epoch=0, replicas=(), in_sync=())
