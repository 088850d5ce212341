"""Which parts a node is made of, each made once and started in this order.

    site, files → storage, metadata → logs (broker, groups, schedules, transactions) → queues, trace → doors

What a test may want to be another is a factory of `Assembly`: it says so there, and patches no module.
Whatever is started here is ended by what it leaves on `undo`, in reverse order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from penstock.base.boot_id import read_boot_id
from penstock.base.chance import SYSTEM_CHANCE, Chance
from penstock.base.clock import Clock, SystemClock
from penstock.base.config_error import ConfigError
from penstock.base.log_events import get_logger
from penstock.base.metrics import CollectorRegistry, ProcessCollector
from penstock.base.tasks import TaskSupervisor
from penstock.broker.group.metrics import GroupCollector
from penstock.broker.group.node import GroupCoordinator
from penstock.broker.otel.parts import OtelMissingError, with_spans
from penstock.broker.parts import Parts
from penstock.broker.publisher import Publisher
from penstock.broker.queue.delivery import QueueDelivery
from penstock.broker.queue.metrics import QueueCollector
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.redrive import Redrives
from penstock.broker.replication.verify import ReplicaVerifier
from penstock.broker.schedule.delayed_batches import DelayedBatches
from penstock.broker.schedule.metrics import ScheduleCollector
from penstock.broker.schedule.node import NodeSchedules
from penstock.broker.share.node import ShareGroups
from penstock.broker.site import Site, SiteConfig
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.node_settings import follow_setting, set_background_threads
from penstock.broker.trace.node import NodeTrace
from penstock.broker.transaction.markers import MarkerWriter
from penstock.broker.transaction.metrics import TransactionCollector
from penstock.broker.transaction.node import TransactionCoordinators
from penstock.cluster.catalog.access import AccessCatalog, AccessChange, AclsChanged
from penstock.cluster.catalog.nodes import NodeCatalog
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.placing import Placing
from penstock.cluster.catalog.queues import QueueCatalog
from penstock.cluster.catalog.redrives import RedriveStore
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.controller.requested import RequestedElections
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore
from penstock.cluster.store.settings import (
    EtcdLocation,
    LocationInvalidError,
    SqliteLocation,
    parse_location,
)
from penstock.cluster.store.sqlite import SqliteStore
from penstock.config import Config, NodeConfig
from penstock.domain.config.node import BACKGROUND_THREADS
from penstock.domain.security.access import Authorizer
from penstock.domain.security.acl import AclAuthorizer
from penstock.gateways.admission import Admission
from penstock.gateways.admission_metrics import AdmissionCollector
from penstock.gateways.door import Door, is_off
from penstock.gateways.http_port import HttpPort
from penstock.gateways.kafka.door import KafkaDoor
from penstock.gateways.metrics_page import MetricsPage
from penstock.gateways.node_address import advertised_address
from penstock.node_settings import node_entries
from penstock.storage.commit.sync_thread import SyncRunner, SyncThread
from penstock.storage.files import DirectoryFiles, MemoryFiles
from penstock.storage.files.protocols import Files
from penstock.storage.store import LogStore

# Cold reads wait for the disk, not for a core: a few threads keep it busy without crowding the loop.
READER_THREADS: Final = 4
# More than there will be nodes: where the placing of a topic begins is drawn below it.
_PLACES_MAX: Final = 2**16


def files_of(node: NodeConfig) -> Files:
    return MemoryFiles(bytes_max=node.memory_bytes_max) if node.memory else DirectoryFiles()


async def open_metadata(config: Config, site: Site) -> MetadataStore:
    location = metadata_location(config.node)
    if isinstance(location, SqliteLocation):
        return await SqliteStore.open(location.path, clock=site.clock, is_secret=KeySpace().is_secret)
    from penstock.cluster.store.etcd.engine import EtcdStore

    return await EtcdStore.open(location, config.metadata)


def metadata_location(node: NodeConfig) -> SqliteLocation | EtcdLocation:
    """In the data directory, unless the settings say another place."""
    if not node.metadata:
        return SqliteLocation(":memory:" if node.memory else str(Path(node.data_dir) / "metadata.sqlite"))
    try:
        return parse_location(node.metadata)
    except LocationInvalidError as error:
        raise ConfigError(f"metadata: {error}") from error


def acl_authorizer(config: Config, access: AccessCatalog) -> Authorizer:
    authorizer = AclAuthorizer(config.access, has_logins=bool(config.kafka.sasl_mechanisms))

    def follow(change: AccessChange) -> None:
        if isinstance(change, AclsChanged):
            authorizer.replace(change.bindings)

    access.on_change(follow, Part.AUTHORIZER)
    return authorizer


def client_doors(config: Config, parts: Parts, cluster_id: str) -> list[Door]:
    admission = Admission(parts.authorizer)
    parts.site.metrics.register(AdmissionCollector(admission))
    doors: list[Door] = []
    if not is_off(config.http.listen):
        advertised = advertised_address(config.kafka.advertised)
        doors.append(HttpPort(parts, admission, config.http, names=(advertised[0],) if advertised else ()))
    if not is_off(config.kafka.listen):
        entries = partial(node_entries, config, node_id=parts.site.node_id, log_directory=log_directory(config.node))
        doors.append(KafkaDoor(parts, admission, config.kafka, cluster_id=cluster_id, node_entries=entries))
    return doors


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """How those parts are made that are others in a test."""

    clock: Callable[[], Clock] = SystemClock
    chance: Callable[[], Chance] = lambda: SYSTEM_CHANCE
    boot_id: Callable[[], str] = read_boot_id
    files: Callable[[NodeConfig], Files] = files_of
    syncs: Callable[[], SyncRunner] = SyncThread
    metadata: Callable[[Config, Site], Awaitable[MetadataStore]] = open_metadata
    authorizer: Callable[[Config, AccessCatalog], Authorizer] = acl_authorizer
    # The doors of clients, with the cluster's id, in the order in which they open.
    doors: Callable[[Config, Parts, str], Sequence[Door]] = client_doors

    def make_site(self, config: Config) -> Site:
        metrics = CollectorRegistry()
        ProcessCollector(registry=metrics)
        return Site(
            clock=self.clock(),
            tasks=TaskSupervisor(get_logger("node")),
            readers=ThreadPoolExecutor(READER_THREADS, thread_name_prefix="reader"),
            config=SiteConfig(
                broker=config.broker,
                groups=config.groups,
                transactions=config.transactions,
                share_groups=config.share_groups,
            ),
            metrics=metrics,
            node_id=config.node.id,
            chance=self.chance(),
        )

    async def open_storage(self, config: Config, site: Site, undo: AsyncExitStack) -> LogStore:
        files, directory = self.files(config.node), log_directory(config.node)
        store = await asyncio.to_thread(
            LogStore.open, files, directory, config.storage, site.clock, site.metrics, syncs=self.syncs()
        )
        undo.push_async_callback(_close_storage, store)
        return store

    async def open_parts(self, config: Config, logs: Logs, undo: AsyncExitStack) -> Parts:
        """Everything else below the doors."""
        site = logs.site
        access = AccessCatalog(logs.watch)
        authorizer = self.authorizer(config, access)
        access.on_change(partial(_forget_routes, logs.broker), Part.BROKER)
        logs.groups.obey(authorizer)
        await access.start()
        undo.push_async_callback(access.stop)
        queues = await _open_queues(logs, authorizer, undo)
        delivery = QueueDelivery(queues, logs.schedules)
        trace = NodeTrace(site, logs.broker, queues, logs.groups, logs.schedules)
        parts = Parts(
            site=site,
            broker=logs.broker,
            topics=logs.topics,
            nodes=logs.nodes,
            elections=RequestedElections(logs.metadata, KeySpace(), logs.topics, logs.nodes),
            producer_ids=logs.producer_ids,
            publisher=Publisher(logs.schedules, site.clock),
            groups=logs.groups,
            transactions=logs.transactions,
            markers=logs.markers,
            schedules=logs.schedules,
            delays=logs.delays,
            queues=queues,
            delivery=delivery,
            redrives=await _open_redrives(logs, queues, delivery, authorizer, undo),
            shares=ShareGroups(site, logs.groups, queues, logs.topics),
            trace=trace,
            verifier=logs.verifier,
            access=access,
            authorizer=authorizer,
        )
        trace.start()
        return _with_spans(parts, config, undo)


# The disk and the metadata


def log_directory(node: NodeConfig) -> str:
    """Whole, as tools tell it and send it back; what is in memory has a name only."""
    return node.data_dir if node.memory else str(Path(node.data_dir).absolute())


async def _close_storage(store: LogStore) -> None:
    # Every write is in a turn that has ended when the last one has: `close` syncs by itself and wants no other.
    if store.logs:
        await store.group_commit.join(store.logs[0]).wait()
    await asyncio.to_thread(store.close)


# Logs and what is kept in them


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The topics of a node, and what is replayed from internal ones."""

    site: Site
    metadata: MetadataStore
    # The one of the node: every catalog hears from it.
    watch: MetadataWatch
    nodes: NodeCatalog
    broker: Broker
    topics: TopicCatalog
    producer_ids: ProducerIds
    groups: GroupCoordinator
    schedules: NodeSchedules
    delays: DelayedBatches
    markers: MarkerWriter
    transactions: TransactionCoordinators
    verifier: ReplicaVerifier


