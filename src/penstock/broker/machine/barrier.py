"""The barrier: what a new leader finds in its logs counts when it is committed, and not before.

A leader that has just been elected holds records that nobody may ever have been promised. A machine that is built from
them, and decides, may take back what its predecessor has told somebody. So it is loaded when the watermarks of all logs
of the partition have reached where they ended as the epoch began; who has the only replica is there at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.role import Leading
from penstock.broker.partition.shell import PartitionShell

# Whether all that was there when this epoch began is committed.
Counts = Callable[[PartitionShell, int], bool]


class Barrier(Protocol):
    def is_reached(self, partition: PartitionShell, leadership: Leadership, /) -> bool:
        """Nobody need wait."""
        ...

    async def reached(self, partition: PartitionShell, leadership: Leadership, /) -> bool:
        """Returns when it is. False: the leadership has ended, and it never will be. It may be asked a moment before
        whoever counts the replicas has heard of the leadership."""
        ...


class NoBarrier:
    """Of logs that have one replica: what is readable is committed."""

    def is_reached(self, _partition: PartitionShell, _leadership: Leadership, /) -> bool:
        return True

    async def reached(self, _partition: PartitionShell, _leadership: Leadership, /) -> bool:
        return True


NO_BARRIER: Final = NoBarrier()


class LedBarrier:
    """Of what a node leads: at once where it has the only replica, else when whoever counts the replicas says so.

    Before anybody counts nothing is reached: a node may lead before it has begun to talk to the others.
    """

    def __init__(self) -> None:
        self._counts: Counts = lambda _partition, _epoch: False
        self._waiting: dict[PartitionShell, list[asyncio.Future[None]]] = {}

    def count_by(self, counts: Counts) -> None:
        self._counts = counts

    def wake(self, partition: PartitionShell) -> None:
        """It may be reached, or the lead be over: whoever waits looks again."""
        for waiting in self._waiting.pop(partition, ()):
            if not waiting.done():
                waiting.set_result(None)

    def is_reached(self, partition: PartitionShell, leadership: Leadership, /) -> bool:
        role = partition.role
        if not isinstance(role, Leading) or role.epoch != leadership.epoch:
            return False
        return not role.is_replicated or self._counts(partition, leadership.epoch)

    async def reached(self, partition: PartitionShell, leadership: Leadership, /) -> bool:
        while not self.is_reached(partition, leadership):
            if not partition.is_leading or partition.role.epoch != leadership.epoch or partition.is_closed:
                return False
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(partition, []).append(waiting)
            await waiting
        return True
