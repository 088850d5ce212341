"""Changes of in-sync sets: what leaders' books propose, and what replicas that cannot go on take upon themselves, made
true in the metadata store by compare-and-set.

    the book proposes ─► gathered for 20 ms ─► one transaction, every key compared
        ─► done: the new sets count
        ─► a comparison failed: each alone
        ─► failed alone, or nobody knows: the key is read, and the book told what it says

Rules:
- Nothing is repeated whose outcome is not known. What has failed for certain has changed nothing and may be tried
  alone: one partition that has moved on must not hold up 59 others.
- Who joins is compared by the create revision of its key: one that was started anew has to prove itself anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from penstock.base.clock import Clock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.replication.group import ReplicaGroup
from penstock.broker.replication.settings import ReplicationSettings
from penstock.cluster.catalog.partition_image import Stated
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    Absent,
    Compare,
    CreateRevisionIs,
    MetadataStore,
    ModRevisionIs,
    StoreError,
)
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.election import CHANGES_A_STEP_MAX
from penstock.domain.replication.progress import Propose
from penstock.domain.replication.state import NO_REVISION, PartitionState
from penstock.domain.replication.view import View

log_events = get_logger("replication")

# Between two attempts to read a key while the store is away.
READ_RETRY_MS: Final = 500
# Others change the key by elections and by joining; who loses so often in a row should hear about it.
ATTEMPTS_MAX: Final = 10

# A partition: the topic's id and the number.
Place = tuple[bytes, int]
# What is to become of a state; None: nothing.
Decide = Callable[[PartitionState], PartitionState | None]

_Proposal = tuple[ReplicaGroup, Propose]


class InSyncChanges:
    def __init__(
        self,
        store: MetadataStore,
        keys: KeySpace,
        view: Callable[[], View],
        first_state: Callable[[Place], Stated | None],
        *,
        clock: Clock,
        tasks: TaskSupervisor,
        settings: ReplicationSettings,
    ) -> None:
        """`first_state`: of a partition that has no key, as the catalog knows it."""
        self._store = store
        self._keys = keys
        self._view = view
        self._first_state = first_state
        self._clock = clock
        self._tasks = tasks
        self._settings = settings
        self.change_count = 0
        self._due: dict[ReplicaGroup, None] = {}
        self._is_running = False

    def note(self, group: ReplicaGroup) -> None:
        """Its book may have something to propose."""
        self._due[group] = None
        if not self._is_running:
            self._is_running = True
            self._tasks.start("in-sync changes", self._run())

    async def change(self, place: Place, decide: Decide) -> Stated | None:
        """By one that cannot go on. None: there was nothing to change. Raises StoreError: nobody knows."""
        for _ in range(ATTEMPTS_MAX):
            stated = await self._read(place)
            after = None if stated is None else decide(stated.state)
            if stated is None or after is None:
                return None
            key = self._keys.partition(*place)
            result = await self._store.txn([_unchanged(key, stated.state_epoch)], {key: encode(after)})
            if result.ok:
                self.change_count += 1
                return Stated(after, result.revision)
        return None

    # Gathered

    async def _run(self) -> None:
        try:
            while self._due:
                await asyncio.sleep(self._settings.gather_ms / 1000)
                due = list(self._due)[:CHANGES_A_STEP_MAX]
                for group in due:
                    del self._due[group]
                await self._propose(due)
        finally:
            self._is_running = False

    async def _propose(self, groups: Sequence[ReplicaGroup]) -> None:
        now_ms, view = self._clock.monotonic_ms(), self._view()
        proposals: list[_Proposal] = []
        for group in groups:
            proposal = None
            if not group.is_over:
                proposal = group.progress.propose(now_ms, self._settings.replica_lag_ms, view)
            if proposal is not None:
                group.ask_again(set(group.progress.state.in_sync).difference(proposal.state.in_sync))
                proposals.append((group, proposal))
        if proposals:
            await self._write(proposals)

    async def _write(self, proposals: Sequence[_Proposal]) -> None:
        compares = [compare for each in proposals for compare in self._compares(each)]
        puts = {self._key_of(group): encode(proposal.state) for group, proposal in proposals}
        try:
            result = await self._store.txn(compares, puts)
        except StoreError as error:
            log_events.warning("in-sync change of unknown outcome", partitions=len(proposals), error=str(error))
            await self._read_all(proposals)
            return
        if result.ok:
            for group, proposal in proposals:
                self._done(group, proposal, result.revision)
        elif len(proposals) > 1:
            for each in proposals:
                await self._write([each])
        else:
            await self._read_all(proposals)

    def _done(self, group: ReplicaGroup, proposal: Propose, revision: int) -> None:
        self.change_count += 1
        before = group.progress.state.in_sync
        if group.is_over:
            return
        log_events.info(
            "in-sync set changed",
            topic=group.partition.topic,
            partition=group.index,
            before=before,
            after=proposal.state.in_sync,
        )
        group.on_stored(Stated(proposal.state, revision))

    def _compares(self, each: _Proposal) -> list[Compare]:
        group, proposal = each
        joins = [CreateRevisionIs(self._keys.node(join.node), join.life) for join in proposal.joins]
        return [_unchanged(self._key_of(group), proposal.revision), *joins]

    # After a failure

    async def _read_all(self, proposals: Sequence[_Proposal]) -> None:
        for group, proposal in proposals:
            group.progress.on_unknown(proposal)
        for group, _ in proposals:
            # Each by itself: the others must not wait for a store that is away.
            self._tasks.start("read of a partition's state", self._read_until_known(group))

    async def _read_until_known(self, group: ReplicaGroup) -> None:
        while not group.is_over and group.progress.must_read:
            try:
                stated = await self._read((group.topic_id, group.index))
            except StoreError:
                await asyncio.sleep(READ_RETRY_MS / 1000)
                continue
            if stated is None or stated.state.epoch != group.epoch or group.is_over:
                return  # another leads by now, or the topic is gone: this node hears of it by its watch
            group.progress.on_read(stated.state, stated.state_epoch)
            group.settle()
            self.note(group)

    async def _read(self, place: Place) -> Stated | None:
        key = self._keys.partition(*place)
        entry = await self._store.get(key)
        if entry is None:
            return self._first_state(place)
        return Stated(decode(key, entry.value, PartitionState), entry.mod_revision)

    def _key_of(self, group: ReplicaGroup) -> str:
        return self._keys.partition(group.topic_id, group.index)


def _unchanged(key: str, revision: int) -> Compare:
    return Absent(key) if revision == NO_REVISION else ModRevisionIs(key, revision)