async def open_logs(
    site: Site,
    store: LogStore,
    metadata: MetadataStore,
    undo: AsyncExitStack,
    *,
    life: Callable[[], int],
    is_alone: bool,
) -> Logs:
    """Recovers the logs, and replays coordinators and schedules. `life`: this node's broker epoch; `is_alone`: the
    cluster has no other member."""
    logs = _make_logs(site, store, metadata, life, is_alone=is_alone)
    undo.callback(site.readers.shutdown, wait=False)
    undo.push_async_callback(logs.broker.stop)
    undo.push_async_callback(site.tasks.stop)
    undo.push_async_callback(logs.schedules.stop)
    undo.push_async_callback(logs.nodes.stop)
    await logs.nodes.start()
    await logs.broker.start()
    follow_setting(logs.topics, site.node_id, BACKGROUND_THREADS, set_background_threads)
    await logs.schedules.start()
    await logs.groups.start()
    site.metrics.register(GroupCollector(logs.broker, logs.groups))
    await logs.transactions.start()
    return logs


def _make_logs(
    site: Site, store: LogStore, metadata: MetadataStore, life: Callable[[], int], *, is_alone: bool
) -> Logs:
    keys, clock = KeySpace(), site.clock
    watch = MetadataWatch(metadata, keys, now=clock.monotonic_seconds)
    nodes = NodeCatalog(watch)
    placing = Placing(
        site.node_id,
        nodes,
        owner_of_unplaced=site.node_id if is_alone else None,
        by_default=site.config.broker.default_replication,
        draw_start=partial(site.chance.below, _PLACES_MAX),
    )
    topics = TopicCatalog(watch, clock=clock, new_topic_id=lambda: site.chance.uuid().bytes, placing=placing)
    broker = Broker(site, catalog=topics, store=store, life=life)
    groups = GroupCoordinator(site, broker, topics)
    broker.follow_archives(groups.committed_offset)
    producer_ids = ProducerIds(metadata, keys)
    schedules = NodeSchedules(site, broker, topics, producer_ids)
    site.metrics.register(ScheduleCollector(schedules))
    delays = DelayedBatches(schedules, clock=clock)
    markers = MarkerWriter(broker, groups, delays)
    transactions = TransactionCoordinators(site, broker, topics, producer_ids=producer_ids, markers=markers)
    site.metrics.register(TransactionCollector(transactions))
    return Logs(
        site=site,
        metadata=metadata,
        watch=watch,
        nodes=nodes,
        broker=broker,
        topics=topics,
        producer_ids=producer_ids,
        groups=groups,
        schedules=schedules,
        delays=delays,
        markers=markers,
        transactions=transactions,
        verifier=ReplicaVerifier(broker, topics),
    )


