"""Changes of in-sync sets: compared, gathered, and never repeated when nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
from msgspec.structs import replace

from penstock.base.clock import SystemClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.role import Leading
from penstock.broker.replication.group import ReplicaGroup
from penstock.broker.replication.in_sync import InSyncChanges
from penstock.broker.replication.settings import ReplicationSettings
from penstock.cluster.catalog.partition_image import Stated
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    NOTHING,
    Compare,
    CreateRevisionIs,
    Entry,
    StoreSession,
    StoreUnavailableError,
    TxnResult,
)
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Standing
from penstock.storage.files import MemoryFiles
from support.partition import PartitionDesk

LEADER, FOLLOWER = 1, 2
PATIENCE_SECONDS = 10.0
SETTINGS = ReplicationSettings(gather_ms=1, replica_lag_ms=100)


class ShakyStore:
    """A real one, of which some transactions raise: done or not."""

    def __init__(self, real: SqliteStore) -> None:
        self.real = real
        self.txns: list[tuple[Sequence[Compare], Mapping[str, bytes]]] = []
        self.unknown: list[bool] = []

    async def get(self, key: str) -> Entry | None:
        return await self.real.get(key)

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] = NOTHING,
        deletes: Sequence[str] = (),
        session: StoreSession | None = None,
    ) -> TxnResult:
        self.txns.append((compares, puts))
        if self.unknown:
            if self.unknown.pop(0):
                await self.real.txn(compares, puts, deletes, session)
            raise StoreUnavailableError("nobody knows")
        return await self.real.txn(compares, puts, deletes, session)


class Desk:
    def __init__(self, store: SqliteStore) -> None:
        self.keys = KeySpace()
        self.store = ShakyStore(store)
        self.partitions = PartitionDesk(MemoryFiles())
        self.tasks = TaskSupervisor(get_logger("test"))
        self.view: dict[int, Standing] = {}
        self.groups: list[ReplicaGroup] = []
        self.changes = InSyncChanges(
            self.store,  # type: ignore[arg-type]
            self.keys,
            lambda: self.view,
            lambda place: Stated(self.groups[place[1]].progress.state),
            clock=SystemClock(),
            tasks=self.tasks,
            settings=SETTINGS,
        )

    async def register(self) -> None:
        for node in (LEADER, FOLLOWER):
            result = await self.store.real.txn((), {self.keys.node(node): b"{}"})
            self.view[node] = Standing(result.revision)

    def group(self, index: int = 0) -> ReplicaGroup:
        """Led here, with a follower that has caught up and is not in the set."""
        shell = self.partitions.shell if index == 0 else self.partitions.open(index)
        shell.take_role(Leading(1, is_replicated=True))
        state = PartitionState(
            leader=LEADER, life=self.view[LEADER].life, epoch=1, replicas=(LEADER, FOLLOWER), in_sync=(LEADER,)
        )
        group = ReplicaGroup(shell, {}, Stated(state), node_id=LEADER, minimum=1, now_ms=0, listener=self)
        self.groups.append(group)
        for log in group.logs:
            group.on_fetch(log, follower=FOLLOWER, life=self.view[FOLLOWER].life, offset=0, log_start=0)
        return group

    def key_of(self, group: ReplicaGroup) -> str:
        return self.keys.partition(group.topic_id, group.index)

    async def stored(self, group: ReplicaGroup) -> PartitionState | None:
        entry = await self.store.get(self.key_of(group))
        return None if entry is None else decode(entry.key, entry.value, PartitionState)

    async def until_in_sync(self, group: ReplicaGroup, *nodes: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while group.progress.state.in_sync != nodes:  # noqa: ASYNC110  it is told by nobody
                await asyncio.sleep(0.002)

    # As a listener of groups

    def on_restless(self, _group: ReplicaGroup) -> None: ...

    def on_change_wanted(self, group: ReplicaGroup) -> None: ...

    def on_failed(self, _group: ReplicaGroup) -> None: ...


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    store = await SqliteStore.open(":memory:", clock=SystemClock(), is_secret=KeySpace().is_secret)
    made = Desk(store)
    await made.register()
    yield made
    await made.tasks.stop()
    await made.partitions.turn()
    made.partitions.store.close(clean=False)
    await store.close()


async def test_who_has_caught_up_joins_with_its_life_compared(desk: Desk) -> None:
    group = desk.group()
    desk.changes.note(group)
    await desk.until_in_sync(group, LEADER, FOLLOWER)
    ((compares, _),) = desk.store.txns
    assert CreateRevisionIs(desk.keys.node(FOLLOWER), desk.view[FOLLOWER].life) in compares
    stored = await desk.stored(group)
    assert stored is not None
    assert stored.in_sync == (LEADER, FOLLOWER)


async def test_who_was_started_anew_does_not_join(desk: Desk) -> None:
    group = desk.group()
    key = desk.keys.node(FOLLOWER)
    await desk.store.real.txn((), {}, [key])
    await desk.store.real.txn((), {key: b"{}"})
    desk.changes.note(group)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(desk.store.txns) < 2:  # noqa: ASYNC110  it is told by nobody
            await asyncio.sleep(0.002)
    assert await desk.stored(group) is None
    assert group.progress.state.in_sync == (LEADER,)


async def test_one_that_has_moved_on_does_not_hold_up_the_others(desk: Desk) -> None:
    first, second = desk.group(0), desk.group(1)
    other = replace(first.progress.state, removing=(FOLLOWER,))
    await desk.store.real.txn((), {desk.key_of(first): encode(other)})
    desk.changes.note(first)
    desk.changes.note(second)
    await desk.until_in_sync(second, LEADER, FOLLOWER)
    # And the other is proposed anew, from what was read.
    await desk.until_in_sync(first, LEADER, FOLLOWER)
    stored = await desk.stored(first)
    assert stored is not None
    assert (stored.removing, stored.in_sync) == ((FOLLOWER,), (LEADER, FOLLOWER))


@pytest.mark.parametrize("is_done", [True, False])
async def test_unknown_outcome_is_read_and_not_repeated(desk: Desk, is_done: bool) -> None:
    group = desk.group()
    desk.store.unknown = [is_done]
    desk.changes.note(group)
    await desk.until_in_sync(group, LEADER, FOLLOWER)
    stored = await desk.stored(group)
    assert stored is not None
    assert stored.in_sync == (LEADER, FOLLOWER)
    assert len(desk.store.txns) == (1 if is_done else 2)


async def test_who_is_about_to_join_is_waited_for_before_the_transaction_leaves(desk: Desk) -> None:
    group = desk.group()
    proposal = group.progress.propose(0, SETTINGS.replica_lag_ms, desk.view)
    assert proposal is not None
    commitment = desk.partitions.append_synced()
    await desk.partitions.turn()
    assert not commitment.is_known, "confirmed without one that the store may count already"


async def test_replica_takes_itself_out_by_what_is_stored(desk: Desk) -> None:
    group = desk.group()
    place = (group.topic_id, group.index)
    changed = await desk.changes.change(place, lambda state: replace(state, in_sync=(LEADER,), mending=(FOLLOWER,)))
    assert changed is not None
    stored = await desk.stored(group)
    assert stored == changed.state
    assert await desk.changes.change(place, lambda _: None) is None
