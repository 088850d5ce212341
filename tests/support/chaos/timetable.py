"""Faults on a timetable that a seed draws: what, whom, for how long. The same seed draws the same one.

One fault at a time, and all is well again before the next: two at once may cost a majority, and then nobody has
promised to go on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from support.chaos.network import Network
from support.chaos.nodes import NODE_IDS, Nodes
from support.programs.etcd import EtcdCluster

STORE: Final = "store"


class Kind(Enum):
    KILL = "kill -9"
    STOP = "SIGTERM"
    PAUSE = "SIGSTOP"
    CUT_FROM_STORE = "cut from the store"
    CUT_FROM_NODES = "cut from the other nodes"
    CUT_ONE_WAY = "cut one way, to one other node"
    STORE_MEMBER = "a member of etcd is killed"
    STORE_QUORUM = "two members of etcd are killed"
    STORE_AWAY = "all of etcd is killed"


# Seconds at least and at the most; a node that is killed is away for so long.
_LENGTHS: Final[Mapping[Kind, tuple[float, float]]] = {
    Kind.KILL: (0.0, 5.0),
    Kind.STOP: (0.0, 3.0),
    Kind.PAUSE: (2.0, 20.0),
    Kind.CUT_FROM_STORE: (2.0, 12.0),
    Kind.CUT_FROM_NODES: (2.0, 15.0),
    Kind.CUT_ONE_WAY: (2.0, 12.0),
    Kind.STORE_MEMBER: (1.0, 8.0),
    Kind.STORE_QUORUM: (1.0, 10.0),
    Kind.STORE_AWAY: (1.0, 15.0),
}


class Fault(msgspec.Struct, frozen=True):
    # Of load before it.
    after_seconds: float
    kind: Kind
    node_id: int
    other_id: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind.value}, node {self.node_id}, {self.seconds:.1f} s"


def draw(seed: int, count: int, kinds: Sequence[Kind] = tuple(Kind)) -> list[Fault]:
    chance = random.Random(seed)
    faults: list[Fault] = []
    for _ in range(count):
        kind = chance.choice(kinds)
        node_id, other_id = chance.sample(NODE_IDS, 2)
        seconds = chance.uniform(*_LENGTHS[kind])
        faults.append(Fault(chance.uniform(0.5, 3.0), kind, node_id, other_id, seconds))
    return faults


class Hand:
    """Does what the timetable says, and undoes it."""

    def __init__(self, nodes: Nodes, network: Network, etcd: EtcdCluster) -> None:
        self._nodes = nodes
        self._network = network
        self._etcd = etcd

    def do(self, fault: Fault) -> None:
        time.sleep(fault.after_seconds)
        undo = self._begin(fault)
        try:
            time.sleep(fault.seconds)
        finally:
            undo()
        self._nodes.wait_until_well()

    def _begin(self, fault: Fault) -> Callable[[], object]:
        """How it is undone."""
        node, place = self._nodes[fault.node_id], str(fault.node_id)
        match fault.kind:
            case Kind.KILL:
                node.kill()
                return node.start
            case Kind.STOP:
                assert node.terminate() == 0
                return node.start
            case Kind.PAUSE:
                node.pause()
                return node.resume
            case Kind.CUT_FROM_STORE:
                self._network.cut(place, STORE)
                return self._network.heal
            case Kind.CUT_FROM_NODES:
                for node_id in NODE_IDS:
                    if node_id != fault.node_id:
                        self._network.cut(place, str(node_id))
                return self._network.heal
            case Kind.CUT_ONE_WAY:
                self._network.cut_one_way(place, str(fault.other_id))
                return self._network.heal
            case _:
                members = {Kind.STORE_MEMBER: 1, Kind.STORE_QUORUM: 2, Kind.STORE_AWAY: 3}[fault.kind]
                for member in range(members):
                    self._etcd.kill_member(member)
                return self._etcd.start
