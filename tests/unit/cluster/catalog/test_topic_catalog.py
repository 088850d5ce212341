from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock
from penstock.cluster.catalog.topic_image import (
    Change,
    NodeConfigChanged,
    PartitionsGrown,
    Topic,
    TopicAdded,
    TopicConfigChanged,
    TopicRemoved,
)
from penstock.cluster.catalog.topics import (
    AlreadyExists,
    Altered,
    Created,
    Deleted,
    Grown,
    InvalidConfig,
    InvalidName,
    InvalidPartitions,
    NewTopic,
    TopicCatalog,
    UnknownTopic,
)
from penstock.cluster.catalog.watch import IMAGE_WAIT_S, RETRY_S, MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import StoreDamagedError, StoreUnavailableError
from penstock.cluster.store.sqlite import SqliteStore
from penstock.domain.config.change import ConfigChange, ConfigOperation
from support.metadata_store import WatchedStore

KEYS = KeySpace()


class Nodes:
    """Catalogs over one store, as several nodes would have, each with the changes that it was told."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "metadata.sqlite"
        self._clock = ManualClock()
        self._numbers = itertools.count(100)
        self.stores: list[WatchedStore] = []
        self._catalogs: list[TopicCatalog] = []

    async def start(
        self, *, history_revisions: int = 1000, retry_s: float = RETRY_S, image_wait_s: float = IMAGE_WAIT_S
    ) -> tuple[TopicCatalog, list[Change]]:
        store = WatchedStore(
            await SqliteStore.open(self._path, clock=self._clock, poll_ms=5, history_revisions=history_revisions)
        )
        watch = MetadataWatch(store, KEYS, retry_s=retry_s, image_wait_s=image_wait_s)
        catalog = TopicCatalog(watch, clock=self._clock, new_topic_id=self._new_id)
        told: list[Change] = []
        catalog.on_change(told.append)
        self.stores.append(store)
        self._catalogs.append(catalog)
        await catalog.start()
        return catalog, told

    async def stop(self) -> None:
        for catalog in self._catalogs:
            await catalog.stop()
        for store in self.stores:
            await store.close()

    def _new_id(self) -> bytes:
        return next(self._numbers).to_bytes(16)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    await nodes.stop()


async def created(catalog: TopicCatalog, name: str, partitions: int = 1, **overrides: str) -> Topic:
    named = {setting.replace("_", "."): text for setting, text in overrides.items()}
    result = await catalog.create_topic(name, partitions, named)
    assert isinstance(result, Created)
    return result.topic


async def told_to(catalog: TopicCatalog, count: int, told: list[Change]) -> None:
    """Waits until this node has been told of `count` changes."""
    enough = asyncio.Event()
    catalog.on_change(lambda change: enough.set() if len(told) >= count else None)
    if len(told) < count:
        async with asyncio.timeout(5):
            await enough.wait()


# Creating


async def test_a_created_topic_is_seen_by_the_next_look_up(nodes: Nodes) -> None:
    catalog, told = await nodes.start()
    topic = await created(catalog, "orders", 3, retention_ms="1000")
    assert catalog.by_name("orders") == catalog.by_id(topic.topic_id) == topic
    assert (topic.partition_count, topic.overrides) == (3, {"retention.ms": "1000"})
    assert topic.created_ms == ManualClock().now_ms()
    assert told == [TopicAdded(topic)]


async def test_a_topic_is_created_once(nodes: Nodes) -> None:
    first, _ = await nodes.start()
    second, _ = await nodes.start()
    results = await asyncio.gather(first.create_topic("orders", 1), second.create_topic("orders", 2))
    assert {type(result) for result in results} == {Created, AlreadyExists}
    assert first.by_name("orders") == second.by_name("orders")
    assert results[0] != results[1]


async def test_topics_that_cannot_be_are_refused_with_a_reason(nodes: Nodes) -> None:
    catalog, told = await nodes.start()
    await created(catalog, "there")
    results = await catalog.create_topics(
        [
            NewTopic("bad name", 1),
            NewTopic("there", 1),
            NewTopic("none", 0),
            NewTopic("settings", 1, {"retention.ms": "soon", "nonsense": "1"}),
            NewTopic("good", 1),
            NewTopic("twice", 1),
            NewTopic("twice", 2),
        ]
    )
    kinds = [InvalidName, AlreadyExists, InvalidPartitions, InvalidConfig, Created, InvalidName, InvalidName]
    assert [type(result) for result in results] == kinds
    refused = results[3]
    assert isinstance(refused, InvalidConfig)
    assert "'nonsense' is not a topic setting; retention.ms is 'soon'" in refused.reason
    assert catalog.names() == ["good", "there"]
    assert len(told) == 2


async def test_validation_alone_changes_nothing(nodes: Nodes) -> None:
    catalog, told = await nodes.start()
    assert isinstance(await catalog.create_topic("orders", 2, validate_only=True), Created)
    topic = await created(catalog, "orders")
    assert isinstance(await catalog.create_partitions("orders", 5, validate_only=True), Grown)
    setting = {"retention.ms": "5"}
    assert isinstance(await catalog.replace_config("orders", setting, validate_only=True), Altered)
    assert catalog.by_name("orders") == topic
    assert told == [TopicAdded(topic)]


async def test_reserved_and_used_topic_ids_are_passed_over(nodes: Nodes, tmp_path: Path) -> None:
    store = await SqliteStore.open(":memory:", clock=ManualClock())
    numbers = iter([0, 1, 7, 7, 0, 8])
    catalog = TopicCatalog(
        MetadataWatch(store, KEYS), clock=ManualClock(), new_topic_id=lambda: next(numbers).to_bytes(16)
    )
    await catalog.start()
    assert (await created(catalog, "first")).topic_id == (7).to_bytes(16)
    assert (await created(catalog, "second")).topic_id == (8).to_bytes(16)
    await catalog.stop()
    await store.close()


async def test_a_thousand_topics_take_few_transactions(nodes: Nodes) -> None:
    catalog, told = await nodes.start()
    results = await catalog.create_topics([NewTopic(f"topic-{number}", 10) for number in range(1000)])
    assert {type(result) for result in results} == {Created}
    assert len(catalog) == len(told) == 1000
    assert (await nodes.stores[0].range("")).revision < 20


async def test_one_topic_that_another_node_made_does_not_spoil_the_others(nodes: Nodes) -> None:
    first, _ = await nodes.start()
    second, _ = await nodes.start()
    wanted = [NewTopic(f"topic-{number}", 1) for number in range(10)]
    ours, theirs = await asyncio.gather(
        first.create_topics(wanted), second.create_topics([NewTopic("topic-5", 9), NewTopic("other", 1)])
    )
    everything = {type(result) for result in [*ours, *theirs]}
    assert everything <= {Created, AlreadyExists}
    assert sum(isinstance(result, Created) for result in [*ours, *theirs]) == 11


# Changing and deleting


async def test_a_deleted_topic_is_gone_at_once(nodes: Nodes) -> None:
    catalog, told = await nodes.start()
    topic = await created(catalog, "orders")
    assert await catalog.delete_topic("orders") == Deleted(topic)
    assert catalog.by_name("orders") is None
    assert told[-1] == TopicRemoved(topic)
    assert await catalog.delete_topic("orders") == UnknownTopic("orders")


async def test_a_topic_created_again_has_another_id(nodes: Nodes) -> None:
    catalog, _ = await nodes.start()
    first = await created(catalog, "orders")
    await catalog.delete_topic("orders")
    second = await created(catalog, "orders")
    assert first.topic_id != second.topic_id
    assert catalog.by_id(first.topic_id) is None


async def test_partitions_grow_and_never_shrink(nodes: Nodes) -> None:
    catalog, told = await nodes.start()
    before = await created(catalog, "orders", 2)
    result = await catalog.create_partitions("orders", 10_000)
    assert isinstance(result, Grown)
    assert catalog.by_name("orders") == result.topic
    assert told[-1] == PartitionsGrown(before, result.topic)
    refused = await catalog.create_partitions("orders", 5)
    assert refused == InvalidPartitions("the topic has 10000 partitions, which cannot be reduced to 5")
    assert await catalog.create_partitions("missing", 5) == UnknownTopic("missing")


async def test_replaced_settings_forget_what_is_not_named(nodes: Nodes) -> None:
    catalog, told = await nodes.start()
    before = await created(catalog, "orders", retention_ms="1", segment_ms="2")
    result = await catalog.replace_config("orders", {"retention.ms": "9"})
    assert isinstance(result, Altered)
    assert result.topic.overrides == {"retention.ms": "9"}
    assert told[-1] == TopicConfigChanged(before, result.topic)


async def test_changed_settings_keep_what_is_not_named(nodes: Nodes) -> None:
    catalog, _ = await nodes.start()
    await created(catalog, "orders", retention_ms="1", segment_ms="2")
    result = await catalog.change_config(
        "orders",
        [
            ConfigChange("retention.ms", ConfigOperation.SET, "9"),
            ConfigChange("segment.ms", ConfigOperation.DELETE),
            ConfigChange("max.message.bytes", ConfigOperation.SET, "5000"),
        ],
    )
    assert isinstance(result, Altered)
    assert result.topic.overrides == {"retention.ms": "9", "max.message.bytes": "5000"}


async def test_wrong_settings_are_refused_whole(nodes: Nodes) -> None:
    catalog, _ = await nodes.start()
    topic = await created(catalog, "orders")
    changes = [
        ConfigChange("retention.ms", ConfigOperation.SET, "9"),
        ConfigChange("durability", ConfigOperation.SET, "replicated"),
    ]
    refused = await catalog.change_config("orders", changes)
    assert isinstance(refused, InvalidConfig)
    assert "durability=replicated needs min.insync.replicas" in refused.reason
    appended = [ConfigChange("retention.ms", ConfigOperation.APPEND, "9")]
    assert isinstance(await catalog.change_config("orders", appended), InvalidConfig)
    assert isinstance(await catalog.replace_config("orders", {"retention.ms": None}), InvalidConfig)
    assert catalog.by_name("orders") == topic
    assert await catalog.change_config("missing", []) == UnknownTopic("missing")


async def test_two_nodes_changing_one_topic_lose_nothing(nodes: Nodes) -> None:
    first, _ = await nodes.start()
    second, _ = await nodes.start()
    await created(first, "orders")

    async def change(catalog: TopicCatalog, setting: str) -> None:
        for number in range(1, 4):
            change = ConfigChange(setting, ConfigOperation.SET, str(number))
            assert isinstance(await catalog.change_config("orders", [change]), Altered)

    await asyncio.gather(change(first, "retention.ms"), change(second, "segment.ms"))
    result = await first.create_partitions("orders", 2)
    assert isinstance(result, Grown)
    assert result.topic.overrides == {"retention.ms": "3", "segment.ms": "3"}


async def test_a_change_by_another_node_in_between_is_not_lost(nodes: Nodes) -> None:
    first, _ = await nodes.start()
    second, _ = await nodes.start()
    await created(first, "orders")
    nodes.stores[0].before_txn = lambda: second.replace_config("orders", {"segment.ms": "2"})
    result = await first.change_config("orders", [ConfigChange("retention.ms", ConfigOperation.SET, "1")])
    assert isinstance(result, Altered)
    assert result.topic.overrides == {"segment.ms": "2", "retention.ms": "1"}


async def test_settings_of_nodes_are_stored(nodes: Nodes) -> None:
    catalog, told = await nodes.start()
    await catalog.alter_node(None, lambda _: {"a": "1"})
    await catalog.alter_node(2, lambda _: {"b": "2"})
    assert (catalog.node_config(None), catalog.node_config(2), catalog.node_config(3)) == (
        {"a": "1"},
        {"b": "2"},
        {},
    )
    await catalog.alter_node(2, lambda _: {})
    assert catalog.node_config(2) == {}
    assert told[-1] == NodeConfigChanged(2, {})


# Following


async def test_another_node_sees_every_change(nodes: Nodes) -> None:
    first, told_first = await nodes.start()
    second, told_second = await nodes.start()
    await created(first, "orders")
    await first.create_partitions("orders", 4)
    await first.replace_config("orders", {"retention.ms": "9"})
    await first.delete_topic("orders")
    await told_to(second, 4, told_second)
    assert told_second == told_first


async def test_a_node_that_starts_is_told_of_every_topic(nodes: Nodes) -> None:
    first, _ = await nodes.start()
    topics = [await created(first, name) for name in ("b", "a", "__internal")]
    await created(first, "gone")
    await first.delete_topic("gone")
    second, told = await nodes.start()
    assert second.topics() == sorted(topics, key=lambda topic: topic.name)
    assert told == [TopicAdded(topic) for topic in second.topics()]
    # Once, and not again by the watch.
    later = await created(second, "later")
    assert told[3:] == [TopicAdded(later)]


async def test_a_watch_that_fell_behind_reads_everything_again(nodes: Nodes) -> None:
    first, _ = await nodes.start(history_revisions=3)
    second, told = await nodes.start(history_revisions=3, retry_s=3600)
    await created(first, "stays")
    goes = await created(first, "goes")
    await told_to(second, 2, told)
    nodes.stores[1].hold()
    await first.delete_topic("goes")
    for number in range(10):
        await created(first, f"new-{number}")
    # The same watch goes on, from a revision whose history is gone.
    nodes.stores[1].release()
    await told_to(second, 13, told)
    assert second.topics() == first.topics()
    assert TopicRemoved(goes) in told


async def test_the_image_outlives_a_store_that_fails(nodes: Nodes) -> None:
    catalog, told = await nodes.start(retry_s=0.001)
    topic = await created(catalog, "orders")
    store = nodes.stores[0]
    store.fail(StoreUnavailableError("the disk is on fire"))
    await store.txn(puts={KEYS.topic("wakes-the-watch"): b'{"topic_id": "", "partition_count": 1}'})
    await store.failed.wait()
    assert catalog.by_name("orders") == topic
    store.fail(None)
    await told_to(catalog, 2, told)
    assert catalog.names() == ["orders", "wakes-the-watch"]


async def test_a_change_that_does_not_come_back_is_an_error(nodes: Nodes) -> None:
    catalog, _ = await nodes.start(image_wait_s=0.01)
    await catalog.stop()
    with pytest.raises(StoreUnavailableError, match="stored but has not come back within"):
        await catalog.create_topic("orders", 1)


async def test_a_node_does_not_start_on_damaged_topics(nodes: Nodes) -> None:
    await nodes.start()
    await nodes.stores[0].txn(puts={KEYS.topic("bad"): b"{"})
    with pytest.raises(StoreDamagedError, match="topics/bad"):
        await nodes.start()
