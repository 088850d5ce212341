"""A node: every layer put together, from a Config to the doors.

    start: storage → metadata → broker (recovery) → doors → ready
    stop:  no new connections → answer what is in flight → sync and checkpoint → metadata → unlock

Doors open last and close first: while one is open, everything below it works.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.clock import Clock, SystemClock
from penstock.base.log_events import get_logger
from penstock.base.metrics import CollectorRegistry, ProcessCollector
from penstock.base.tasks import TaskSupervisor
from penstock.broker.directory.agreement import DataDirectory
from penstock.broker.group.metrics import GroupCollector
from penstock.broker.group.node import GroupCoordinator
from penstock.broker.otel.parts import OtelMissingError, with_spans
from penstock.broker.parts import Parts
from penstock.broker.publisher import Publisher
from penstock.broker.queue.delivery import QueueDelivery
from penstock.broker.queue.metrics import QueueCollector
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.redrive import Redrives
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
from penstock.cluster.catalog.order import Part
from penstock.cluster.catalog.queues import QueueCatalog
from penstock.cluster.catalog.redrives import RedriveStore
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.nodes import NodeIdTaken, NodeRecord, NodeRegistry, ensure_cluster_id
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore, StoreDamagedError
from penstock.cluster.store.sqlite import SqliteStore
from penstock.config import Config, ConfigError, advertised_address, split_address
from penstock.domain.config.node import BACKGROUND_THREADS, CONNECTIONS_MAX
from penstock.domain.security.access import Authorizer
from penstock.domain.security.acl import AclAuthorizer
from penstock.gateways.http.server import HttpServer
from penstock.gateways.kafka.apis import make_handlers
from penstock.gateways.kafka.handlers.produce_route import learn_route
from penstock.gateways.kafka.metrics import KafkaDoorCollector
from penstock.gateways.kafka.sasl import SaslHandler, SaslSettings
from penstock.gateways.kafka.sasl_users import SaslUsers
from penstock.gateways.kafka.server import KafkaServer
from penstock.gateways.metrics_page import MetricsPage
from penstock.gateways.node_address import NodeAddress, host_to_tell, join_address
from penstock.node_settings import OFF, check_settings, node_entries, warn_of_open_doors
from penstock.storage.files import DirectoryFiles, MemoryFiles
from penstock.storage.store import LogStore

log = get_logger("node")

# Cold reads wait for the disk, not for a core: a few threads keep it busy without crowding the loop.
READER_THREADS: Final = 4
# Half of the machine at the most: strangers that try passwords must leave something for everybody else.
HASHER_THREADS: Final = max(1, (os.cpu_count() or 1) // 2)
LOGIN_SECRET_BYTES: Final = 32


class Node:
    """Runs between `start` and `stop`; `addresses` tells where its doors are."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._tasks = TaskSupervisor(log)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._site = self._make_site()
        # Undoes what `start` did, in reverse order, however far it came.
        self._undo = AsyncExitStack()
        self._address = NodeAddress(config.node.id, "", 0, "")
        self.addresses: dict[str, str] = {}

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
        check_settings(self._config)
        warn_of_open_doors(self._config)
        store = await self._open_storage()
        keys = KeySpace()
        try:
            metadata = await self._open_metadata()
            cluster_id = await self._open_directory(store, metadata, keys)
        except StoreDamagedError as error:
            raise type(error)(f"{error} ({self._way_out()})") from error
        self._address = msgspec.structs.replace(self._address, cluster_id=cluster_id)
        parts = await self._open_parts(store, metadata, keys)
        parts = self._with_spans(parts)
        await self._open_http_door(parts)
        await self._open_kafka_door(parts)
        await self._register(NodeRegistry(metadata, keys))

    async def _open_parts(self, store: LogStore, metadata: MetadataStore, keys: KeySpace) -> Parts:
        watch = MetadataWatch(metadata, keys)
        catalog = TopicCatalog(watch, clock=self._clock, new_topic_id=lambda: uuid.uuid4().bytes)
        broker = Broker(self._site, catalog=catalog, store=store)
        groups = GroupCoordinator(self._site, broker, catalog)
        broker.follow_archives(groups.committed_offset)
        producer_ids = ProducerIds(metadata, keys)
        readers = self._site.readers
        self._undo.callback(readers.shutdown, wait=False)
        schedules = self._make_schedules(broker, catalog, producer_ids, readers)
        delays = DelayedBatches(schedules, clock=self._clock)
        markers = MarkerWriter(broker, groups, delays)
        transactions = self._make_transactions(broker, catalog, producer_ids, markers)
        self._undo.push_async_callback(broker.stop)
        self._undo.push_async_callback(self._tasks.stop)
        self._undo.push_async_callback(schedules.stop)
        await broker.start()
        follow_setting(catalog, self._config.node.id, BACKGROUND_THREADS, set_background_threads)
        await schedules.start()
        await groups.start()
        self._registry.register(GroupCollector(broker, groups))
        await transactions.start()
        await self._open_metrics_page(broker)
        queue_catalog = QueueCatalog(watch, clock=self._clock)
        access = AccessCatalog(watch)
        authorizer = await self._follow_access(access, broker)
        queues = await self._open_queues(broker, catalog, queue_catalog, producer_ids, readers, authorizer)
        delivery = QueueDelivery(queues, schedules)
        redrives = await self._open_redrives(queues, delivery, RedriveStore(metadata, keys), authorizer)
        return Parts(
            clock=self._clock,
            tasks=self._tasks,
            readers=readers,
            broker=broker,
            topics=catalog,
            producer_ids=producer_ids,
            publisher=Publisher(schedules),
            groups=groups,
            transactions=transactions,
            markers=markers,
            schedules=schedules,
            delays=delays,
            queues=queues,
            delivery=delivery,
            redrives=redrives,
            shares=ShareGroups(self._site, groups, queues, catalog),
            trace=self._open_trace(broker, queues, groups, schedules),
            access=access,
            authorizer=authorizer,
        )

    def _make_site(self) -> Site:
        config = self._config
        return Site(
            clock=self._clock,
            tasks=self._tasks,
            readers=ThreadPoolExecutor(READER_THREADS, thread_name_prefix="reader"),
            config=SiteConfig(
                broker=config.broker,
                groups=config.groups,
                transactions=config.transactions,
                share_groups=config.share_groups,
            ),
            metrics=self._registry,
            node_id=config.node.id,
        )

    async def _open_queues(
        self,
        broker: Broker,
        catalog: TopicCatalog,
        queue_catalog: QueueCatalog,
        producer_ids: ProducerIds,
        readers: Executor,
        authorizer: Authorizer,
    ) -> NodeQueues:
        queues = NodeQueues(
            broker,
            catalog,
            queue_catalog,
            producer_ids,
            authorizer=authorizer,
            readers=readers,
            clock=self._clock,
            tasks=self._tasks,
        )
        self._registry.register(QueueCollector(queues))
        self._undo.push_async_callback(queues.stop)
        await queues.start()
        return queues

    async def _open_redrives(
        self, queues: NodeQueues, delivery: QueueDelivery, store: RedriveStore, authorizer: Authorizer
    ) -> Redrives:
        redrives = Redrives(self._site, queues, delivery, store, authorizer=authorizer)
        self._undo.push_async_callback(redrives.stop)
        await redrives.start()
        return redrives

    def _make_schedules(
        self, broker: Broker, catalog: TopicCatalog, producer_ids: ProducerIds, readers: Executor
    ) -> NodeSchedules:
        schedules = NodeSchedules(broker, catalog, producer_ids, readers=readers, clock=self._clock, tasks=self._tasks)
        self._registry.register(ScheduleCollector(schedules))
        return schedules

    def _with_spans(self, parts: Parts) -> Parts:
        if not self._config.otel.enabled:
            return parts
        try:
            parts, shut_down = with_spans(parts, self._config.otel, node_id=self._config.node.id)
        except OtelMissingError as error:
            raise ConfigError(f"configuration: {error}") from error
        self._undo.push_async_callback(asyncio.to_thread, shut_down)
        return parts

    def _open_trace(
        self,
        broker: Broker,
        queues: NodeQueues,
        groups: GroupCoordinator,
        schedules: NodeSchedules,
    ) -> NodeTrace:
        trace = NodeTrace(self._site, broker, queues, groups, schedules)
        trace.start()
        return trace

    def _make_transactions(
        self, broker: Broker, catalog: TopicCatalog, producer_ids: ProducerIds, markers: MarkerWriter
    ) -> TransactionCoordinators:
        transactions = TransactionCoordinators(self._site, broker, catalog, producer_ids=producer_ids, markers=markers)
        self._registry.register(TransactionCollector(transactions))
        return transactions

    async def _open_storage(self) -> LogStore:
        node = self._config.node
        files = MemoryFiles(bytes_max=node.memory_bytes_max) if node.memory else DirectoryFiles()
        store = await asyncio.to_thread(
            LogStore.open,
            files,
            self._log_directory(),
            self._config.storage,
            self._clock,
            self._registry,
        )
        self._undo.push_async_callback(self._close_storage, store)
        return store

    async def _close_storage(self, store: LogStore) -> None:
        # Every write is in a turn that has ended when the last one has: `close` syncs by itself and wants no other.
        if store.logs:
            await store.group_commit.join(store.logs[0]).wait()
        await asyncio.to_thread(store.close)

    async def _open_directory(self, store: LogStore, metadata: SqliteStore, keys: KeySpace) -> str:
        """The cluster's id, once the directory and the metadata are known to belong together."""
        directory = DataDirectory(store, metadata, keys)
        await directory.check()
        cluster_id = await ensure_cluster_id(metadata, keys, lambda: uuid.uuid4().bytes)
        await directory.claim(cluster_id)
        metadata.keep_copy()
        return cluster_id

    def _way_out(self) -> str:
        node = self._config.node
        elsewhere = f" --metadata {node.metadata}" if node.metadata else ""
        return (
            "no log was touched; put the right file back, or see what can be restored: "
            f"penstock metadata rebuild --data-dir {node.data_dir}{elsewhere} --dry-run"
        )

    async def _open_metadata(self) -> SqliteStore:
        node = self._config.node
        if node.metadata:
            kind, _, path = node.metadata.partition(":")
            if kind != "sqlite" or not path:
                raise ConfigError(f"metadata: {node.metadata!r} is not sqlite:PATH")
        else:
            path = ":memory:" if node.memory else str(Path(node.data_dir) / "metadata.sqlite")
        store = await SqliteStore.open(path, clock=self._clock, is_secret=KeySpace().is_secret)
        self._undo.push_async_callback(store.close)
        return store

    async def _open_metrics_page(self, broker: Broker) -> None:
        if self._config.metrics.listen in ("", OFF):
            return
        page = MetricsPage(self._registry, lambda: broker.is_healthy, broker.told_damages)
        await _listen(page.start, self._config.metrics.listen, "metrics")
        self._undo.push_async_callback(page.stop)
        self.addresses["metrics"] = join_address(page.host, page.port)

    async def _follow_access(self, access: AccessCatalog, broker: Broker) -> AclAuthorizer:
        authorizer = AclAuthorizer(self._config.access, has_logins=bool(self._config.kafka.sasl_mechanisms))
        access.on_change(partial(_follow_rules, authorizer, broker), Part.AUTHORIZER)
        await access.start()
        self._undo.push_async_callback(access.stop)
        return authorizer

    async def _open_http_door(self, parts: Parts) -> None:
        config = self._config.http
        if config.listen in ("", OFF):
            return
        # Not before somebody wants it: Starlette takes a while to import.
        from penstock.gateways.http_app import make_http_app

        names = [split_address(config.listen, "http")[0]]
        if self._config.kafka.advertised:
            names.append(split_address(self._config.kafka.advertised, "kafka advertised")[0])
        application = make_http_app(parts, config, names)
        server = HttpServer(config, application, self._tasks)
        # In reverse: whoever waits for a message is woken, then what is at hand is answered.
        self._undo.push_async_callback(server.stop)
        self._undo.callback(parts.broker.wake_waiting)
        await _listen(server.start, config.listen, "http")
        self.addresses["http"] = join_address(server.host, server.port)

    async def _open_kafka_door(self, parts: Parts) -> None:
        config = self._config.kafka
        if config.listen in ("", OFF):
            return
        await parts.shares.start()
        sasl = await self._open_sasl(parts.access)
        handlers = make_handlers(
            parts,
            address=lambda: self._address,
            node_entries=lambda: node_entries(self._config, self._address, log_directory=self._log_directory()),
            node_settings={CONNECTIONS_MAX: str(config.connections_max)},
            sasl=sasl,
        )
        server = KafkaServer(config, handlers, self._tasks, partial(learn_route, parts.broker), sasl)
        follow_setting(
            parts.topics, self._config.node.id, CONNECTIONS_MAX, server.limit_connections, config.connections_max
        )
        self._registry.register(KafkaDoorCollector(server))
        # In reverse: stop listening, wake the parked readers, send waiting members away, answer, close.
        self._undo.push_async_callback(server.drain)
        self._undo.push_async_callback(parts.groups.stop)
        self._undo.push_async_callback(parts.transactions.stop)
        self._undo.callback(parts.broker.wake_waiting)
        self._undo.push_async_callback(server.stop_listening)
        await _listen(server.start, config.listen, "kafka")
        self.addresses["kafka"] = join_address(server.host, server.port)
        host, port = advertised_address(config.advertised) or (None, server.port)
        self._address = msgspec.structs.replace(self._address, host=host_to_tell(server.host, host), port=port)

    async def _open_sasl(self, access: AccessCatalog) -> SaslHandler:
        config = self._config.kafka
        settings = SaslSettings(config.sasl_mechanisms, config.reauthentication_ms_max, config.failed_login_delay_ms)
        if not config.sasl_mechanisms:
            return SaslHandler(None, settings, self._clock)
        hashers = ThreadPoolExecutor(HASHER_THREADS, thread_name_prefix="hasher")
        self._undo.callback(hashers.shutdown, wait=False, cancel_futures=True)
        secret = await access.ensure_login_secret(partial(secrets.token_bytes, LOGIN_SECRET_BYTES))
        users = SaslUsers(access, secret=secret, configured=config.users, hashers=hashers, hasher_count=HASHER_THREADS)
        await users.start()
        return SaslHandler(users, settings, self._clock)

    async def _register(self, nodes: NodeRegistry) -> None:
        record = NodeRecord(
            self._config.node.id,
            self._address.host or split_address(self._config.kafka.listen, "kafka")[0],
            self._address.port,
            directory_id=self._directory_id(),
            started_ms=self._clock.now_ms(),
        )
        self._undo.push_async_callback(nodes.close)
        outcome = await nodes.register(record)
        if isinstance(outcome, NodeIdTaken):
            raise ConfigError(
                f"node {record.node_id} is running already at {outcome.record.host}:{outcome.record.port}; "
                "give this one another id (PENSTOCK_NODE__ID)"
            )

    def _log_directory(self) -> str:
        """Whole, as tools tell it and send it back; what is in memory has a name only."""
        node = self._config.node
        return node.data_dir if node.memory else str(Path(node.data_dir).absolute())

    def _directory_id(self) -> str:
        """Tells this node, started again, from another one that was given its id by mistake."""
        if self._config.node.memory:
            return uuid.uuid4().hex
        return f"{socket.gethostname()}:{Path(self._config.node.data_dir).resolve()}"


def _follow_rules(authorizer: AclAuthorizer, broker: Broker, change: AccessChange) -> None:
    if isinstance(change, AclsChanged):
        authorizer.replace(change.bindings)
        # What connections have remembered about who may write where holds no longer.
        broker.generation += 1


async def _listen(start: Callable[[str, int], Awaitable[None]], address: str, what: str) -> None:
    host, port = split_address(address, what)
    try:
        await start(host, port)
    except OSError as error:
        # Without the address, which asyncio puts into its text once more.
        reason = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror or error
        raise ConfigError(f"{what}: cannot listen on {address}: {reason}") from error
