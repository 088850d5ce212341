"""Who is the controller: whose key `controller` it is. Everything that a controller writes compares that key.

    absent ──first to create it──► held ──session over, or taken away──► absent

Whoever holds the seat by its own image has seen everything that any controller before it has written: those writes came
before the key, which is in the image. A controller that was paused and replaced meanwhile writes nothing more: the key
that it names is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.cluster.catalog.nodes import ControllerRecord, NodeCatalog
from penstock.cluster.nodes import NodeRegistry
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    NOTHING,
    Absent,
    Compare,
    CreateRevisionIs,
    MetadataStore,
    TxnResult,
)
from penstock.cluster.store.values import encode
from penstock.domain.replication.state import NO_LIFE


class SeatLostError(Exception):
    """This node is not the controller, or not any more."""


class Seat:
    def __init__(
        self, store: MetadataStore, keys: KeySpace, nodes: NodeCatalog, registry: NodeRegistry, *, node_id: int
    ) -> None:
        self._store = store
        self._keys = keys
        self._nodes = nodes
        self._registry = registry
        self._node_id = node_id

    @property
    def is_held(self) -> bool:
        """By this life of this node, as far as its image has come."""
        key = self._nodes.controller
        return key is not None and key.record == self._record()

    @property
    def is_free(self) -> bool:
        return self._nodes.controller is None

    @property
    def is_next(self) -> bool:
        """Of those that live this node is the first: the others leave it the seat, for a while."""
        living = self._nodes.living()
        return bool(living) and living[0].record.node_id == self._node_id

    async def take(self) -> int | None:
        """The revision at which this node has become the controller; None: another one did."""
        session, life = self._registry.session, self._registry.epoch
        if session is None or life == NO_LIFE:
            return None
        alive = CreateRevisionIs(self._keys.node(self._node_id), life)
        put = {self._keys.controller: encode(self._record())}
        result = await self._store.txn([Absent(self._keys.controller), alive], put, session=session)
        return result.revision if result.ok else None

    async def txn(
        self, compares: Sequence[Compare], puts: Mapping[str, bytes] = NOTHING, deletes: Sequence[str] = ()
    ) -> TxnResult:
        """Raises SeatLostError where the image says so; where only the store knows it, the transaction fails."""
        key = self._nodes.controller
        if key is None or not self.is_held:
            raise SeatLostError
        held = CreateRevisionIs(self._keys.controller, key.create_revision)
        return await self._store.txn([held, *compares], puts, deletes)

    def _record(self) -> ControllerRecord:
        return ControllerRecord(self._node_id, self._registry.epoch)
