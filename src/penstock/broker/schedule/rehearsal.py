"""The schedule of a partition that another node leads: built of what is committed, saved as a checkpoint, dropped."""

from __future__ import annotations

from penstock.broker.machine.portions import JournalLostError
from penstock.broker.machine.rehearsals import Rehearsal
from penstock.broker.partition.shell import PartitionShell
from penstock.broker.schedule.context import ScheduleContext
from penstock.broker.schedule.crons import find_zone
from penstock.broker.schedule.files import ScheduleFiles
from penstock.broker.schedule.replay import rebuild
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.storage.files.buckets import BucketFiles


class CommittedRows:
    """The log of the schedule up to one place: nothing of it can be lost, and nothing is written behind it."""

    def __init__(self, companion: PartitionShell, end: int) -> None:
        self._epochs = companion.log.epochs
        self.next_position = end
        self.written_bytes = 0
        self.is_lost = False

    async def until_durable(self) -> bool:
        return True

    def epoch_before(self, position: int) -> int:
        return self._epochs.epoch_at(position - 1)


async def rehearse(rehearsal: Rehearsal, context: ScheduleContext) -> None:
    """Raises JournalLostError, OSError. Nothing is due while it goes on: whoever leads sees to that."""
    companion, site = rehearsal.journal, context.site
    failures: list[str] = []

    def on_failure(reason: str) -> None:
        # The machine has handed out what the files did not take: nothing more may be saved of it.
        failures.append(reason)
        files.is_closed = True

    files = ScheduleFiles(
        BucketFiles(companion.log.context.files, companion.log.home.directory),
        context.limits,
        clock=site.clock,
        on_failure=on_failure,
        tasks=site.tasks,
    )
    machine = PartitionSchedule(site.config.schedules, zones=find_zone)
    try:
        await rebuild(machine, files, companion, end=rehearsal.end, rest=rehearsal.rest)
        await files.checkpoint(machine, CommittedRows(companion, rehearsal.end))
    finally:
        await files.close()
    if failures:
        raise JournalLostError(f"the files of the schedule of {companion.topic} cannot be written: {failures[0]}")
