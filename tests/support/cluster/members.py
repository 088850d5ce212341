"""Nodes that share a metadata store, without logs or doors: what they register, see and decide.

Nothing runs by itself: a test renews sessions, lets controllers take their turns, and moves the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from penstock.base.clock import ManualClock
from penstock.cluster.catalog.first_placement import Run
from penstock.cluster.catalog.nodes import NodeCatalog, NodeRecord
from penstock.cluster.catalog.placing import Placing
from penstock.cluster.catalog.topic_image import StoredTopic
from penstock.cluster.catalog.topics import TopicCatalog
from penstock.cluster.catalog.watch import MetadataWatch
from penstock.cluster.controller.refusals import RefusedNodes
from penstock.cluster.controller.runner import Controller
from penstock.cluster.controller.seat import Seat
from penstock.cluster.nodes import NodeRegistry, Registered
from penstock.cluster.session import SessionKeeper
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    NOTHING,
    Compare,
    MetadataStore,
    StoreSession,
    StoreUnavailableError,
    TxnResult,
)
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.membership import DirectoryRecord, MemberRecord
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Duty
from support.metadata_store import WatchedStore

KEYS = KeySpace()
CLUSTER_ID = "cluster-of-a-test"
TTL_MS = 4000
BOOT = "boot-1"


def by_hand(_keeper: SessionKeeper) -> None:
    """No thread renews: a test does."""


class FakeDirectory:
    """A data directory in memory. `is_full`: its disk takes nothing."""

    def __init__(self, node_id: int, directory_id: str) -> None:
        self.on_disk = DirectoryRecord(directory_id=directory_id, cluster_id=CLUSTER_ID, node_id=node_id)
        self.record = self.on_disk
        self.boot_id = BOOT
        self.is_full = False

    def open(self, *, was_clean: bool = False) -> None:
        """As a process does that starts."""
        self.record = replace(self.on_disk, is_stopped_cleanly=was_clean)

    async def keep_epochs(self, epochs: tuple[int, ...]) -> None:
        if self.is_full:
            raise OSError("no room")
        self.record = self.on_disk = replace(self.on_disk, epochs=epochs, boot_id=self.boot_id)


class NodeStore(WatchedStore):
    """One node's way to the store: it counts transactions, and leaves outcomes unknown."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.puts_of_txns: list[int] = []
        # How many of the next that change partitions are done, and reported as failed.
        self.unknown_count = 0

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] = NOTHING,
        deletes: Sequence[str] = (),
        session: StoreSession | None = None,
    ) -> TxnResult:
        result = await super().txn(compares, puts, deletes, session)
        partition_count = sum(key.startswith(KEYS.partitions) for key in puts)
        if result.ok and partition_count:
            self.puts_of_txns.append(partition_count)
        if self.unknown_count and partition_count:
            self.unknown_count -= 1
            raise StoreUnavailableError("the answer was lost")
        return result


class MemberNode:
    """One life of a node."""

    def __init__(self, world: MemberWorld, node_id: int, directory: FakeDirectory) -> None:
        self.node_id = node_id
        self.directory = directory
        self.store = NodeStore(world.store)
        self.registry = NodeRegistry(
            self.store, KEYS, clock=world.clock, ttl_ms=TTL_MS, directory=directory, begin_renewals=by_hand
        )
        watch = MetadataWatch(self.store, KEYS, retry_s=0.001)
        self.nodes = NodeCatalog(watch)
        self.topics = TopicCatalog(
            watch, clock=world.clock, new_topic_id=world.new_id, placing=Placing(node_id, self.nodes)
        )
        self.seat = Seat(self.store, KEYS, self.nodes, self.registry, node_id=node_id)
        self.controller = Controller(
            KEYS, self.nodes, self.topics, self.seat, node_id=node_id, cluster_id=CLUSTER_ID, clock=world.clock
        )
        self.refused: set[str] = set()
        self.refusals = RefusedNodes(
            self.store,
            KEYS,
            self.nodes,
            self.seat,
            node_id=node_id,
            clock=world.clock,
            is_refused=self._is_refused,
        )
        self._world = world

    async def start(self) -> None:
        await self.nodes.start()
        await self.topics.start()
        record = NodeRecord(
            self.node_id,
            f"host-{self.node_id}",
            9092,
            directory_id=self.directory.on_disk.directory_id,
            started_ms=self._world.clock.now_ms(),
            place=f"place-of-{self.directory.on_disk.directory_id}",
            internal=f"host-{self.node_id}:9093",
            status=Duty.STARTING,
            boot_id=self.directory.boot_id,
        )
        outcome = await self.registry.register(record)
        assert isinstance(outcome, Registered), outcome
        await self.registry.ask_admission()

    async def serve(self) -> None:
        await self.registry.tell(lambda record: replace(record, status=Duty.SERVING))

    async def tell_rack(self, rack: str) -> None:
        await self.registry.tell(lambda record: replace(record, rack=rack))

    async def drain(self) -> None:
        await self.registry.tell(lambda record: replace(record, status=Duty.DRAINING))

    @property
    def life(self) -> int:
        return self.registry.epoch

    @property
    def is_admitted(self) -> bool:
        return self.nodes.is_admitted(self.node_id)

    async def die(self) -> None:
        """The process is gone; its session is not, yet."""
        await self.nodes.stop()
        await self.topics.stop()
        self.registry._keeper = None
        await self.registry.close()

    async def _is_refused(self, address: str) -> bool:
        return address in self.refused


