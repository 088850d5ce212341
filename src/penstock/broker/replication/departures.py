"""Replicas that this node takes out of their sets, because its disk keeps them from what they have promised; and those
that are whole again.

    a leader     hands over to another that can lead; if there is none it keeps the seat and refuses
    a follower   leaves: as long as it is counted on writers wait for it, and it can be elected
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.replication.followed import Failure
from penstock.broker.replication.in_sync import Decide, InSyncChanges, Place
from penstock.cluster.catalog.partition_image import Stated
from penstock.cluster.store.protocol import StoreError
from penstock.domain.replication import election
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import View

log_events = get_logger("replication")

# Between two attempts to take a replica out that must not be counted on.
RETRY_MS: Final = 500


class Departures:
    def __init__(
        self,
        changes: InSyncChanges,
        tasks: TaskSupervisor,
        minimum_at: Callable[[Place], int],
        view: Callable[[], View],
        node_id: int,
    ) -> None:
        self._changes = changes
        self._tasks = tasks
        self._minimum_at = minimum_at
        self._view = view
        self._node_id = node_id
        # Those that something is being done about.
        self._under_way: set[Place] = set()

    def go(self, place: Place, failure: Failure, *, is_leader: bool) -> None:
        if place not in self._under_way:
            self._under_way.add(place)
            self._tasks.start("replica goes", self._go(place, failure, is_leader=is_leader))

    def come_back(self, place: Place) -> None:
        """Its logs hold again everything that they were told to hold."""
        if place not in self._under_way:
            self._under_way.add(place)
            self._tasks.start("replica is whole again", self._come_back(place))

    async def _go(self, place: Place, failure: Failure, *, is_leader: bool) -> None:
        node, minimum = self._node_id, self._minimum_at(place)

        def decide(state: PartitionState) -> PartitionState | None:
            if is_leader:
                return election.hand_over(state, node, self._view(), minimum=minimum, is_whole=failure.is_whole)
            return election.leave(state, node, minimum=minimum, is_whole=failure.is_whole)

        try:
            changed = await self._until_known(place, decide, failure)
        finally:
            self._under_way.discard(place)
        if changed is not None:
            log_events.warning("replica has left the set", partition=place[1], reason=failure.value)

    async def _until_known(self, place: Place, decide: Decide, failure: Failure) -> Stated | None:
        while True:
            try:
                return await self._changes.change(place, decide)
            except StoreError as error:
                # Nothing is repeated: what the store says by then is read, and decided on anew.
                log_events.warning("replica is still counted on", reason=failure.value, error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)

    async def _come_back(self, place: Place) -> None:
        try:
            await self._changes.change(place, lambda state: election.mended(state, self._node_id))
        except StoreError as error:
            # Asked again with the next answer of the leader.
            log_events.warning("replica is whole and nobody knows", partition=place[1], error=str(error))
        finally:
            self._under_way.discard(place)
