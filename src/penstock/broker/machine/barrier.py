"""The barrier: what a new leader finds in its logs counts when it is committed, and not before.

A leader that has just been elected holds records that nobody may ever have been promised. A machine that is built from
them, and decides, may take back what its predecessor has told somebody. So it is loaded when the watermarks of all logs
of the partition have reached where they ended as the epoch began; who has the only replica is there at once.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.broker.partition.leadership import Leadership
from penstock.broker.partition.shell import PartitionShell


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
