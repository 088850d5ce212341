"""Before logs are led or followed: companions that are on this disk are open, and no end is being cut off.

not prepared ─► companions are opened, cuts end ─► the epoch begins where each log ends now ─► settled anew
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.replication.in_sync import Place
from penstock.broker.topic.broker import Broker
from penstock.broker.topic.companion import CompanionKind


class Preparation:
    def __init__(self, broker: Broker, tasks: TaskSupervisor, settle: Callable[[Place], None]) -> None:
        self._broker = broker
        self._tasks = tasks
        self._settle = settle
        self._under_way: set[Place] = set()

    def is_done(self, shell: PartitionShell) -> bool:
        opened = self.companions_of(shell)
        missing = any(kind not in opened and self._broker.has_companion(shell, kind) for kind in CompanionKind)
        return not missing and not any(each.log.is_being_cut for each in (shell, *opened.values()))

    def begin(self, place: Place, shell: PartitionShell) -> None:
        if place not in self._under_way:
            self._under_way.add(place)
            self._tasks.start("companions of a replica", self._open_companions(place, shell))

    async def _open_companions(self, place: Place, shell: PartitionShell) -> None:
        try:
            for kind in CompanionKind:
                if self._broker.has_companion(shell, kind):
                    await self._broker.companion(shell, kind)
            for each in (shell, *self.companions_of(shell).values()):
                async with each.log.maintenance.alone():
                    each.begin_epoch()
        finally:
            self._under_way.discard(place)
        self._settle(place)

    def companions_of(self, shell: PartitionShell) -> dict[CompanionKind, PartitionShell]:
        """Those that are open."""
        found = {kind: self._broker.open_companion_of(shell, kind) for kind in CompanionKind}
        return {kind: companion for kind, companion in found.items() if companion is not None}
