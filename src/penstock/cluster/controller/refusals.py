"""Nodes whose machines refuse connections: the machine lives and the process does not, so nobody waits for the TTL.

Whoever was refused tells the controller, which tries by itself and then deletes the node's key, comparing the life that
it was told of. Of a controller that is refused the lowest living id does the same, and deletes its seat too.

Only who serves is taken for dead: while a node starts or stops, its door is closed and it lives.

A node that is taken for dead by mistake finds its key gone and begins another life: that costs elections, and harms
nobody. A firewall that refuses must not make it flap, so one process is taken for dead once in a while only. One that
was started since is another: the verdict before was right, and does not help it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.cluster.catalog.nodes import LivingNode, NodeCatalog, NodeRecord
from penstock.cluster.controller.seat import Seat, SeatLostError
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import CreateRevisionIs, MetadataStore
from penstock.domain.replication.view import Duty

SPARED_MS: Final = 30_000

# Whether a connection to the node's internal door is refused; any other outcome proves nothing.
IsRefused = Callable[[str], Awaitable[bool]]

log = get_logger("controller")


class RefusedNodes:
    def __init__(
        self,
        store: MetadataStore,
        keys: KeySpace,
        nodes: NodeCatalog,
        seat: Seat,
        *,
        node_id: int,
        clock: Clock,
        is_refused: IsRefused,
    ) -> None:
        self._store = store
        self._keys = keys
        self._nodes = nodes
        self._seat = seat
        self._node_id = node_id
        self._clock = clock
        self._is_refused = is_refused
        self._trying: set[int] = set()
        # Of a node that was taken for dead: when its process had started, and until when that one is left in peace.
        self._spared: dict[int, tuple[int, int]] = {}

    def falls_to(self, node_id: int) -> int | None:
        """Who is to be told that a node refuses connections; None: nobody is there."""
        controller = self._nodes.controller
        if controller is not None and controller.record.node_id != node_id:
            return controller.record.node_id
        others = [each.record.node_id for each in self._nodes.living() if each.record.node_id != node_id]
        return others[0] if others else None

    async def report_refused(self, node_id: int) -> bool:
        """Whether its key was deleted. Store errors are raised: whether it was is not known then, and the next who is
        refused reports it again."""
        living = self._nodes.node(node_id)
        now_ms = self._clock.monotonic_ms()
        if (
            living is None
            or living.record.status is not Duty.SERVING
            or self.falls_to(node_id) != self._node_id
            or node_id in self._trying
            or self._is_spared(living.record, now_ms)
        ):
            return False
        self._trying.add(node_id)
        try:
            if not await self._is_refused(living.record.internal):
                return False
            self._spared[node_id] = (living.record.started_ms, now_ms + SPARED_MS)
            return await self._end(living)
        finally:
            self._trying.discard(node_id)

    def _is_spared(self, record: NodeRecord, now_ms: int) -> bool:
        started_ms, until_ms = self._spared.get(record.node_id, (record.started_ms, now_ms))
        return record.started_ms == started_ms and now_ms < until_ms

    async def _end(self, living: LivingNode) -> bool:
        node_id, key = living.record.node_id, self._keys.node(living.record.node_id)
        same_life = CreateRevisionIs(key, living.epoch)
        controller = self._nodes.controller
        if controller is not None and controller.record.node_id == node_id:
            seat = CreateRevisionIs(self._keys.controller, controller.create_revision)
            result = await self._store.txn([same_life, seat], deletes=[key, self._keys.controller])
        elif self._seat.is_held:
            try:
                result = await self._seat.txn([same_life], deletes=[key])
            except SeatLostError:
                return False
        else:
            return False
        if result.ok:
            log.warning("node refuses connections: taken for dead", node=node_id, address=living.record.internal)
        return result.ok
