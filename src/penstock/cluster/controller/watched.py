"""A connection to each node whose end this one would have to tell: it is seen at once, and not after the TTL.

    serves, and falls to this node ──► connected ──► lost ──► connected again, or refused: `RefusedNodes`

The controller has one to everybody, and the lowest of the others one to the controller: no more than two connections
for each node, and no question is ever asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.base.tasks import TaskSupervisor
from penstock.cluster.catalog.nodes import NodeCatalog, NodesChanged
from penstock.cluster.catalog.order import Part
from penstock.cluster.controller.refusals import RefusedNodes
from penstock.domain.replication.view import Duty
from penstock.net.errors import PeerError

# Returns when a connection to that node was there and is lost. PeerError: there is none to be had.
UntilLost = Callable[[int], Awaitable[None]]

# Between two attempts, beside what whoever connects waits by itself.
_AGAIN_S: Final = 0.1


class WatchedNodes:
    def __init__(
        self, nodes: NodeCatalog, refusals: RefusedNodes, until_lost: UntilLost, *, node_id: int, tasks: TaskSupervisor
    ) -> None:
        self._nodes = nodes
        self._refusals = refusals
        self._until_lost = until_lost
        self._node_id = node_id
        self._tasks = tasks
        self._watches: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        self._nodes.on_change(self._on_nodes, Part.WATCHED_NODES)
        self._settle()

    def _on_nodes(self, _change: NodesChanged) -> None:
        self._settle()

    def _settle(self) -> None:
        wanted = [
            each.record.node_id
            for each in self._nodes.living()
            if each.record.node_id != self._node_id
            and each.record.internal
            and each.record.status is Duty.SERVING
            and self._refusals.falls_to(each.record.node_id) == self._node_id
        ]
        for node_id in sorted(self._watches.keys() - set(wanted)):
            self._watches.pop(node_id).cancel()
        for node_id in wanted:
            if node_id not in self._watches:
                self._watches[node_id] = self._tasks.start(f"watch of node {node_id}", self._watch(node_id))

    async def _watch(self, node_id: int) -> None:
        while True:
            try:
                await self._until_lost(node_id)
            except PeerError:
                # Whoever connects tells of it, and that a node refuses.
                await asyncio.sleep(_AGAIN_S)
