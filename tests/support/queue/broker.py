"""A broker with queues on a real store in memory, without any door."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from penstock.base.clock import Clock, SystemClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.outcome import Appended
from penstock.broker.queue.batch import BatchCache
from penstock.broker.queue.delivery import Message, QueueDelivery, ReceivedMessages
from penstock.broker.queue.node import NodeQueues
from penstock.broker.queue.reader import QueueReader
from penstock.broker.site import Site, SiteConfig
from penstock.broker.topic.broker import Broker
from penstock.cluster.catalog.queues import QueueCatalog
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.producer_ids import ProducerIds
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.compression import Codec
from penstock.codec.batch.records import Record, StoredRecord, build_batch
from penstock.domain.queue.definition import QueueName, QueueOptions
from penstock.domain.security.access import AllowAll, Authorizer
from penstock.storage.config import StorageConfig
from penstock.storage.files import MemoryFiles
from penstock.storage.store import LogStore


class QueueBroker:
    """`restart` brings a new broker up on the files and the metadata of the old one."""

    def __init__(self, files: MemoryFiles | None = None, clock: Clock | None = None) -> None:
        self.files = files or MemoryFiles()
        self.clock = clock or SystemClock()
        self.metadata: SqliteStore | None = None
        self.authorizer: Authorizer = AllowAll()
        self.config = SiteConfig()

    async def start(self) -> None:
        if self.metadata is None:
            self.metadata = await SqliteStore.open(":memory:", clock=self.clock)
        keys = KeySpace()
        self.tasks = TaskSupervisor(get_logger("test"))
        self.store = self.open_store()
        watch = MetadataWatch(self.metadata, keys)
        self.catalog = TopicCatalog(watch, clock=self.clock, new_topic_id=lambda: uuid.uuid4().bytes)
        self.readers = self.make_readers()
        self.site = Site(clock=self.clock, tasks=self.tasks, readers=self.readers, config=self.config)
        self.broker = Broker(self.site, catalog=self.catalog, store=self.store)
        self.queues = NodeQueues(
            self.site,
            self.broker,
            self.catalog,
            QueueCatalog(watch, clock=self.clock),
            self.make_producer_ids(self.metadata, keys),
            authorizer=self.authorizer,
        )
        self.delivery = QueueDelivery(self.queues)
        await self.broker.start()
        await self.queues.start()

    def make_producer_ids(self, metadata: MetadataStore, keys: KeySpace) -> ProducerIds:
        return ProducerIds(metadata, keys)

    def make_readers(self) -> Executor:
        return ThreadPoolExecutor(2)

    def open_store(self) -> LogStore:
        return LogStore.open(self.files, "/data", StorageConfig(), self.clock)

    async def stop(self) -> None:
        await self.queues.stop()
        await self.tasks.stop()
        await self.broker.stop()
        self.readers.shutdown()
        self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def topic(self, name: str, partitions: int = 1, **overrides: str) -> None:
        wanted = {key.replace("_", "."): value for key, value in overrides.items()}
        await self.catalog.create_topic(name, partitions, wanted)

    async def queue(self, topic: str, group: str = "workers", options: QueueOptions | None = None) -> QueueName:
        definition = await self.queues.define(QueueName(topic, group), options or QueueOptions())
        return definition.name

    async def send(
        self, topic: str, values: Sequence[bytes | Record], partition: int = 0, codec: Codec = Codec.NONE
    ) -> int:
        """One batch; its base offset, when it is durable."""
        now_ms = self.clock.now_ms()
        records = [each if isinstance(each, Record) else Record(value=each, timestamp_ms=now_ms) for each in values]
        served = self.broker.topic(topic)
        assert served is not None
        outcome = served.shells[partition].append(memoryview(build_batch(records, codec=codec)))
        assert isinstance(outcome, Appended), outcome
        if outcome.commitment is not None:
            await outcome.commitment.kept()
        return outcome.base_offset

    async def receive(
        self, name: QueueName, count_max: int = 10, *, consumer: str = "c", wait_ms: int = 0
    ) -> list[Message]:
        received = await self.delivery.receive(name, consumer=consumer, count_max=count_max, wait_ms=wait_ms)
        assert isinstance(received, ReceivedMessages), received
        return list(received.messages)

    async def log_of(self, topic: str, partition: int = 0) -> list[StoredRecord]:
        served = self.broker.topic(topic)
        if served is None:
            return []
        shell = served.shells[partition]
        reader = QueueReader(shell, served.topic_id, BatchCache(1 << 20), self.readers)
        found = await reader.messages(shell.log_start, shell.readable_end - 1, is_committed_only=False)
        assert isinstance(found, list), found
        return found
