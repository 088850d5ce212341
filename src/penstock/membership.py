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
from penstock.broker.directory.node_directory import NodeDirectory
from penstock.broker.site import Site
from penstock.cluster.adoption import adopt_topics
from penstock.cluster.catalog.nodes import NodeRecord
from penstock.cluster.controller.longest import AskEnd
from penstock.cluster.controller.refusals import RefusedNodes
from penstock.cluster.controller.runner import Controller
from penstock.cluster.controller.seat import Seat
from penstock.cluster.controller.watched import UntilLost, WatchedNodes
from penstock.cluster.metrics import SessionCollector
from penstock.cluster.node_ids import KnownNodes, claim_node_id
from penstock.cluster.nodes import NodeIdTaken, NodeRegistry
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore, StoreError, StoreFullError
from penstock.config import Config, NodeConfig
from penstock.domain.replication.membership import DirectoryRecord
from penstock.domain.replication.view import Duty
from penstock.net.address import parse_address
from penstock.net.peer import refuses

# A node that is told to stop waits so long for others to lead what it leads.
DRAIN_S: Final = 30.0
# How often a node that waits to be admitted says so.
TOLD_EVERY_S: Final = 10.0
_ROOM_CHECK_MS: Final = 1000
# One small write so often at the most, while metadata change. What is younger is not missed where a store is put back
# from a copy: that is older than this.
_REVISION_KEPT_MS: Final = 10_000
NEXT_FREE_ID: Final = 0
_ADOPT: Final = "put the newest in place, or begin anew from this one: penstock metadata adopt"

log = get_logger("node")


