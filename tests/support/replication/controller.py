"""The controller in a world of replicas: it admits nodes and chooses leaders, from a view of the nodes that may lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.domain.replication.election import choose, prefer
from penstock.domain.replication.membership import MemberRecord, Trust, distrust, judge
from penstock.domain.replication.progress import Propose
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import View

if TYPE_CHECKING:
    from support.replication.node import Node
    from support.replication.world import World

STALE_SHARE = 0.2
PREFER_SHARE = 0.2


class Controller:
    def __init__(self, world: World) -> None:
        self._world = world
        self._view: View = {}

    def act(self) -> None:
        world = self._world
        if not world.faults.are_on or world.random.random() >= STALE_SHARE:
            self._view = world.store.view()
        for node in world.nodes:
            life = world.store.lives.get(node.id)
            if life is not None and life == node.life and not world.store.is_admitted(node.id, life):
                self._admit(node)
        self._store(choose(world.store.state, self._view, minimum=world.minimum))
        if world.faults.are_on and world.random.random() < PREFER_SHARE:
            self._move_leader()

    def _move_leader(self) -> None:
        """Somebody else is the first of the replicas, and so preferred."""
        state = self._world.store.state
        replicas = list(state.replicas)
        self._world.random.shuffle(replicas)
        for _, moved in prefer({0: replace(state, replicas=tuple(replicas))}, self._view):
            self._store(moved)

    def _admit(self, node: Node) -> None:
        """Everything follows from the verdict before the node counts; and any controller may die in between."""
        world, directory = self._world, node.directory
        if node.life not in directory.epochs:
            return
        verdict = judge(
            world.store.members.get(node.id),
            directory,
            node_id=node.id,
            cluster_id=directory.cluster_id,
            boot_id=directory.boot_id,
        )
        distrusted = distrust(world.store.state, node.id, verdict.trust, is_synced=True)
        node.is_untrusted = node.is_untrusted and verdict.trust is not Trust.NOTHING
        self._store(distrusted)
        if world.faults.are_on and world.random.random() < 0.2:
            return
        member = MemberRecord(directory_id=directory.directory_id, admitted_epoch=node.life, boot_id=directory.boot_id)
        world.store.admit(node.id, member)
        node.is_untrusted = False
        node.directory = replace(directory, is_stopped_cleanly=False)

    def _store(self, state: PartitionState | None) -> None:
        world = self._world
        if state is not None:
            assert world.change(Propose(state, world.store.key_revision))
