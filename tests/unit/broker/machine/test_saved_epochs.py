"""A file beside a journal that was made of other records is done without, whatever it says."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.queue.replay_start import read_start, write_start
from penstock.broker.schedule.files import ScheduleFiles
from penstock.broker.schedule.limits import ScheduleLimits
from penstock.domain.schedule.machine import PartitionSchedule
from penstock.domain.schedule.records import write_record
from penstock.storage.files import MemoryFiles
from penstock.storage.files.buckets import CHECKPOINT_FILE, BucketFiles
from penstock.storage.log.journal_snapshot import JournalSnapshot, read_snapshot, read_snapshot_place, write_snapshot
from penstock.storage.log.replay_start import read_replay_place, write_replay_start
from penstock.storage.log.saved_place import SavedPlace, agrees, place_in
from support.group.shell_world import ShellWorld
from support.partition import PartitionDesk
from support.storage.faulty_files import FaultyFiles

# Of the logs here, which one node has written alone.
OWN, ANOTHER = 0, 3


async def test_snapshot_of_another_epoch_is_not_believed_and_goes() -> None:
    world = ShellWorld(FaultyFiles(), snapshot_records_min=1)
    await world.shell.load()
    await world.commit("billing", 0, 41)
    directory = world.partition.log.home.directory
    end = world.partition.log.log_end
    write_snapshot(world.files, directory, JournalSnapshot(end, [], [], ANOTHER))
    await world.restart()
    assert await world.fetch("billing", 0) == 41
    assert read_snapshot(world.files, directory) is None, "it would be believed when the log has that epoch, too"
    write_snapshot(world.files, directory, JournalSnapshot(end, [], [], OWN))
    await world.restart()
    assert await world.fetch("billing", 0) == -1, "of its own epoch it is what counts"
    world.shell.close()


async def test_snapshot_bears_the_epoch_of_its_last_record() -> None:
    world = ShellWorld(FaultyFiles(), snapshot_records_min=1)
    await world.shell.load()
    await world.commit("billing", 0, 41)
    await world.shell.save_snapshot_if_due()
    directory = world.partition.log.home.directory
    assert read_snapshot_place(world.files, directory) == SavedPlace(1, OWN) == place_in(world.partition.log, 1)
    world.shell.close()


async def written(desk: PartitionDesk, count: int = 5) -> None:
    for _ in range(count):
        desk.append()
    await desk.turn()


async def test_start_of_a_replay_of_another_epoch_is_not_believed() -> None:
    desk = PartitionDesk(MemoryFiles())
    await written(desk)
    log = desk.shell.log
    assert write_start(log, 4)
    assert read_replay_place(log.context.files, log.home.directory) == SavedPlace(4, OWN)
    assert read_start(desk.shell) == 4
    write_replay_start(log.context.files, log.home.directory, 4, ANOTHER)
    assert read_start(desk.shell) == 0
    desk.store.close(clean=False)


async def test_checkpoint_of_another_epoch_is_not_believed_and_goes() -> None:
    desk = PartitionDesk(MemoryFiles())
    await written(desk)
    log, tasks = desk.shell.log, TaskSupervisor(get_logger("test"))
    buckets = BucketFiles(log.context.files, log.home.directory)
    stored = PartitionSchedule().checkpoint(4).stored
    for epoch, is_believed in ((OWN, True), (ANOTHER, False)):
        buckets.save_checkpoint(write_record(replace(stored, epoch=epoch)))
        files = ScheduleFiles(
            BucketFiles(log.context.files, log.home.directory),
            ScheduleLimits(),
            clock=desk.clock,
            on_failure=lambda _: None,
            tasks=tasks,
        )
        assert (await files.open(desk.shell) is not None) is is_believed
        assert log.context.files.exists(f"{log.home.directory}/{CHECKPOINT_FILE}") is is_believed
    desk.store.close(clean=False)


async def test_file_that_does_not_say_its_epoch_is_believed_as_before() -> None:
    desk = PartitionDesk(MemoryFiles())
    await written(desk)
    assert agrees(desk.shell.log, SavedPlace(4))
    assert not agrees(desk.shell.log, SavedPlace(4, ANOTHER))
    desk.store.close(clean=False)