async def settle_node_id(
    config: NodeConfig,
    directory: NodeDirectory,
    known: KnownNodes,
    store: MetadataStore,
    *,
    cluster_id: str,
    chance: Chance,
) -> int:
    """This node's id, and with it the directory's. Raises ConfigError where the directory is somebody else's; nothing
    has been changed then."""
    found = directory.found
    if found is None:
        directory_id = chance.uuid().hex
        node_id = config.id or await claim_node_id(store, KeySpace(), known, directory_id)
        directory.begin(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
        directory.begin_generation(known.generation)
        return node_id
    reason = _why_not_ours(config, found, known, directory)
    if reason is not None:
        raise ConfigError(f"the data directory {config.data_dir} {reason}; nothing was changed")
    directory.begin_generation(known.generation)
    return found.node_id


def _why_not_ours(
    config: NodeConfig, found: DirectoryRecord, known: KnownNodes, directory: NodeDirectory
) -> str | None:
    if config.id not in (NEXT_FREE_ID, found.node_id):
        return (
            f"is that of node {found.node_id}, and this node is given the id {config.id}; give it the id "
            f"{found.node_id} (PENSTOCK_NODE__ID), or a directory of its own"
        )
    if directory.generation > known.generation:
        return (
            f"has acted on generation {directory.generation} of the metadata, and they are in {known.generation}: they "
            f"were put back from an older copy; {_ADOPT}"
        )
    acted_on = directory.metadata_revision
    if directory.generation == known.generation and acted_on > known.revision:
        return (
            f"has acted on revision {acted_on} of the metadata, and they are at {known.revision}: they were put back "
            f"from an older copy; {_ADOPT}"
        )
    copied = known.copy_of(found.directory_id, node_id=found.node_id)
    if copied is not None:
        return f"is a copy of that of node {copied}; give this node a directory of its own"
    return None


async def _is_refused(address: str) -> bool:
    return await refuses(parse_address(address))


class Membership:
    def __init__(
        self, config: Config, site: Site, store: MetadataStore, keys: KeySpace, directory: NodeDirectory
    ) -> None:
        self._config = config
        self._site = site
        self._store = store
        self._keys = keys
        self._directory = directory
        self.registry = NodeRegistry(
            store, keys, clock=site.clock, ttl_ms=config.cluster.session_ms, directory=directory
        )
        site.metrics.register(SessionCollector(lambda: self.registry.late_count))
        self._controller: Controller | None = None
        self._refusals: RefusedNodes | None = None
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
        self._refusals = RefusedNodes(
            self._store, self._keys, logs.nodes, seat, node_id=node_id, clock=self._site.clock, is_refused=_is_refused
        )
        registry.on_life(logs.broker.take_roles)
        if self._asking is not None:
            await self._asking
            if not registry.has_asked:
                # Logs were opened for so long that the session has ended meanwhile.
                await registry.look()
            await logs.topics.wait_for(registry.told_revision)
        has_room = await self._controller.start()
        # On a full disk a node that is alone serves what is there, and is admitted when there is room.
        if registry.has_asked and has_room:
            await self._wait_admitted()
            await self._adopt_found()

    async def serve(self, host: str, port: int, doors: Mapping[str, str], *, internal: str = "") -> None:
        """From now on it is given partitions, and found by others: by other nodes at `internal`."""
        told = self.registry.tell(
            lambda record: replace(
                record, host=host, port=port, doors=dict(doors), internal=internal, status=Duty.SERVING
            )
        )
        if self._is_alone:
            # Nobody is there to find it, and what it creates it places on itself.
            self._site.tasks.start("serving told", told)
        else:
            await told
        if self.registry.has_asked:
            self._site.tasks.start("removals reported", self._report_removed())
        self._site.tasks.every(_ROOM_CHECK_MS, "room told", self._tell_room)
        self._site.tasks.every(_REVISION_KEPT_MS, "metadata revision kept", self._keep_revision)

    async def until_formed(self) -> None:
        """Returns when several nodes serve that could share partitions; of a node alone never."""
        assert self._controller is not None
        while not await self._controller.wait_until(self._is_formed, wait_s=TOLD_EVERY_S):
            pass

    def _is_formed(self) -> bool:
        assert self._logs is not None
        return sum(bool(each.record.internal) for each in self._logs.nodes.serving()) > 1

    def report_refused(self, node_id: int) -> None:
        """Nobody listens where that node is: it is dead, if a look by this one says so too."""
        if self._refusals is not None:
            self._site.tasks.start("refused node", self._report_refused(self._refusals, node_id))

    def watch_others(self, until_lost: UntilLost) -> None:
        """How the end of nodes is seen that this one has nothing else to do with. They are joined already."""
        assert self._logs is not None
        assert self._refusals is not None
        node_id, tasks = self._site.node_id, self._site.tasks
        WatchedNodes(self._logs.nodes, self._refusals, until_lost, node_id=node_id, tasks=tasks).start()

    def ask_ends_by(self, ask_end: AskEnd) -> None:
        """How the controller learns how far the logs of nodes reach."""
        assert self._controller is not None
        self._controller.ask_ends_by(ask_end)

    async def _report_refused(self, refusals: RefusedNodes, node_id: int) -> None:
        try:
            await refusals.report_refused(node_id)
        except StoreError as error:
            log.warning("whether a refused node was taken for dead is not known", node=node_id, error=str(error))

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
        await self._keep_revision()

    def _record(self) -> NodeRecord:
        node, name = self._config.node, socket.gethostname()
        place = self._site.chance.uuid().hex if node.memory else f"{name}:{Path(node.data_dir).resolve()}"
        return NodeRecord(
            self._site.node_id,
            name,
            0,
            rack=node.rack or name,
            directory_id=self._directory.record.directory_id,
            started_ms=self._site.clock.now_ms(),
            place=place,
            internal=self._config.cluster.advertised,
            status=Duty.STARTING,
            boot_id=self._directory.boot_id,
        )

    @property
    def _is_alone(self) -> bool:
        """Nobody else ever was a member when it started, nor lives now."""
        if self._logs is None or self._logs.topics.owner_of_unplaced is None:
            return False
        return all(each.record.node_id == self._site.node_id for each in self._logs.nodes.living())

    async def _wait_admitted(self) -> None:
        assert self._controller is not None
        while not await self._controller.wait_until(self._is_admitted, wait_s=TOLD_EVERY_S):
            key = None if self._logs is None else self._logs.nodes.controller
            log.warning("node waits to be admitted", controller=None if key is None else key.record.node_id)

    def _is_admitted(self) -> bool:
        assert self._logs is not None
        return self._logs.nodes.is_admitted(self._site.node_id)

    async def _adopt_found(self) -> None:
        """Topics of an older version that are in its directory, and its own."""
        assert self._logs is not None
        try:
            await adopt_topics(self._store, self._keys, self._logs.topics, life=self.registry.epoch)
        except StoreFullError as error:
            # A full disk is no reason not to serve what is on it; the next start tries again.
            log.warning("topics of a node alone are not adopted yet", error=str(error))

    async def _report_removed(self) -> None:
        """None of the topics that were removed is in its directory."""
        assert self._logs is not None
        try:
            await self._logs.topics.forget_all_removed()
        except StoreError as error:
            log.warning("removals of topics are reported at the next start", error=str(error))

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

    async def _keep_revision(self) -> None:
        """How far the metadata have been acted on: a store that is behind it the next time was put back."""
        if self._logs is None:
            return
        try:
            await self._directory.keep_revision(self._logs.topics.revision)
        except OSError as error:
            log.warning("revision of the metadata not kept", error=str(error))
