"""A node: every layer put together, from a Config to the doors.

    start: storage → metadata → registered → logs (recovery) → admitted → queues → doors → ready
    stop:  others lead → no new connections → answer what is in flight → sync and checkpoint → metadata → unlock

Doors open last and close first: while one is open, everything below it works. Which parts there are says `assembly`.
"""

from __future__ import annotations

import dataclasses
import socket
from contextlib import AsyncExitStack

from penstock.assembly import Assembly, metadata_location, metrics_door, open_logs
from penstock.base.chance import Chance
from penstock.base.log_events import get_logger
from penstock.broker.directory.agreement import Agreed, DataDirectory
from penstock.broker.directory.node_directory import NodeDirectory
from penstock.broker.parts import Parts
from penstock.cluster.identity import ensure_cluster_id
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore, StoreDamagedError
from penstock.cluster.store.settings import EtcdLocation
from penstock.config import Config
from penstock.gateways.cluster.door import ClusterDoor
from penstock.gateways.door import Door, is_off
from penstock.gateways.kafka.door import KafkaDoor
from penstock.membership import Membership, settle_node_id
from penstock.node_settings import check_settings, warn_of_open_doors
from penstock.peering import open_peering
from penstock.storage.store import LogStore

log = get_logger("node")


class Node:
    """Runs between `start` and `stop`; `addresses` tells where its doors are."""

    # Everything below the doors, once it is there.
    parts: Parts

    def __init__(self, config: Config, assembly: Assembly | None = None) -> None:
        self._config = config
        self._assembly = assembly or Assembly()
        # Undoes what `start` did, in reverse order, however far it came.
        self._undo = AsyncExitStack()
        self.doors: dict[str, Door] = {}

    @property
    def addresses(self) -> dict[str, str]:
        return {name: door.address for name, door in self.doors.items()}

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._undo.aclose()
            raise

    async def stop(self) -> None:
        log.info("node stopping")
        await self._undo.aclose()
        log.info("node stopped")

    async def _start(self) -> None:
        config, assembly, undo, keys = self._config, self._assembly, self._undo, KeySpace()
        check_settings(config)
        warn_of_open_doors(config)
        site = assembly.make_site(config)
        store = await assembly.open_storage(config, site, undo)
        try:
            metadata = await assembly.metadata(config, site)
            undo.push_async_callback(metadata.close)
            cluster_id, agreed = await self._open_directory(store, metadata, site.chance)
        except StoreDamagedError as error:
            raise type(error)(f"{error} ({self._way_out()})") from error
        directory = NodeDirectory.open(store, boot_id=assembly.boot_id())
        node_id = await settle_node_id(
            config.node, directory, agreed.known, metadata, cluster_id=cluster_id, chance=site.chance
        )
        site = dataclasses.replace(site, node_id=node_id)
        membership = Membership(config, site, metadata, keys, directory)
        undo.push_async_callback(membership.stop)
        await membership.register()
        logs = await open_logs(
            site,
            store,
            metadata,
            undo,
            life=lambda: membership.registry.epoch,
            is_alone=agreed.known.has_only(node_id),
        )
        logs.broker.set_strays_aside(agreed.on_disk)
        page = metrics_door(config, logs)
        if page is not None:
            await self._open(page)
        await membership.join(logs, cluster_id=cluster_id)
        peering = None
        if not is_off(config.cluster.listen):
            peering = await open_peering(config, logs, store, membership, undo, cluster_id=cluster_id)
        self.parts = await assembly.open_parts(config, logs, undo)
        if peering is not None:
            await self._open(peering.door(self.parts))
        for door in assembly.doors(config, self.parts, cluster_id):
            await self._open(door)
        undo.push_async_callback(membership.drain)
        await membership.serve(*self._told_address(), self.addresses, internal=self._told_internal())
        # Not at first use: whoever looks for a coordinator may ask any node.
        site.tasks.start("internal topics", self._make_internal_topics(membership, agreed.known.has_only(node_id)))

    async def _make_internal_topics(self, membership: Membership, is_alone: bool) -> None:
        if is_alone:
            await membership.until_formed()
        await self.parts.groups.ready()
        await self.parts.transactions.ready()

    async def _open(self, door: Door) -> None:
        self._undo.push_async_callback(door.drain)
        self._undo.push_async_callback(door.stop_listening)
        await door.open()
        self.doors[door.name] = door

    async def _open_directory(self, store: LogStore, metadata: MetadataStore, chance: Chance) -> tuple[str, Agreed]:
        """The cluster's id, once the directory and the metadata are known to belong together, and what was found."""
        keys = KeySpace()
        directory = DataDirectory(store, metadata, keys)
        agreed = await directory.check()
        cluster_id = agreed.cluster_id or await ensure_cluster_id(metadata, keys, lambda: chance.uuid().bytes)
        await directory.claim(cluster_id)
        metadata.keep_copy()
        return cluster_id, agreed

    def _way_out(self) -> str:
        node = self._config.node
        if isinstance(metadata_location(node), EtcdLocation):
            return (
                "no log was touched; is it the right etcd, with the right prefix? It is restored from its snapshots, "
                f"or begun anew from what is there: penstock metadata adopt --data-dir {node.data_dir} "
                f"--metadata {node.metadata} --dry-run"
            )
        elsewhere = f" --metadata {node.metadata}" if node.metadata else ""
        return (
            "no log was touched; put the right file back, or see what can be restored: "
            f"penstock metadata rebuild --data-dir {node.data_dir}{elsewhere} --dry-run; where several nodes share an "
            "older copy, go on with it: penstock metadata adopt"
        )

    def _told_internal(self) -> str:
        """Where other nodes find this one; empty where none is let in."""
        door = self.doors.get(ClusterDoor.name)
        return door.advertised if isinstance(door, ClusterDoor) else ""

    def _told_address(self) -> tuple[str, int]:
        """Where others find this node; by its name alone where no Kafka client can come in."""
        door = self.doors.get(KafkaDoor.name)
        if not isinstance(door, KafkaDoor):
            return socket.gethostname(), 0
        told = door.node_address
        # Listening on every address is no address: other nodes tell their clients this machine's name.
        return told.host or socket.gethostname(), told.port
