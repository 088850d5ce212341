"""Three nodes in one loop, from the metadata to the disk, without doors: they call each other directly.

A test is the controller: it writes the states of partitions as one would. Each node has a disk of its own, which
survives its end, and can be cut off from others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from msgspec.structs import replace

from penstock.base.clock import SystemClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.outcome import Appended
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.replication.node import Metadata, NodeReplication
from penstock.broker.replication.settings import ReplicationSettings
from penstock.broker.site import Site
from penstock.broker.topic.broker import Broker
from penstock.cluster.catalog.nodes import NodeCatalog, NodeRecord
from penstock.cluster.catalog.partition_image import Stated
from penstock.cluster.catalog.placing import Placing
from penstock.cluster.catalog.topics import Created, NewTopic, TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, MetadataStore, ModRevisionIs
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import encode
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import Record, build_batch, read_records
from penstock.domain.replication.exchange import ReplicaFetch, ReplicaFetched
from penstock.domain.replication.membership import MemberRecord
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Duty
from penstock.net.errors import PeerUnreachableError
from penstock.net.peers import Lane
from penstock.storage.config import StorageConfig
from penstock.storage.files import Files
from penstock.storage.log.read_plan import ReadPlan
from penstock.storage.store import LogStore
from support.storage.gated_disk import GatedDisk

PATIENCE_SECONDS = 20.0
TOPIC = "orders"
SETTINGS = ReplicationSettings(replica_lag_ms=300, tick_ms=50, gather_ms=1)


class Wire:
    """Direct calls from node to node; a cut goes one way."""

    def __init__(self) -> None:
        self.nodes: dict[int, ReplicaNode] = {}
        self.cuts: set[tuple[int, int]] = set()
        # Every fetch that arrived, by who asked.
        self.fetches: list[tuple[int, Lane, ReplicaFetch]] = []
        # Of new topics, whoever makes them.
        self.topic_ids = (number.to_bytes(16, "big") for number in count(1))

    def cut(self, *nodes: int) -> None:
        """Those are alone from now on."""
        for node in nodes:
            self.cuts |= {(node, other) for other in self.nodes} | {(other, node) for other in self.nodes}

    def mend(self) -> None:
        self.cuts.clear()

    async def call(self, asking: int, leader: int, lane: Lane, fetch: ReplicaFetch) -> ReplicaFetched:
        node = self.nodes.get(leader)
        if node is None or (asking, leader) in self.cuts:
            raise PeerUnreachableError(f"node {leader} is not there")
        self.fetches.append((asking, lane, fetch))
        reply = await node.replication.feed.fetch(fetch)
        if (leader, asking) in self.cuts or self.nodes.get(leader) is not node:
            raise PeerUnreachableError(f"node {leader} hung up")
        return reply


class WireOf:
    def __init__(self, wire: Wire, node_id: int) -> None:
        self._wire = wire
        self._node_id = node_id

    async def fetch(self, node_id: int, lane: Lane, fetch: ReplicaFetch) -> ReplicaFetched:
        return await self._wire.call(self._node_id, node_id, lane, fetch)


class PausedClock(SystemClock):
    """A pause is over in no time: the clock is ahead by it from then on."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


class ReplicaNode:
    def __init__(self, node_id: int, metadata: MetadataStore, wire: Wire, files: Files) -> None:
        self.node_id = node_id
        self.files = files
        self.clock = PausedClock()
        self.life = 0
        # Its session, as far as it knows.
        self.is_held = True
        self._metadata = metadata
        self.wire = wire
        self._keys = KeySpace()

    async def start(self, duty: Duty) -> None:
        await self._register(duty)
        clock, threads = self.clock, ThreadPoolExecutor(2)
        self.tasks = TaskSupervisor(get_logger("test"))
        self.site = site = Site(clock=clock, tasks=self.tasks, readers=threads, node_id=self.node_id)
        self.metrics = site.metrics
        self.store = LogStore.open(self.files, "/data", StorageConfig(free_bytes_min=0), clock)
        self.watch = watch = MetadataWatch(self._metadata, self._keys)
        self.nodes = NodeCatalog(watch)
        placing = Placing(self.node_id, self.nodes)
        self.topics = TopicCatalog(watch, clock=clock, new_topic_id=lambda: next(self.wire.topic_ids), placing=placing)
        self.broker = Broker(site, catalog=self.topics, store=self.store, life=lambda: self.life)
        self.replication = NodeReplication(
            site,
            self.broker,
            self.store,
            Metadata(
                topics=self.topics,
                nodes=self.nodes,
                store=self._metadata,
                keys=self._keys,
                is_held_at=lambda _now_ms: self.is_held,
            ),
            calls=WireOf(self.wire, self.node_id),
            life=lambda: self.life,
            settings=SETTINGS,
        )
        await self.nodes.start()
        await self.broker.start()
        self.replication.start()
        self.wire.nodes[self.node_id] = self

    async def _register(self, duty: Duty) -> None:
        """As one that was admitted at once."""
        record = NodeRecord(self.node_id, "127.0.0.1", 0, internal=f"wire:{self.node_id}", status=duty)
        key = self._keys.node(self.node_id)
        await self._metadata.txn((), {}, [key])
        result = await self._metadata.txn((), {key: encode(record)})
        self.life = result.revision
        member = MemberRecord(directory_id=f"directory {self.node_id}", admitted_epoch=self.life)
        await self._metadata.txn((), {self._keys.member(self.node_id): encode(member)})

    async def tell(self, duty: Duty) -> None:
        """In its key, whose life goes on."""
        record = NodeRecord(self.node_id, "127.0.0.1", 0, internal=f"wire:{self.node_id}", status=duty)
        await self._metadata.txn((), {self._keys.node(self.node_id): encode(record)})

    async def tell_room(self, *, has_room: bool) -> None:
        internal = f"wire:{self.node_id}"
        record = NodeRecord(self.node_id, "127.0.0.1", 0, internal=internal, status=Duty.SERVING, has_room=has_room)
        await self._metadata.txn((), {self._keys.node(self.node_id): encode(record)})

    async def stop(self, *, clean: bool = True) -> None:
        self.wire.nodes.pop(self.node_id, None)
        await self._metadata.txn((), {}, [self._keys.node(self.node_id)])
        await self.replication.stop()
        await self.tasks.stop()
        await self.nodes.stop()
        await self.broker.stop()
        if self.store.logs:
            await self.store.group_commit.join(self.store.logs[0]).wait()
        await asyncio.to_thread(self.store.close, clean=clean)

    def shell(self, index: int = 0, topic: str = TOPIC) -> PartitionShell:
        served = self.broker.topic(topic)
        assert served is not None
        shell = served.shell(index)
        assert shell is not None
        return shell


