"""What a test may put in the way of a node's schedules: loads that wait or fail, deletions that are refused."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.broker.partition.outcome import Refusal
from penstock.broker.schedule.shell import ScheduleShell
from penstock.broker.schedule.values import ChangeOutcome, NotScheduled

ALWAYS: Final = 1 << 30


class Hindrance:
    """Nothing, until the test says so."""

    def __init__(self) -> None:
        # By the number of the partition: loads that fail, and those that wait for `may_load`.
        self.unreadable: set[int] = set()
        self.waiting: set[int] = set()
        self.may_load = asyncio.Event()
        self.is_waiting = asyncio.Event()
        # How many deletions of named schedules are refused from now on.
        self.deletions_refused = 0

    def shell_type(self) -> type[ScheduleShell]:
        hindrance = self

        class HinderedShell(ScheduleShell):
            async def load(self) -> None:
                if self.partition.index in hindrance.unreadable:
                    raise OSError("not now")
                if self.partition.index in hindrance.waiting:
                    hindrance.is_waiting.set()
                    await hindrance.may_load.wait()
                await super().load()

            async def delete_cron(self, name: str) -> ChangeOutcome:
                if hindrance.deletions_refused:
                    hindrance.deletions_refused -= 1
                    return NotScheduled(Refusal.DISK_FULL, "full")
                return await super().delete_cron(name)

        return HinderedShell
