"""The log of a schedule, written by who leads its partition and by nobody else."""

from __future__ import annotations

from penstock.broker.partition.role import Following, Leading
from penstock.broker.schedule.journal import ScheduleJournal
from penstock.domain.schedule.rows import Row
from penstock.storage.files.memory import MemoryFiles
from support.partition import PartitionDesk


async def test_rows_are_lost_with_the_lead_and_not_written() -> None:
    desk = PartitionDesk(MemoryFiles())
    journal = ScheduleJournal(desk.shell, desk.clock, desk.shell.leadership)
    journal.append([Row(b"key", b"value")])
    assert await journal.until_durable()
    journal.append([Row(b"key", b"later")])
    desk.shell.take_role(Following(epoch=1, leader=2))
    assert not await journal.until_durable()
    assert journal.is_lost
    assert desk.shell.log.log_end == 1
    desk.store.close(clean=False)


async def test_rows_decided_under_an_old_leadership_are_not_written() -> None:
    """Also where this node leads again: what the old journal knows is not what the log says."""
    desk = PartitionDesk(MemoryFiles())
    journal = ScheduleJournal(desk.shell, desk.clock, desk.shell.leadership)
    desk.shell.take_role(Leading(desk.shell.leadership.epoch + 1))
    journal.append([Row(b"key", b"value")])
    assert not await journal.until_durable()
    assert journal.is_lost
    assert desk.shell.log.log_end == 0
    assert await ScheduleJournal(desk.shell, desk.clock, desk.shell.leadership).until_durable()
    desk.store.close(clean=False)