class Trio:
    node_type: type[ReplicaNode] = ReplicaNode

    def __init__(self, metadata: SqliteStore, disks: dict[int, Files] | None = None) -> None:
        self.metadata = metadata
        self.keys = KeySpace()
        self.wire = Wire()
        self.files: dict[int, Files] = disks or {node_id: GatedDisk() for node_id in (1, 2, 3)}
        self.nodes: dict[int, ReplicaNode] = {}

    async def start(self, *node_ids: int, duty: Duty = Duty.SERVING) -> None:
        for node_id in node_ids or (1, 2, 3):
            node = self.node_type(node_id, self.metadata, self.wire, self.files[node_id])
            await node.start(duty)
            self.nodes[node_id] = node

    async def stop(self, *node_ids: int, clean: bool = True) -> None:
        for node_id in node_ids or tuple(self.nodes):
            await self.nodes.pop(node_id).stop(clean=clean)

    async def create(self, *replicas: tuple[int, ...], topic: str = TOPIC, **settings: str) -> None:
        """A partition for each of them; without any, one on all nodes, led by the first."""
        placed = replicas or ((1, 2, 3),)
        await self.until(lambda: all(len(node.nodes.serving()) == len(self.nodes) for node in self.nodes.values()))
        overrides: dict[str, str | None] = {name.replace("_", "."): text for name, text in settings.items()}
        catalog = self.nodes[placed[0][0]].topics
        (result,) = await catalog.create_topics([NewTopic(topic, len(placed), overrides, assignment=placed)])
        assert isinstance(result, Created), result
        await self.until(lambda: all(node.broker.topic(topic) is not None for node in self.nodes.values()))

    # Of partition 0

    def stated(self, node_id: int, topic: str = TOPIC) -> Stated:
        node = self.nodes[node_id]
        known = node.topics.by_name(topic)
        assert known is not None
        stated = node.topics.state(known.topic_id, 0)
        assert stated is not None
        return stated

    async def put(self, state: PartitionState, *, seen_by: int, topic: str = TOPIC, told: tuple[int, ...] = ()) -> None:
        """As the controller would, comparing what that node has seen. `told`: who hears of it; unless said, all."""
        node = self.nodes[seen_by]
        known = node.topics.by_name(topic)
        assert known is not None
        key, revision = self.keys.partition(known.topic_id, 0), self.stated(seen_by, topic).state_epoch
        compare = Absent(key) if not revision else ModRevisionIs(key, revision)
        result = await self.metadata.txn([compare], {key: encode(state)})
        assert result.ok
        for node_id in told or tuple(self.nodes):
            await self.nodes[node_id].topics.wait_for(result.revision)

    async def elect(
        self,
        leader: int,
        *,
        in_sync: tuple[int, ...],
        seen_by: int | None = None,
        topic: str = TOPIC,
        told: tuple[int, ...] = (),
    ) -> None:
        seen_by = seen_by or leader
        state = self.stated(seen_by, topic).state
        elected = replace(state, leader=leader, life=self.nodes[leader].life, epoch=state.epoch + 1, in_sync=in_sync)
        await self.put(elected, seen_by=seen_by, topic=topic, told=told)

    def append(self, leader: int, value: bytes) -> Appended:
        batch = memoryview(build_batch([Record(value=value, timestamp_ms=SystemClock().now_ms())]))
        outcome = self.nodes[leader].shell().append(batch)
        assert isinstance(outcome, Appended), outcome
        return outcome

    async def produce(self, leader: int, *values: bytes) -> None:
        """Committed."""
        commitments = [self.append(leader, value).commitment for value in values]
        for commitment in commitments:
            if commitment is not None:
                assert await asyncio.wait_for(commitment.kept(), PATIENCE_SECONDS), commitment.loss

    def written(self, node_id: int, topic: str = TOPIC) -> list[bytes | None]:
        """All that is in the log of a node, readable or not."""
        log = self.nodes[node_id].shell(topic=topic).log
        values: list[bytes | None] = []
        offset = log.log_start
        while offset < log.log_end:
            plan = log.plan_read(offset, bytes_max=1 << 20, is_replica=True)
            assert isinstance(plan, ReadPlan), plan
            loaded = plan.load()
            assert isinstance(loaded, memoryview)
            for place, header in walk_headers(bytes(loaded)):
                records = read_records(bytes(loaded), place)
                assert isinstance(records, list), records
                values += [record.value for record in records]
                offset = header.next_offset
        return values

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():  # noqa: ASYNC110  what is waited for comes by many ways
                await asyncio.sleep(0.005)
