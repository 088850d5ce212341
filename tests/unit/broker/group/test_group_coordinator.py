"""The groups of a node: their internal topic, transactions that commit positions, and what a stop leaves behind."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.base.clock import Clock, SystemClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.config import BrokerConfig
from penstock.broker.group.node import PARTITION_COUNT, GroupCoordinator
from penstock.broker.site import Site, SiteConfig
from penstock.broker.topic.broker import Broker
from penstock.cluster.catalog.topics import Created, TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.domain.group.commands import (
    CommitOffsets,
    CommitTransactionOffsets,
    FetchedOffset,
    FetchOffsets,
    OffsetsFetched,
    OffsetsWritten,
    OffsetToCommit,
    PartitionName,
    Refused,
)
from penstock.domain.group.description import NO_GROUP
from penstock.domain.group.values import GroupConfig, GroupError
from penstock.domain.topic_rules import CONSUMER_OFFSETS
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.state import TopicPartition
from penstock.storage.config import StorageConfig
from penstock.storage.files import DirectoryFiles, Files, MemoryFiles
from penstock.storage.store import LogStore

PRODUCER = 7
COMMIT = CommitTransactionOffsets(PRODUCER, 0, (OffsetToCommit("orders", 0, 9),))


class Groups(msgspec.Struct):
    coordinator: GroupCoordinator
    catalog: TopicCatalog
    broker: Broker

    async def commit(self, group_id: str, offset: int, *, topic: str = "orders") -> object:
        return await self.coordinator.submit(group_id, CommitOffsets((OffsetToCommit(topic, 0, offset),)))

    async def fetch(self, group_id: str, *, topic: str = "orders", requires_stable: bool = True) -> FetchedOffset:
        wanted = FetchOffsets((PartitionName(topic, 0),), requires_stable=requires_stable)
        reply = await self.coordinator.submit(group_id, wanted)
        assert isinstance(reply, OffsetsFetched), reply
        return reply.partitions[0]

    async def end(self, group_id: str, *, is_commit: bool = True, epoch: int = 0) -> bool:
        return await self.coordinator.end_transaction(
            self.coordinator.offsets_partition_of(group_id).partition,
            TransactionEnd(producer_id=PRODUCER, producer_epoch=epoch, coordinator_epoch=1, is_commit=is_commit),
        )

    def overrides(self) -> dict[str, str]:
        topic = self.catalog.by_name(CONSUMER_OFFSETS)
        assert topic is not None
        return topic.overrides


@asynccontextmanager
async def running_groups(
    files: Files | None = None,
    directory: str = "data",
    *,
    metadata: str = ":memory:",
    config: GroupConfig | None = None,
    broker_config: BrokerConfig | None = None,
    before: Callable[[TopicCatalog], Awaitable[None]] | None = None,
) -> AsyncIterator[Groups]:
    """A broker and its groups, without a door."""
    clock: Clock = SystemClock()
    tasks = TaskSupervisor(get_logger("test"))
    store = LogStore.open(files or MemoryFiles(), directory, StorageConfig(free_bytes_min=0), clock)
    sqlite = await SqliteStore.open(metadata, clock=clock)
    catalog = TopicCatalog(MetadataWatch(sqlite, KeySpace()), clock=clock, new_topic_id=lambda: uuid.uuid4().bytes)
    settings = SiteConfig(broker=broker_config or BrokerConfig(), groups=config or GroupConfig())
    site = Site(clock=clock, tasks=tasks, readers=ThreadPoolExecutor(1), config=settings)
    broker = Broker(site, catalog=catalog, store=store)
    groups = GroupCoordinator(site, broker, catalog)
    await broker.start()
    try:
        if before is not None:
            await before(catalog)
        await groups.start()
        yield Groups(groups, catalog, broker)
        await groups.stop()
    finally:
        await tasks.stop()
        await broker.stop()
        if store.logs:
            await store.group_commit.join(store.logs[0]).wait()
        store.close()
        await sqlite.close()


@pytest.fixture
async def groups() -> AsyncIterator[Groups]:
    async with running_groups() as running:
        assert isinstance(await running.catalog.create_topic("orders", 1, {}), Created)
        yield running


async def fine() -> None:
    return None


# The internal topic


async def test_internal_topic_is_compacted_but_not_before_the_trace_horizon(groups: Groups) -> None:
    await groups.commit("billing", 1)
    overrides = groups.overrides()
    assert overrides["cleanup.policy"] == "compact"
    assert overrides["min.compaction.lag.ms"] == str(24 * 3_600_000)
    assert int(overrides["segment.bytes"]) < 64 * 1024 * 1024
    topic = groups.broker.topic(CONSUMER_OFFSETS)
    assert topic is not None
    rules = topic.shells[0].log.config.compaction
    assert rules is not None
    assert rules.min_compaction_lag_ms == 24 * 3_600_000


async def test_internal_topic_of_an_earlier_version_is_compacted_from_now_on() -> None:
    async def create(catalog: TopicCatalog) -> None:
        await catalog.create_topic(CONSUMER_OFFSETS, 3, {"segment.bytes": "1048576", "min.compaction.lag.ms": "5"})

    horizon = BrokerConfig(trace_horizon_ms=60_000)
    async with running_groups(before=create, broker_config=horizon) as groups:
        overrides = groups.overrides()
        assert overrides["cleanup.policy"] == "compact"
        assert overrides["segment.bytes"] == "1048576", "what somebody has set stays"
        assert overrides["min.compaction.lag.ms"] == "60000", "but the horizon is the node's"
        assert groups.coordinator.offsets_partition_of("billing").partition < 3


async def test_group_belongs_to_the_same_partition_before_and_after_the_topic_is_there(groups: Groups) -> None:
    before = groups.coordinator.offsets_partition_of("billing")
    assert groups.broker.topic(CONSUMER_OFFSETS) is None
    await groups.coordinator.ready()
    assert groups.coordinator.offsets_partition_of("billing") == before
    assert before == TopicPartition(CONSUMER_OFFSETS, before.partition)
    assert {groups.coordinator.partition_of(f"group-{number}") for number in range(100)} == set(range(PARTITION_COUNT))


# Transactions


async def test_positions_of_a_transaction_count_with_its_end(groups: Groups) -> None:
    await groups.commit("billing", 5)
    assert isinstance(await groups.coordinator.commit_in_transaction("billing", COMMIT, fine), OffsetsWritten)
    assert (await groups.fetch("billing")).error is GroupError.UNSTABLE_OFFSET_COMMIT
    assert (await groups.fetch("billing", requires_stable=False)).offset == 5
    assert await groups.end("billing")
    assert (await groups.fetch("billing")).offset == 9


async def test_what_the_transactions_coordinator_objects_to_is_the_reply(groups: Groups) -> None:
    async def objects() -> str:
        return "no such transaction"

    assert await groups.coordinator.commit_in_transaction("billing", COMMIT, objects) == "no such transaction"
    assert (await groups.fetch("billing")).offset == -1


async def test_transaction_that_ends_while_it_is_asked_about_is_asked_about_again(groups: Groups) -> None:
    """The first answer was right when it was given, and late offsets would wait for ever."""
    questions = 0

    async def over_by_now() -> str | None:
        nonlocal questions
        questions += 1
        if questions > 1:
            return "it has ended"
        assert await groups.end("billing")
        return None

    assert await groups.coordinator.commit_in_transaction("billing", COMMIT, over_by_now) == "it has ended"
    assert (await groups.fetch("billing")).offset == -1


async def test_next_transaction_of_the_same_producer_gets_its_positions_in(groups: Groups) -> None:
    questions = 0

    async def the_next_one() -> None:
        nonlocal questions
        questions += 1
        if questions == 1:
            await groups.end("billing")

    assert isinstance(await groups.coordinator.commit_in_transaction("billing", COMMIT, the_next_one), OffsetsWritten)
    assert questions == 2


async def test_questions_about_a_transaction_come_to_an_end(groups: Groups) -> None:
    async def always_over() -> None:
        await groups.end("billing")

    reply = await groups.coordinator.commit_in_transaction("billing", COMMIT, always_over)
    assert reply == Refused(GroupError.INVALID_TXN_STATE)


async def test_without_groups_there_is_nothing_to_end(groups: Groups) -> None:
    assert await groups.end("billing")
    assert groups.broker.topic(CONSUMER_OFFSETS) is None, "and nothing is created for it"
    assert await groups.coordinator.describe("billing") == NO_GROUP
    assert await groups.coordinator.list_groups() == []


async def test_positions_of_a_topic_that_is_deleted_meanwhile_are_gone(groups: Groups) -> None:
    await groups.commit("billing", 5)
    await groups.coordinator.commit_in_transaction("billing", COMMIT, fine)
    await groups.catalog.delete_topic("orders")
    assert (await groups.fetch("billing")).offset == -1
    assert await groups.end("billing")
    assert (await groups.fetch("billing")).offset == -1
    (listed,) = await groups.coordinator.list_groups()  # type: ignore[misc]
    assert (listed[0], listed[1].state) == ("billing", "Empty")


# Stop and start


async def test_commits_that_wait_for_company_are_kept_at_the_stop(tmp_path: Path) -> None:
    config = GroupConfig(offsets_flush_ms=3_600_000)
    metadata = str(tmp_path / "metadata.sqlite")
    async with running_groups(DirectoryFiles(), str(tmp_path), metadata=metadata, config=config) as groups:
        await groups.catalog.create_topic("orders", 1, {})
        await groups.coordinator.ready()
        commits = [asyncio.create_task(groups.commit(f"group-{number}", number)) for number in range(20)]
        await asyncio.sleep(0)
        assert not any(commit.done() for commit in commits)
        await groups.coordinator.stop()
        assert all(isinstance(reply, OffsetsWritten) for reply in await asyncio.gather(*commits))
    async with running_groups(DirectoryFiles(), str(tmp_path), metadata=metadata) as groups:
        assert [(await groups.fetch(f"group-{number}")).offset for number in range(20)] == list(range(20))


async def test_topic_that_went_while_nobody_listened_takes_its_positions_along(tmp_path: Path) -> None:
    metadata = str(tmp_path / "metadata.sqlite")
    async with running_groups(DirectoryFiles(), str(tmp_path), metadata=metadata) as groups:
        for topic in ("orders", "kept"):
            await groups.catalog.create_topic(topic, 1, {})
            await groups.commit("billing", 5, topic=topic)

    async def delete(catalog: TopicCatalog) -> None:
        # Before the groups are loaded, as by another node.
        await catalog.delete_topic("orders")

    async with running_groups(DirectoryFiles(), str(tmp_path), metadata=metadata, before=delete) as groups:
        assert (await groups.fetch("billing")).offset == -1
        assert (await groups.fetch("billing", topic="kept")).offset == 5
