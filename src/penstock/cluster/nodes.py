"""Which nodes there are: each holds a key for as long as it lives. And the cluster's own id.

A node's key is bound to a session that it keeps alive. Its *epoch*, the revision that created the key, tells
one life of a node from the next. A node that was killed and comes back within the TTL finds its own key still
there: it knows it by the id of its data directory, which nobody else can hold open, and takes it over at
once. A key with another directory's id means that two nodes were given the same number, and the second one is
refused.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    Absent,
    MetadataStore,
    ModRevisionIs,
    StoreError,
    StoreFullError,
    StoreSession,
    StoreUnavailableError,
)
from penstock.cluster.store.values import decode, encode

# Kafka's broker.session.timeout.ms.
TTL_MS: Final = 9000
# Two renewals may be late or lost before the session ends.
_RENEWALS_PER_TTL: Final = 3
_ATTEMPTS_MAX: Final = 10


class NodeRecord(msgspec.Struct, frozen=True):
    """The value of `nodes/{id}`. Fields are only ever added, each with a default."""

    node_id: int
    host: str
    port: int
    rack: str | None = None
    directory_id: str = ""
    started_ms: int = 0


class Registered(msgspec.Struct, frozen=True):
    epoch: int


class NodeIdTaken(msgspec.Struct, frozen=True):
    record: NodeRecord
    ttl_ms: int

    @property
    def reason(self) -> str:
        return (
            f"node id {self.record.node_id} is held by the node at {self.record.host}:{self.record.port}; "
            f"if that one is gone, its hold ends within {self.ttl_ms / 1000:g} s"
        )


class NodeRegistry:
    def __init__(self, store: MetadataStore, keys: KeySpace, *, ttl_ms: int = TTL_MS) -> None:
        self._store = store
        self._keys = keys
        self._ttl_ms = ttl_ms
        self._record: NodeRecord | None = None
        self._session: StoreSession | None = None
        self._log = get_logger("metadata")
        self._tasks = TaskSupervisor(self._log)

    async def register(self, record: NodeRecord) -> Registered | NodeIdTaken | None:
        """Held until `close`, or until the node has not been able to renew it for the TTL. None: the store has no room
        for it now, and it is tried again until it has; what is there can be read meanwhile."""
        result: Registered | NodeIdTaken | None = None
        try:
            result = await self._take(record)
        except StoreFullError as error:
            self._log.warning("node not registered yet", error=str(error))
        if not isinstance(result, NodeIdTaken):
            if self._record is None:
                self._tasks.every(self._ttl_ms // _RENEWALS_PER_TTL, "node registration", self.renew)
            self._record = record
        return result

    async def nodes(self) -> list[NodeRecord]:
        """Those that live, by id."""
        current = await self._store.range(self._keys.nodes)
        records = [decode(entry.key, entry.value, NodeRecord) for entry in current.entries]
        return sorted(records, key=lambda record: record.node_id)

    async def renew(self) -> None:
        """Called by a timer. If the session has ended (a long pause) the node registers anew: a new life."""
        assert self._record is not None
        try:
            if self._session is not None and await self._session.keep_alive():
                return
            result = await self._take(self._record)
        except StoreError as error:
            self._log.warning("node registration not renewed", error=str(error))
            return
        if isinstance(result, NodeIdTaken):
            self._log.error("node registration lost", reason=result.reason)
        else:
            self._log.warning("node registered anew", epoch=result.epoch)

    async def close(self) -> None:
        await self._tasks.stop()
        if self._session is not None:
            try:
                await self._session.close()
            except StoreFullError as error:
                self._log.warning("node registration not ended, it runs out by itself", error=str(error))
            self._session = None

    async def _take(self, record: NodeRecord) -> Registered | NodeIdTaken:
        key = self._keys.node(record.node_id)
        session = await self._store.open_session(self._ttl_ms)
        for _ in range(_ATTEMPTS_MAX):
            result = await self._store.txn([Absent(key)], {key: encode(record)}, session=session)
            if result.ok:
                self._session = session
                return Registered(epoch=result.revision)
            entry = await self._store.get(key)
            if entry is None:
                continue
            holder = decode(key, entry.value, NodeRecord)
            if holder.directory_id != record.directory_id:
                await session.close()
                return NodeIdTaken(holder, self._ttl_ms)
            # Our own former life. Deleted and created in two steps, so that the epoch is a new one.
            await self._store.txn([ModRevisionIs(key, entry.mod_revision)], deletes=[key])
        await session.close()
        raise StoreUnavailableError(f"metadata key {key} is changed by others all the time, try again")


async def ensure_cluster_id(store: MetadataStore, keys: KeySpace, new_uuid: Callable[[], bytes]) -> str:
    """The cluster's id: made once by whoever comes first, the same for all nodes ever after."""
    # Asked first: on a full disk a start must not need a write for what is there already.
    entry = await store.get(keys.cluster_id)
    if entry is None:
        mine = _cluster_id(new_uuid)
        if (await store.txn([Absent(keys.cluster_id)], {keys.cluster_id: encode(mine)})).ok:
            return mine
        entry = await store.get(keys.cluster_id)
    assert entry is not None, "nobody deletes a cluster id"
    return decode(keys.cluster_id, entry.value, str)


def _cluster_id(new_uuid: Callable[[], bytes]) -> str:
    """22 characters, as Kafka writes a uuid. No dash in front, which tools would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(new_uuid()).rstrip(b"=").decode()
        assert len(text) == 22
        if not text.startswith("-"):
            return text
