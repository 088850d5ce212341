"""One watch per node: every catalog hears of every revision, in the order that is written down."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.clock import ManualClock
from penstock.base.long_work import Steps
from penstock.cluster.catalog.access import AccessCatalog
from penstock.cluster.catalog.nodes import NodeCatalog, NodeRecord
from penstock.cluster.catalog.order import ORDER, Kind, Part
from penstock.cluster.catalog.partition_image import Stated
from penstock.cluster.catalog.queues import QueueCatalog, QueueChange, QueueImage, StoredQueue
from penstock.cluster.catalog.topic_image import Change, StoredTopic, TopicAdded, TopicRemoved
from penstock.cluster.catalog.topics import Created, TopicCatalog
from penstock.cluster.catalog.watch import Followed, MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Event, StoreDamagedError, StoreUnavailableError
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import encode
from penstock.domain.queue.definition import QueueName
from penstock.domain.replication.state import PartitionState, first_state
from penstock.domain.schedule.cron_place import CronPlace
from penstock.domain.security.access import Operation, ResourceType
from penstock.domain.security.acl import AclBinding, PatternType, Permission
from support.metadata_store import WatchedStore

KEYS = KeySpace()
RULE = AclBinding(ResourceType.TOPIC, "a", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
QUEUE = QueueName("orders", "workers")
TOPIC_ID = (7).to_bytes(16)
# One of each kind, in one transaction.
ONE_OF_EACH = {
    KEYS.acl("rule"): encode(RULE),
    KEYS.queue(QUEUE): encode(StoredQueue(TOPIC_ID)),
    KEYS.topic("orders"): encode(StoredTopic(TOPIC_ID, 1)),
}
OF_A_CLUSTER = {
    KEYS.node(2): encode(NodeRecord(2, "b", 1)),
    KEYS.partition(TOPIC_ID, 0): encode(first_state((2,), 1)),
    KEYS.cron(TOPIC_ID, "tick"): encode(CronPlace(0)),
}
HISTORY_REVISIONS = 3


class Catalogs:
    """Those of one node, on one watch, with the kinds of what was told, in order."""

    def __init__(self, store: WatchedStore) -> None:
        self.store = store
        watch = MetadataWatch(store, KEYS, retry_s=0.001)
        numbers = iter(range(1000, 2000))
        self.topics = TopicCatalog(watch, clock=ManualClock(), new_topic_id=lambda: next(numbers).to_bytes(16))
        self.queues = QueueCatalog(watch, clock=ManualClock())
        self.access = AccessCatalog(watch)
        self.by_kind = {Kind.TOPICS: self.topics, Kind.QUEUES: self.queues, Kind.ACCESS: self.access}
        self.nodes = NodeCatalog(watch)
        # Each by itself, also those that a catalog follows together.
        self.followed: dict[Kind, Followed[Any]] = {
            Kind.NODES: self.nodes._watch,
            Kind.TOPICS: self.topics._watch,
            Kind.PARTITIONS: self.topics._partition_watch,
            Kind.CRONS: self.topics.crons.followed,
            Kind.QUEUES: self.queues._watch,
            Kind.ACCESS: self.access._watch,
        }
        self.told: list[object] = []
        self._told_more = asyncio.Event()

    async def start(self) -> None:
        for catalog in self.by_kind.values():
            catalog.on_change(self._hear)
            await catalog.start()

    async def stop(self) -> None:
        for catalog in self.by_kind.values():
            await catalog.stop()

    def _hear(self, change: object) -> None:
        self.told.append(change)
        self._told_more.set()

    async def settle(self) -> None:
        """Returns when everything that is stored has come by the watch."""
        result = await self.store.txn(deletes=[KEYS.node_config(1)])
        await self.topics._watch.wait_for(result.revision)

    async def hear(self, count: int) -> list[str]:
        """The names of all that was told, when there are `count`."""
        async with asyncio.timeout(10):
            while len(self.told) < count:
                self._told_more.clear()
                await self._told_more.wait()
        return [type(change).__name__ for change in self.told]


@pytest.fixture
async def store() -> AsyncIterator[WatchedStore]:
    real = await SqliteStore.open(":memory:", clock=ManualClock(), history_revisions=HISTORY_REVISIONS)
    yield WatchedStore(real)
    await real.close()


@pytest.fixture
async def node(store: WatchedStore) -> AsyncIterator[Catalogs]:
    catalogs = Catalogs(store)
    await catalogs.start()
    yield catalogs
    await catalogs.stop()


async def test_one_watch_feeds_every_catalog(node: Catalogs) -> None:
    await node.store.txn(puts=ONE_OF_EACH)
    assert await node.hear(3) == ["TopicAdded", "QueueChanged", "AclsChanged"]
    assert node.store.begun_count == 1


async def test_parts_hear_in_the_written_order_whoever_registers_first(store: WatchedStore) -> None:
    catalogs = Catalogs(store)
    heard: list[tuple[Kind, Part | None]] = []

    def note(kind: Kind, part: Part | None) -> Callable[[object], None]:
        return lambda _change: heard.append((kind, part))

    for kind, followed in catalogs.followed.items():
        followed.on_change(note(kind, None))
    for kind, part in reversed(ORDER):
        catalogs.followed[kind].on_change(note(kind, part), part)
    for kind in reversed(Kind):
        await catalogs.followed[kind].start()
    await store.txn(puts=ONE_OF_EACH | OF_A_CLUSTER)
    await catalogs.settle()
    # Who only looks on hears after the parts.
    by_kind = [[row for row in [*ORDER, (kind, None)] if row[0] is kind] for kind in Kind]
    assert heard == [row for rows in by_kind for row in rows]
    for followed in catalogs.followed.values():
        await followed.stop()


def test_order_names_each_kind_in_one_stretch() -> None:
    kinds = [kind for kind, _ in ORDER]
    assert kinds == sorted(kinds, key=kinds.index)
    assert set(kinds) == set(Kind)
    assert len(set(ORDER)) == len(ORDER)


async def test_whoever_hears_of_a_topic_can_ask_who_leads_it(store: WatchedStore) -> None:
    elected = PartitionState(leader=3, life=9, epoch=4, replicas=(2, 3), in_sync=(3,))
    await store.txn(puts=ONE_OF_EACH | {KEYS.partition(TOPIC_ID, 0): encode(elected)})
    catalogs = Catalogs(store)
    seen: list[object] = []
    catalogs.topics.on_change(lambda _change: seen.append(catalogs.topics.state(TOPIC_ID, 0)))
    await catalogs.topics.start()
    result = await store.txn(puts={KEYS.partition(TOPIC_ID, 0): encode(first_state((2, 3), 1))})
    await catalogs.topics._watch.wait_for(result.revision)
    assert seen == [Stated(elected, 1)]
    assert catalogs.topics.state(TOPIC_ID, 0) == Stated(first_state((2, 3), 1), result.revision)
    await catalogs.topics.stop()


async def test_part_without_a_row_is_refused(node: Catalogs) -> None:
    with pytest.raises(AssertionError, match="LOGINS hears of"):
        node.topics.on_change(lambda _change: None, Part.LOGINS)


def test_everybody_who_listens_in_a_node_has_a_row() -> None:
    source = Path(__file__).parents[4] / "src" / "penstock"
    calls = [
        (path.name, call)
        for path in sorted(source.rglob("*.py"))
        if path.parent.name != "catalog"
        for call in re.findall(r"\.(?:on_(?:partition_)?change|follow_roles)\((.*)\)", path.read_text())
    ]
    assert len(calls) >= len(ORDER)
    assert [call for call in calls if "Part." not in call[1]] == []


async def test_every_image_has_a_revision_before_anybody_hears_of_it(node: Catalogs) -> None:
    seen: list[object] = []
    look = lambda _change: seen.append(node.queues.get(QUEUE))  # noqa: E731
    node.topics.on_change(look, Part.GROUPS)
    await node.store.txn(puts=ONE_OF_EACH)
    await node.hear(3)
    assert seen == [node.queues.get(QUEUE)]
    assert seen != [None]


async def test_answer_waits_until_everybody_has_heard_of_all_of_it(node: Catalogs) -> None:
    """Also of another kind, when a part takes long."""
    done: list[str] = []

    def slowly(_change: QueueChange) -> Steps[None]:
        for _ in range(5):
            yield
        done.append("queues")

    node.queues.on_change(slowly, Part.QUEUES)
    await node.store.txn(puts=ONE_OF_EACH)
    await node.settle()
    assert done == ["queues"]


@pytest.mark.parametrize("in_steps", [False, True])
async def test_listener_that_fails_stops_nobody_and_loses_no_revision(node: Catalogs, in_steps: bool) -> None:
    def fail(_change: Change) -> Steps[None] | None:
        def steps() -> Steps[None]:
            yield
            raise RuntimeError("in the middle of it")

        if in_steps:
            return steps()
        raise RuntimeError("at once")

    node.topics.on_change(fail, Part.GROUPS)
    await node.store.txn(puts=ONE_OF_EACH)
    await node.store.txn(deletes=list(ONE_OF_EACH))
    heard = await node.hear(6)
    assert heard == ["TopicAdded", "QueueChanged", "AclsChanged", "TopicRemoved", "QueueRemoved", "AclsChanged"]
    assert node.store.begun_count == 1


async def test_value_that_cannot_be_read_holds_up_its_own_kind_alone(node: Catalogs) -> None:
    bad = {KEYS.queue(QUEUE): b"{", KEYS.queue(QueueName("orders", "others")): encode(StoredQueue(TOPIC_ID))}
    await node.store.txn(puts=bad)
    assert isinstance(await node.topics.create_topic("a", 1), Created)
    assert node.queues.all() == []
    # The next change mends it, and what was missed is heard of.
    await node.store.txn(puts={KEYS.queue(QUEUE): encode(StoredQueue(TOPIC_ID))})
    assert await node.hear(3) == ["TopicAdded", "QueueChanged", "QueueChanged"]
    assert len(node.queues.all()) == 2
    assert isinstance(await node.topics.create_topic("b", 1), Created)
    assert node.store.begun_count == 1
    assert len(node.told) == 4


def test_queues_of_a_revision_that_cannot_be_read_whole_are_not_taken_in_part() -> None:
    image = QueueImage(KEYS)
    good = Event(KEYS.queue(QUEUE), encode(StoredQueue(TOPIC_ID)), 1, 1)
    with pytest.raises(StoreDamagedError):
        image.apply([good, Event(KEYS.queue(QueueName("orders", "x")), b"{", 1, 1)])
    assert image.all() == []


async def test_watch_that_fell_behind_gives_the_difference(node: Catalogs) -> None:
    await node.store.txn(puts=ONE_OF_EACH)
    await node.hear(3)
    node.store.hold()
    await node.store.txn(deletes=list(ONE_OF_EACH))
    for number in range(HISTORY_REVISIONS * 2):
        await node.store.txn(puts={KEYS.topic(f"new-{number % 2}"): encode(StoredTopic(number.to_bytes(16), 1))})
    node.store.release()
    heard = await node.hear(8)
    # Each kind once, and of what came and went meanwhile nothing.
    assert heard[3:] == ["TopicRemoved", "TopicAdded", "TopicAdded", "QueueRemoved", "AclsChanged"]
    assert node.topics.names() == ["new-0", "new-1"]
    assert node.store.begun_count == 2


async def test_watch_that_was_lost_gives_the_difference(node: Catalogs) -> None:
    await node.store.txn(puts=ONE_OF_EACH)
    await node.hear(3)
    node.store.fail(StoreUnavailableError("the disk is on fire"))
    await node.store.txn(deletes=[KEYS.topic("orders")])
    await node.store.failed.wait()
    assert node.topics.names() == ["orders"]
    node.store.fail(None)
    assert (await node.hear(4))[3:] == ["TopicRemoved"]
    await node.store.txn(puts={KEYS.topic("a"): encode(StoredTopic(TOPIC_ID, 1))})
    await node.settle()
    assert [type(change) for change in node.told[3:]] == [TopicRemoved, TopicAdded]


async def test_catalog_that_starts_later_hears_of_everything_once(store: WatchedStore) -> None:
    node = Catalogs(store)
    await node.topics.start()
    heard: list[str] = []
    node.queues.on_change(lambda change: heard.append(change.definition.name.group))
    started: list[asyncio.Task[None]] = []

    def start_meanwhile(_change: Change) -> Steps[None]:
        # In the middle of a revision that the other catalogs do not have yet.
        started.append(asyncio.ensure_future(node.queues.start()))
        for _ in range(5):
            yield

    node.topics.on_change(start_meanwhile, Part.BROKER)
    await store.txn(puts=ONE_OF_EACH)
    await node.settle()
    await store.txn(puts={KEYS.queue(QueueName("orders", "later")): encode(StoredQueue(TOPIC_ID))})
    await asyncio.gather(*started)
    await node.settle()
    assert sorted(heard) == ["later", "workers"]
    assert store.begun_count == 1
    await node.stop()


async def test_catalog_that_has_left_hears_nothing_and_the_others_go_on(node: Catalogs) -> None:
    await node.access.stop()
    await node.store.txn(puts=ONE_OF_EACH)
    await node.settle()
    assert await node.hear(2) == ["TopicAdded", "QueueChanged"]


async def test_last_one_to_leave_ends_the_watch(node: Catalogs) -> None:
    # It has begun, when something came by it.
    await node.store.txn(puts=ONE_OF_EACH)
    await node.hear(3)
    await node.queues.stop()
    await node.topics.stop()
    assert node.store.open_count == 1
    await node.access.stop()
    assert node.store.open_count == 0
    # And the first one that comes back begins another.
    await node.topics.start()
    assert isinstance(await node.topics.create_topic("a", 1), Created)
    assert node.store.begun_count == 2


async def test_watch_ends_with_the_store(node: Catalogs) -> None:
    await node.store.txn(puts=ONE_OF_EACH)
    await node.hear(3)
    await node.store.close()
    async with asyncio.timeout(10):
        while node.store.open_count:  # noqa: ASYNC110  one turn of the loop after the other, and bounded
            await asyncio.sleep(0)


async def test_nobody_starts_on_what_cannot_be_read(store: WatchedStore) -> None:
    await store.txn(puts={KEYS.queue(QUEUE): b"{"})
    node = Catalogs(store)
    await node.topics.start()
    with pytest.raises(StoreDamagedError, match="queues/orders/workers"):
        await node.queues.start()
    assert isinstance(await node.topics.create_topic("a", 1), Created)
    await node.stop()