# What is built on the logs


def _forget_routes(broker: Broker, change: AccessChange) -> None:
    if isinstance(change, AclsChanged):
        # What connections have remembered about who may write where holds no longer.
        broker.generation += 1


async def _open_queues(logs: Logs, authorizer: Authorizer, undo: AsyncExitStack) -> NodeQueues:
    site = logs.site
    queues = NodeQueues(
        site,
        logs.broker,
        logs.topics,
        QueueCatalog(logs.watch, clock=site.clock),
        logs.producer_ids,
        authorizer=authorizer,
    )
    site.metrics.register(QueueCollector(queues))
    undo.push_async_callback(queues.stop)
    await queues.start()
    return queues


async def _open_redrives(
    logs: Logs, queues: NodeQueues, delivery: QueueDelivery, authorizer: Authorizer, undo: AsyncExitStack
) -> Redrives:
    store = RedriveStore(logs.metadata, KeySpace())
    redrives = Redrives(logs.site, queues, delivery, store, authorizer=authorizer)
    undo.push_async_callback(redrives.stop)
    await redrives.start()
    return redrives


def _with_spans(parts: Parts, config: Config, undo: AsyncExitStack) -> Parts:
    if not config.otel.enabled:
        return parts
    try:
        parts, shut_down = with_spans(parts, config.otel)
    except OtelMissingError as error:
        raise ConfigError(f"configuration: {error}") from error
    undo.push_async_callback(asyncio.to_thread, shut_down)
    return parts


def metrics_door(config: Config, logs: Logs) -> Door | None:
    """Opens before queues are replayed: who watches a start sees how it goes."""
    if is_off(config.metrics.listen):
        return None
    broker = logs.broker
    return MetricsPage(config.metrics, logs.site.metrics, lambda: broker.is_healthy, broker.told_damages)