class MemberWorld:
    def __init__(self, store: SqliteStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self.directories: dict[int, FakeDirectory] = {}
        self.living: dict[int, MemberNode] = {}
        self._ids = 0

    @classmethod
    async def open(cls) -> MemberWorld:
        clock = ManualClock()
        return cls(await SqliteStore.open(":memory:", clock=clock), clock)

    async def close(self) -> None:
        for node_id in list(self.living):
            await self.kill(node_id)
        await self.store.close()

    def new_id(self) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(16)

    async def start(self, *node_ids: int, was_clean: bool = False) -> list[MemberNode]:
        started = []
        for node_id in node_ids:
            directory = self.directories.setdefault(node_id, FakeDirectory(node_id, f"directory-{node_id}"))
            directory.open(was_clean=was_clean)
            node = self.living[node_id] = MemberNode(self, node_id, directory)
            await node.start()
            started.append(node)
        return started

    async def form(self, *node_ids: int) -> list[MemberNode]:
        """A cluster in which all of them serve."""
        nodes = await self.start(*node_ids)
        await self.settle()
        for node in nodes:
            await node.serve()
        await self.settle()
        return nodes

    async def kill(self, node_id: int) -> None:
        await self.living.pop(node_id).die()

    async def expire(self, node_id: int) -> None:
        """A node is dead, and has been for long enough."""
        await self.kill(node_id)
        await self.pass_time(TTL_MS - 1)
        await self.pass_time(2)

    async def pass_time(self, milliseconds: int) -> None:
        """Those that live renew their sessions. In steps: a store that has not looked for half a TTL ends nobody."""
        while milliseconds > 0:
            step_ms = min(milliseconds, TTL_MS // 4)
            milliseconds -= step_ms
            self.clock.advance_ms(step_ms)
            for node in self.living.values():
                if node.registry.session is not None:
                    await node.registry.session.keep_alive()
                await node.registry.look()
            await self.store.poll()
        await self.hear()

    async def hear(self) -> None:
        """Everybody has seen everything that is stored."""
        revision = (await self.store.range(KEYS.root)).revision
        for node in self.living.values():
            await node.topics.wait_for(revision)
            await node.nodes.wait_for(revision)

    async def settle(self) -> None:
        """Controllers take turns until nothing changes."""
        before = -1
        while (now := (await self.store.range(KEYS.root)).revision) != before:
            before = now
            await self.hear()
            for node in list(self.living.values()):
                await node.controller.turn()
            await self.hear()

    async def put_topic(self, name: str, *placed: Run, **overrides: str) -> bytes:
        topic_id = self.new_id()
        count = sum(run.count for run in placed)
        named = {key.replace("_", "."): value for key, value in overrides.items()}
        stored = StoredTopic(topic_id, count, named, replication=len(placed[0].replicas), placed=placed)
        await self.store.txn(puts={KEYS.topic(name): encode(stored)})
        await self.hear()
        return topic_id

    async def put_state(self, topic_id: bytes, index: int, state: PartitionState) -> None:
        """As its leader does."""
        await self.store.txn(puts={KEYS.partition(topic_id, index): encode(state)})

    async def state(self, topic_id: bytes, index: int = 0) -> PartitionState | None:
        """As the store has it; None: as it was placed."""
        entry = await self.store.get(KEYS.partition(topic_id, index))
        return None if entry is None else decode(entry.key, entry.value, PartitionState)

    async def member(self, node_id: int) -> MemberRecord | None:
        entry = await self.store.get(KEYS.member(node_id))
        return None if entry is None else decode(entry.key, entry.value, MemberRecord)

    def place(self, *node_ids: int, count: int = 1) -> Run:
        """Where the first leads in the life that it lives now."""
        return Run(node_ids, self.living[node_ids[0]].life, count)
