"""A node's part in its cluster, from its start to its end.

    whose directory is this ──► which id ──► register, `starting` ──► the catalogs follow ──► contend for the seat
        ──► admitted ──► topics of a node alone are adopted ──► `serving` … `draining` ──► nothing is led ──► gone

A node whose store is its own finds the seat free, and admits itself: that takes it two transactions.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from penstock.assembly import Logs
from penstock.base.chance import Chance
from penstock.base.config_error import ConfigError
from penstock.base.log_events import get_logger
from penstock.broker.directory.identity import DirectoryIdentity
from penstock.broker.site import Site
from penstock.cluster.adoption import adopt_topics
from penstock.cluster.catalog.nodes import NodeRecord
from penstock.cluster.controller.runner import Controller
from penstock.cluster.controller.seat import Seat
from penstock.cluster.node_ids import KnownNodes, claim_node_id
from penstock.cluster.nodes import NodeIdTaken, NodeRegistry
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore, StoreFullError
from penstock.config import Config, NodeConfig
from penstock.domain.replication.membership import DirectoryRecord
from penstock.domain.replication.view import Duty

# A node that is told to stop waits so long for others to lead what it leads.
DRAIN_S: Final = 30.0
# How often a node that waits to be admitted says so.
TOLD_EVERY_S: Final = 10.0
_ROOM_CHECK_MS: Final = 1000
NEXT_FREE_ID: Final = 0

log = get_logger("node")


async def settle_node_id(
    config: NodeConfig,
    identity: DirectoryIdentity,
    known: KnownNodes,
    store: MetadataStore,
    *,
    cluster_id: str,
    chance: Chance,
) -> int:
    """This node's id, and with it the directory's. Raises ConfigError where the directory is somebody else's; nothing
    has been changed then."""
    found = identity.found
    if found is None:
        directory_id = chance.uuid().hex
        node_id = config.id or await claim_node_id(store, KeySpace(), known, directory_id)
        identity.begin(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
        return node_id
    reason = _why_not_ours(config, found, known)
    if reason is not None:
        raise ConfigError(f"the data directory {config.data_dir} {reason}; nothing was changed")
    return found.node_id


def _why_not_ours(config: NodeConfig, found: DirectoryRecord, known: KnownNodes) -> str | None:
    if config.id not in (NEXT_FREE_ID, found.node_id):
        return (
            f"is that of node {found.node_id}, and this node is given the id {config.id}; give it the id "
            f"{found.node_id} (PENSTOCK_NODE__ID), or a directory of its own"
        )
    if found.epochs and found.epochs[-1] > known.revision:
        return (
            f"was last opened at revision {found.epochs[-1]} of the metadata, and they are at {known.revision}: they "
            "were put back from an older copy; put the newest in place"
        )
    copied = known.copy_of(found.directory_id, node_id=found.node_id)
    if copied is not None:
        return f"is a copy of that of node {copied}; give this node a directory of its own"
    return None


class Membership:
    def __init__(
        self, config: Config, site: Site, store: MetadataStore, keys: KeySpace, identity: DirectoryIdentity
    ) -> None:
        self._config = config
        self._site = site
        self._store = store
        self._keys = keys
        self._identity = identity
        self.registry = NodeRegistry(store, keys, ttl_ms=config.cluster.session_ms, directory=identity)
        self._controller: Controller | None = None
        self._logs: Logs | None = None
        # None: there was no room to register.
        self._asking: asyncio.Task[None] | None = None

    async def register(self) -> None:
        """The id is this node's from now on. It asks to be admitted while its logs are opened."""
        outcome = await self.registry.register(self._record())
        if isinstance(outcome, NodeIdTaken):
            held = outcome.record
            copied = "; their data directories are copies of one" if outcome.is_copy else ""
            raise ConfigError(
                f"node {held.node_id} is running already at {held.host}:{held.port}, so it cannot run at "
                f"{socket.gethostname()} ({self._config.kafka.listen}) too{copied}; "
                "give this one another id (PENSTOCK_NODE__ID)"
            )
        # On a full disk a node that is alone serves what is there, and registers when there is room.
        if outcome is not None:
            self._asking = self._site.tasks.start("admission asked for", self.registry.ask_admission())

    async def join(self, logs: Logs, *, cluster_id: str) -> None:
        """Returns when this life is admitted. The catalogs have been started."""
        node_id, registry = self._site.node_id, self.registry
        self._logs = logs
        seat = Seat(self._store, self._keys, logs.nodes, registry, node_id=node_id)
        self._controller = Controller(
            self._keys, logs.nodes, logs.topics, seat, node_id=node_id, cluster_id=cluster_id, clock=self._site.clock
        )
        registry.on_life(logs.broker.take_roles)
        if self._asking is not None:
            await self._asking
            if not registry.has_asked:
                # Logs were opened for so long that the session has ended meanwhile.
                await registry.renew()
            await logs.topics.wait_for(registry.told_revision)
        await self._controller.start()
        if registry.has_asked:
            await self._wait_admitted()
            await self._tell_found()

    async def serve(self, host: str, port: int, doors: Mapping[str, str], *, internal: str = "") -> None:
        """From now on it is given partitions, and found by others: by other nodes at `internal`."""
        await self.registry.tell(
            lambda record: replace(
                record, host=host, port=port, doors=dict(doors), internal=internal, status=Duty.SERVING
            )
        )
        self._site.tasks.every(_ROOM_CHECK_MS, "room told", self._tell_room)

    async def drain(self) -> None:
        """What others can lead they do, when this returns, or it has taken too long."""
        if self._controller is None or self._asking is None:
            return
        try:
            await self.registry.tell(lambda record: replace(record, status=Duty.DRAINING))
        except Exception as error:  # noqa: BLE001  edge of a stop, which goes on whatever the store does
            log.warning("node stops without being relieved", error=str(error))
            return
        if not await self._controller.wait_until(self._is_relieved, wait_s=DRAIN_S):
            log.warning("node stops and leads partitions still", waited_s=DRAIN_S)

    async def stop(self) -> None:
        if self._controller is not None:
            await self._controller.stop()
        await self.registry.close()

    def _record(self) -> NodeRecord:
        node, name = self._config.node, socket.gethostname()
        place = self._site.chance.uuid().hex if node.memory else f"{name}:{Path(node.data_dir).resolve()}"
        return NodeRecord(
            self._site.node_id,
            name,
            0,
            rack=node.rack or name,
            directory_id=self._identity.record.directory_id,
            started_ms=self._site.clock.now_ms(),
            place=place,
            internal=self._config.cluster.advertised,
            status=Duty.STARTING,
            boot_id=self._identity.boot_id,
        )

    async def _wait_admitted(self) -> None:
        assert self._controller is not None
        while not await self._controller.wait_until(self._is_admitted, wait_s=TOLD_EVERY_S):
            key = None if self._logs is None else self._logs.nodes.controller
            log.warning("node waits to be admitted", controller=None if key is None else key.record.node_id)

    def _is_admitted(self) -> bool:
        assert self._logs is not None
        return self._logs.nodes.is_admitted(self._site.node_id)

    async def _tell_found(self) -> None:
        """In its directory: topics of an older version, which are its own, and none of those that were removed."""
        assert self._logs is not None
        try:
            await adopt_topics(self._store, self._keys, self._logs.topics, life=self.registry.epoch)
            await self._logs.topics.forget_all_removed()
        except StoreFullError as error:
            # A full disk is no reason not to serve what is on it; the next start tries again.
            log.warning("what the node has found is not written yet", error=str(error))

    def _is_relieved(self) -> bool:
        """It leads nothing that anybody else could lead."""
        assert self._logs is not None
        topics, nodes, node_id = self._logs.topics, self._logs.nodes, self._site.node_id
        others = {node.record.node_id for node in nodes.serving()} - {node_id}
        return not others or not any(
            stated.state.leader == node_id and others.intersection(stated.state.in_sync)
            for topic in topics.topics()
            if topic.replication > 1
            for _, stated in topics.states(topic.topic_id)
        )

    async def _tell_room(self) -> None:
        assert self._logs is not None
        has_room = not self._logs.broker.is_full
        if self.registry.has_room != has_room:
            await self.registry.tell(lambda record: replace(record, has_room=has_room))
