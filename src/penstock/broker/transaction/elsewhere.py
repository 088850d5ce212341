"""Transactions whose coordinator and partitions are on different nodes.

    coordinator ── markers of one turn of the loop, together ──► who leads the partitions
    coordinator ── is what it covers committed? ──► who leads partitions whose topic promises less
    partition's leader ── is the batch part of it? ──► who coordinates

Nobody asked twice does anything twice: a marker that is there is there, and a partition is added once. So whoever gets
no answer asks again, for ever, and whoever leads then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.role import NO_LEADER
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.not_here import NotHere
from penstock.domain.replication.exchange import LogBarrier
from penstock.domain.transaction.commands import PartitionsAdded, PartitionsVerified, Refused, TransactionProblem
from penstock.domain.transaction.end import TransactionEnd
from penstock.domain.transaction.marker import Marker, MarkerOutcome
from penstock.net.errors import PeerError
from penstock.net.replica.transactions import Admission

log = get_logger("transactions")

# Of one request: some tens of kilobytes. The rest goes with the next.
MARKERS_AT_ONCE: Final = 1_000

_AWAY: Final = Refused(TransactionProblem.COORDINATOR_NOT_AVAILABLE)


class TransactionLine(Protocol):
    """By which other nodes are asked: `net.replica.transactions.TransactionCalls`. PeerError: no answer."""

    async def write_markers(self, node_id: int, markers: Sequence[Marker]) -> list[MarkerOutcome]: ...

    async def barrier(self, node_id: int, logs: Sequence[LogBarrier]) -> bool: ...

    async def admit(self, node_id: int, asked: Admission) -> PartitionsAdded | PartitionsVerified | Refused: ...


class Markers(Protocol):
    """What writes markers into partitions that are led here."""

    async def write(self, topic: str, partition: int, end: TransactionEnd) -> MarkerOutcome: ...


class ClusterMarkers:
    """Markers for partitions wherever they are led. Who is asked by another node writes its own, and asks nobody."""

    def __init__(self, broker: Broker, here: Markers, tasks: TaskSupervisor) -> None:
        self._broker = broker
        self._here = here
        self._tasks = tasks
        # None: this node talks to no other.
        self.line: TransactionLine | None = None
        # Of this turn of the loop, by node.
        self._gathered: dict[int, list[tuple[Marker, asyncio.Future[MarkerOutcome]]]] = {}

    async def write(self, topic: str, partition: int, end: TransactionEnd) -> MarkerOutcome:
        found = self._broker.find(topic, partition)
        if not isinstance(found, NotHere) or found.is_unknown:
            return await self._here.write(topic, partition, end)
        if self.line is None or found.leader == NO_LEADER:
            return MarkerOutcome.NOT_LEADER
        outcome = await self._send(found.leader, Marker(topic, partition, end))
        # This node knows the topic. That the other does not may be because it hears of it later: a marker that is left
        # out for that would leave the transaction open for ever.
        return MarkerOutcome.NOT_LEADER if outcome is MarkerOutcome.GONE else outcome

    async def _send(self, node_id: int, marker: Marker) -> MarkerOutcome:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[MarkerOutcome] = loop.create_future()
        gathered = self._gathered.setdefault(node_id, [])
        if not gathered:
            loop.call_soon(self._flush, node_id)
        gathered.append((marker, answer))
        return await answer

    def _flush(self, node_id: int) -> None:
        gathered = self._gathered.pop(node_id)
        for first in range(0, len(gathered), MARKERS_AT_ONCE):
            some = gathered[first : first + MARKERS_AT_ONCE]
            self._tasks.start("markers for another node", self._call(node_id, some))

    async def _call(self, node_id: int, asked: list[tuple[Marker, asyncio.Future[MarkerOutcome]]]) -> None:
        assert self.line is not None
        outcomes = [MarkerOutcome.UNAVAILABLE] * len(asked)
        try:
            outcomes = await self.line.write_markers(node_id, [marker for marker, _ in asked])
        except PeerError as error:
            log.debug("markers not taken", node=node_id, count=len(asked), error=str(error))
        finally:
            for (_, answer), outcome in zip(asked, outcomes, strict=True):
                if not answer.done():
                    answer.set_result(outcome)


async def sync_elsewhere(line: TransactionLine | None, logs: Sequence[tuple[int, LogBarrier]]) -> bool:
    """True: what these logs hold, each with the node that leads it, is committed."""
    by_leader: dict[int, list[LogBarrier]] = {}
    for leader, each in logs:
        by_leader.setdefault(leader, []).append(each)
    if line is None or NO_LEADER in by_leader:
        return not logs
    try:
        return all(await asyncio.gather(*(line.barrier(leader, several) for leader, several in by_leader.items())))
    except PeerError as error:
        log.debug("partitions of a transaction not reached", error=str(error))
        return False


async def admit_elsewhere(
    line: TransactionLine | None, coordinator: NotHere, asked: Admission
) -> PartitionsAdded | PartitionsVerified | Refused:
    """By whoever coordinates. Away: the producer sends its batch again."""
    if line is None or coordinator.leader == NO_LEADER:
        return _AWAY
    try:
        return await line.admit(coordinator.leader, asked)
    except PeerError as error:
        log.debug("coordinator not reached", node=coordinator.leader, error=str(error))
        return _AWAY
