"""Replicas that this node takes out of their sets, because its disk keeps them from what they have promised; and those
that are whole again.

    a leader     hands over to another that can lead; if there is none it keeps the seat and refuses
    a follower   leaves: as long as it is counted on writers wait for it, and it can be elected

One thing at a time for each partition: what the store says of it when one is over is true until the next begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Final

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.replication.followed import Failure
from penstock.broker.replication.in_sync import Decide, InSyncChanges, Place
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
        # Those that something is being done about, and who waits for that.
        self._under_way: dict[Place, asyncio.Future[None]] = {}

    def go(self, place: Place, failure: Failure, *, is_leader: bool) -> None:
        if place not in self._under_way:
            leaving = self.hand_over(place, failure) if is_leader else self.leave(place, failure)
            self._tasks.start("replica goes", _nothing_else(leaving))

    def come_back(self, place: Place, is_whole: Callable[[], bool]) -> None:
        """Its logs hold again everything that they were told to hold, as long as `is_whole` says so."""
        if place not in self._under_way:
            self._tasks.start("replica is whole again", self._come_back(place, is_whole))

    def may_hand_over(self, place: Place, state: PartitionState, failure: Failure) -> bool:
        """Whether there is anybody, as far as this node knows."""
        return self._hand_over(place, failure)(state) is not None

    async def hand_over(self, place: Place, failure: Failure) -> PartitionState | None:
        """What the store says when it is over; None: it knows of no such partition."""
        return await self._until_known(place, self._hand_over(place, failure), failure)

    async def leave(self, place: Place, failure: Failure) -> PartitionState | None:
        minimum = self._minimum_at(place)

        def decide(state: PartitionState) -> PartitionState | None:
            return election.leave(state, self._node_id, minimum=minimum, is_whole=failure.is_whole)

        return await self._until_known(place, decide, failure)

    def _hand_over(self, place: Place, failure: Failure) -> Decide:
        minimum = self._minimum_at(place)

        def decide(state: PartitionState) -> PartitionState | None:
            return election.hand_over(state, self._node_id, self._view(), minimum=minimum, is_whole=failure.is_whole)

        return decide

    async def _until_known(self, place: Place, decide: Decide, failure: Failure) -> PartitionState | None:
        seen: list[PartitionState] = []

        def decide_and_see(state: PartitionState) -> PartitionState | None:
            seen[:] = [state]
            return decide(state)

        async with self._alone(place):
            while True:
                try:
                    changed = await self._changes.change(place, decide_and_see)
                    break
                except StoreError as error:
                    # Nothing is repeated: what the store says by then is read, and decided on anew.
                    log_events.warning("replica is still counted on", reason=failure.value, error=str(error))
                    await asyncio.sleep(RETRY_MS / 1000)
        if changed is None:
            return seen[0] if seen else None
        log_events.warning("replica has left the set", partition=place[1], reason=failure.value)
        return changed.state

    async def _come_back(self, place: Place, is_whole: Callable[[], bool]) -> None:
        def decide(state: PartitionState) -> PartitionState | None:
            return election.mended(state, self._node_id) if is_whole() else None

        async with self._alone(place):
            # Until the store has it: of a log to which nothing is written the leader has nothing more to say, and
            # nobody else would bring it up again.
            while is_whole():
                try:
                    await self._changes.change(place, decide)
                    return
                except StoreError as error:
                    log_events.warning("replica is whole and nobody knows", partition=place[1], error=str(error))
                    await asyncio.sleep(RETRY_MS / 1000)

    @asynccontextmanager
    async def _alone(self, place: Place) -> AsyncIterator[None]:
        while (before := self._under_way.get(place)) is not None:
            await asyncio.wait([before])
        mine = self._under_way[place] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._under_way[place]
            mine.set_result(None)


async def _nothing_else(leaving: Coroutine[object, object, PartitionState | None]) -> None:
    await leaving
