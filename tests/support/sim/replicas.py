"""Replicas of a cluster as an onlooker sees them: during a story the roles and ends, after it every byte.

every so often: who leads in which epoch, how far is committed, do those who are in sync hold that
at the end:     everybody in sync ─► ends and starts equal ─► the same batches, whose epochs never fall
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from penstock.broker.partition.role import Leading
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.replication.group import log_names
from penstock.broker.topic.companion import CompanionKind
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Entry
from penstock.cluster.store.values import decode
from penstock.codec.batch.header import walk_headers
from penstock.domain.replication.state import PartitionState
from penstock.storage.segment.facts import LOG_SUFFIX
from support.sim.invariants import (
    EPOCHS_GROW,
    EQUAL_BELOW_WATERMARK,
    ONE_LEADER,
    SET_TRUTH,
    WATERMARK_MONOTONIC,
    WELL_AFTER_QUIET,
    InvariantError,
    check,
)
from support.sim.node import SimNode
from support.sim.world import World

KEYS: Final = KeySpace()
LOOK_SECONDS: Final = 0.05
QUIET_LOOK_SECONDS: Final = 0.5
# Everything that a node waits for by itself is shorter.
QUIET_SECONDS: Final = 90.0

Place = tuple[bytes, int]
Batches = dict[int, bytes]


@dataclass(slots=True)
class Onlooker:
    """Looks while a story is told."""

    world: World
    # Who leads or led it: by place and epoch, the owner (a node in one of its lives).
    leaders: dict[tuple[Place, int], str] = field(default_factory=dict)
    watermarks: dict[tuple[Place, int], int] = field(default_factory=dict)
    # How far somebody has ever said that it is committed, by log.
    committed: dict[Place, int] = field(default_factory=dict)
    # And below which a leader has ever removed it.
    removed: dict[Place, int] = field(default_factory=dict)
    # States by their keys, with the revisions at which they were decoded.
    _known: dict[str, tuple[int, PartitionState]] = field(default_factory=dict)

    async def look_on(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        for node in self.world.nodes:
            if node.parts is not None:
                for shell in node.parts.broker.all_shells():
                    self._look_at(node, shell)
        self._check_sets()

    def _look_at(self, node: SimNode, shell: PartitionShell) -> None:
        log = shell.log
        place = (log.home.topic_id, shell.index)
        self.committed[place] = max(self.committed.get(place, 0), log.readable_end)
        if not isinstance(shell.role, Leading):
            return
        self.removed[place] = max(self.removed.get(place, 0), log.log_start)
        at = (place, shell.role.epoch)
        first = self.leaders.setdefault(at, node.owner)
        what = f"{shell.topic}-{shell.index} in epoch {at[1]}: {first} and {node.owner}"
        check(ONE_LEADER, holds=first == node.owner, what=what)
        before = self.watermarks.get(at, 0)
        what = f"{shell.topic}-{shell.index} in epoch {at[1]} was committed up to {before}, now {log.readable_end}"
        check(WATERMARK_MONOTONIC, holds=log.readable_end >= before, what=what)
        self.watermarks[at] = log.readable_end

    def _check_sets(self) -> None:
        """Of partitions that have a key of their own: by what the store holds, whoever knows it."""
        for entry in self.world.engine.state.range(KEYS.partitions).entries:
            place, state = KEYS.partition_of(entry.key), self._decoded(entry)
            for node in self.world.nodes:
                if node.parts is not None and node.number in state.in_sync:
                    self._check_member(node, place, state)

    def _decoded(self, entry: Entry) -> PartitionState:
        known = self._known.get(entry.key)
        if known is None or known[0] != entry.mod_revision:
            known = self._known[entry.key] = (entry.mod_revision, decode(entry.key, entry.value, PartitionState))
        return known[1]

    def _check_member(self, node: SimNode, place: Place, state: PartitionState) -> None:
        """If it has heard of it: before that its log may be another one."""
        assert node.parts is not None
        served = node.parts.broker.topic_by_id(place[0])
        shell = None if served is None else served.shell(place[1])
        if shell is None or shell.role.epoch != state.epoch:
            return
        companions = [node.parts.broker.open_companion_of(shell, kind) for kind in CompanionKind]
        for each in [shell, *(companion for companion in companions if companion is not None)]:
            committed, end = self.committed.get((each.log.home.topic_id, each.index), 0), each.log.log_end
            what = f"node {node.number} is in sync in {each.topic}-{each.index} and holds {end} of {committed}: {state}"
            check(SET_TRUTH, holds=end >= committed, what=what)
            removed, start = self.removed.get((each.log.home.topic_id, each.index), 0), each.log.log_start
            what = (
                f"node {node.number} holds {each.topic}-{each.index} from {start} on, and no leader removed {removed}"
            )
            check(SET_TRUTH, holds=start <= removed, what=what)


# After the story


async def check_replicas(world: World) -> None:
    """Everybody comes to be in sync, and then all are equal."""
    deadline = world.loop.time() + QUIET_SECONDS
    while (problem := _unsettled(world)) is not None:
        if world.loop.time() > deadline:
            raise InvariantError(WELL_AFTER_QUIET, f"{problem} after {QUIET_SECONDS:g} quiet seconds")
        await asyncio.sleep(QUIET_LOOK_SECONDS)
    for place, state in _all_states(world):
        for name in log_names(*place):
            _check_log(world, f"{name.topic_id.hex()}/{name.partition}", state)


def _all_states(world: World) -> list[tuple[Place, PartitionState]]:
    """As any node knows them; all of them agree by then."""
    parts = world.nodes[0].parts
    assert parts is not None
    return [
        ((topic.topic_id, index), stated.state)
        for topic in parts.topics.topics()
        for index, stated in parts.topics.states(topic.topic_id)
    ]


def _unsettled(world: World) -> str | None:
    if any(node.parts is None for node in world.nodes):
        return "a node is not open"
    for place, state in _all_states(world):
        name = f"{place[0].hex()}-{place[1]}"
        if not state.has_leader:
            return f"{name} has no leader: {state}"
        if set(state.in_sync) != set(state.replicas) or state.eligible or state.mending or state.unsure:
            return f"{name} is not in sync: {state}"
        ends = {node.number: _ends(node, place) for node in world.nodes if node.number in state.replicas}
        logs = [[(readable, end, epoch) for _start, readable, end, epoch in each] for each in ends.values()]
        is_even = all(each == logs[0] for each in logs) and all(readable == end for readable, end, _epoch in logs[0])
        # Another leader before may have removed more than this one has.
        firsts = [[start for start, *_ in each] for each in (ends[state.leader], *ends.values())]
        if not is_even or any(start < own for each in firsts for start, own in zip(each, firsts[0], strict=False)):
            return f"{name} differs: {ends}"
    return None


def _ends(node: SimNode, place: Place) -> tuple[tuple[int, int, int, int], ...]:
    """Start, readable end, end and epoch of its three logs; of one that is not open, those of an empty one."""
    assert node.parts is not None
    broker = node.parts.broker
    served = broker.topic_by_id(place[0])
    shell = None if served is None else served.shell(place[1])
    if shell is None:
        return ()
    companions = [broker.open_companion_of(shell, kind) for kind in CompanionKind]
    logs = [None if each is None else each.log for each in (shell, *companions)]
    return tuple(
        (0, 0, 0, shell.role.epoch) if log is None else (log.log_start, log.readable_end, log.log_end, shell.role.epoch)
        for log in logs
    )


def _check_log(world: World, log: str, state: PartitionState) -> None:
    held = {node.host: _batches_of(node, log) for node in world.nodes if node.number in state.replicas}
    # Segments go as a whole, and each replica has its own.
    start = max((min(batches, default=0) for batches in held.values()), default=0)
    held = {host: {at: data for at, data in batches.items() if at >= start} for host, batches in held.items()}
    first_host, first = next(iter(held.items()))
    for host, batches in held.items():
        _check_epochs(f"{log} on {host}", batches)
        differing = sorted(offset for offset in {*first, *batches} if first.get(offset) != batches.get(offset))
        what = f"{log} differs on {first_host} and {host} at offsets {differing[:5]}"
        check(EQUAL_BELOW_WATERMARK, holds=not differing, what=what)


def _batches_of(node: SimNode, log: str) -> Batches:
    """By their base offset; a log that was never opened is empty."""
    found: Batches = {}
    for path in sorted(node.files.paths()):
        if path.endswith(LOG_SUFFIX) and path.rpartition("/")[0].endswith(f"/{log}"):
            data = node.files.content(path)
            for position, header in walk_headers(data):
                found[header.base_offset] = data[position : position + header.size_bytes]
    return found


def _check_epochs(what: str, batches: Batches) -> None:
    last = -1
    for offset, data in sorted(batches.items()):
        ((_position, header),) = list(walk_headers(data))
        is_grown = header.leader_epoch >= last
        check(EPOCHS_GROW, holds=is_grown, what=f"{what}: epoch {header.leader_epoch} at {offset}, after {last}")
        last = header.leader_epoch
