"""Replicas of this node that are not what they should be: taken out of their set, brought into order, taken back.

    a flaw in one of the three logs (damage, a lost end, a bad sector, a failed write or sync): nothing is read from it
        leader      ─► hands over ─► follower
        follower    ─► leaves the set, and the state names it under `mending`
                    ─► offline: upkeep reads it again from the disk
                       flawed past the watermark: cut off there, it was promised to nobody
                       flawed below it: put aside whole (`.damaged`), and fetched anew as a whole
                    ─► it holds again all that it told of ─► it says so (`departures`) ─► the leader takes it back

Rules:
- Nothing is cut or put aside before the store has said that the replica is in no set and mending: until then it could
  be elected, with less than it has promised. The watch may lag, so the key itself is read.
- Nothing is put aside while nobody leads: it may be the best that is left.
- Where nobody else can lead, the leader keeps the seat and is as a node alone is: what is whole is served, the place is
  reported, `penstock log repair` decides. It hands over as soon as somebody can.
- Flaws are found in threads; everything here is on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.role import Following
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.replication.departures import Departures
from penstock.broker.replication.followed import Failure
from penstock.broker.replication.in_sync import Place
from penstock.cluster.catalog.partition_image import Stated
from penstock.domain.replication.state import PartitionState
from penstock.storage.errors import StorageError
from penstock.storage.store import LogStore

log_events = get_logger("replication")

# The open logs of a partition that this node has a replica of; nothing: it has none, or none that is shared.
Logs = Callable[[Place], Sequence[PartitionShell]]


class Mending:
    def __init__(
        self,
        store: LogStore,
        departures: Departures,
        tasks: TaskSupervisor,
        logs: Logs,
        state: Callable[[Place], Stated | None],
        *,
        on_mended: Callable[[Place], None],
        node_id: int,
    ) -> None:
        self._store = store
        self._departures = departures
        self._tasks = tasks
        self._logs = logs
        self._state = state
        self._on_mended = on_mended
        self._node_id = node_id
        self._loop: asyncio.AbstractEventLoop | None = None
        # Flawed, each with what was last told of it.
        self._flawed: dict[Place, str] = {}
        self._under_way: set[Place] = set()
        self.begun_anew_count = 0

    @property
    def places(self) -> dict[Place, str]:
        """What is wrong with them."""
        return self._flawed

    def watch(self, place: Place, shells: Sequence[PartitionShell]) -> None:
        """Every flaw of these logs is heard of from now on, and those that they have already."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        for shell in shells:
            shell.log.flaws.listener = partial(self._hear, self._loop, place)
        if place in self._flawed or any(shell.log.flaws.is_troubled for shell in shells):
            self.look(place)

    def _hear(self, loop: asyncio.AbstractEventLoop, place: Place) -> None:
        """In any thread."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self.look, place)

    def look_at_all(self) -> None:
        """From time to time: what could not be done may be possible by now."""
        for place in list(self._flawed):
            self.look(place)

    def look(self, place: Place) -> None:
        """Does the next step, if there is one."""
        shells, stated = self._logs(place), self._state(place)
        flaw = _flaw_of(shells)
        if flaw is None or stated is None:
            self._flawed.pop(place, None)
            return
        self._tell(place, shells[0], flaw)
        if shells[0].is_leading:
            self._lead_on(place, shells, stated.state)
        elif place not in self._under_way and self._needs_work(shells, stated.state):
            self._under_way.add(place)
            self._tasks.start("replica is mended", self._mend(place))

    def _tell(self, place: Place, shell: PartitionShell, flaw: str) -> None:
        if self._flawed.get(place) != flaw:
            self._flawed[place] = flaw
            log_events.error(
                "replica is not to be counted on",
                topic=shell.topic,
                partition=shell.index,
                node=self._node_id,
                flaw=flaw,
            )

    # Leading

    def _lead_on(self, place: Place, shells: Sequence[PartitionShell], state: PartitionState) -> None:
        if state.leader != self._node_id:
            return  # somebody else does, and this node hears of it in a moment
        if self._departures.may_hand_over(place, state, Failure.FLAWED):
            self._departures.go(place, Failure.FLAWED, is_leader=True)
            return
        for shell in shells:
            if shell.log.flaws.is_withheld:
                shell.log.flaws.serves_damaged = True
                log_events.error(
                    "nobody else can lead: what is whole is served on", topic=shell.topic, partition=shell.index
                )

    # Following

    def _needs_work(self, shells: Sequence[PartitionShell], state: PartitionState) -> bool:
        is_counted = self._node_id in {*state.in_sync, *state.eligible} or self._node_id not in state.mending
        return is_counted or any(_is_mendable(shell) for shell in shells)

    async def _mend(self, place: Place) -> None:
        try:
            state = await self._departures.leave(place, Failure.FLAWED)
            if state is None or not self._is_out(state):
                return
            for shell in self._logs(place):
                if _is_mendable(shell):
                    await self._mend_log(shell)
            self._on_mended(place)
        except StorageError as error:
            log_events.error("replica not mended yet", partition=place[1], error=str(error))
        finally:
            self._under_way.discard(place)

    def _is_out(self, state: PartitionState) -> bool:
        return self._node_id in state.mending and self._node_id not in {state.leader, *state.in_sync, *state.eligible}

    async def _mend_log(self, shell: PartitionShell) -> None:
        log = shell.log
        damage = log.damage
        is_due = partial(_is_mendable, shell)
        if damage is not None and log.lost_end is None and damage.offset >= log.readable_end and log.is_healthy:
            await self._store.cut_log(log, damage.offset, is_due=is_due)
            log_events.warning(
                "damage past the watermark cut off", topic=shell.topic, partition=shell.index, log_end=log.log_end
            )
            return
        held = log.log_end
        path = await self._store.put_aside(log, 0, is_due=is_due)
        if log.flaws.described is None:
            shell.has_lost = False
            self.begun_anew_count += 1
            log_events.warning(
                "replica put aside, fetched anew", topic=shell.topic, partition=shell.index, held=held, path=path
            )


def _flaw_of(shells: Sequence[PartitionShell]) -> str | None:
    return next((flaw for shell in shells if (flaw := shell.log.flaws.described) is not None), None)


def _is_mendable(shell: PartitionShell) -> bool:
    """There is somebody to fetch from, and nothing to wait for: what is offline is read again first."""
    log = shell.log
    is_read = log.failure is None or shell.has_lost
    return isinstance(shell.role, Following) and is_read and log.flaws.described is not None
