"""file.delete.delay.ms: what retention and deletions retire stays on the disk for a while, and never comes back."""

from __future__ import annotations

import errno

import pytest

from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.errors import DiskFullError
from penstock.storage.store import ROOM_FACTOR, LogStore
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash
from support.storage.log_desk import TOPIC_ID, LogDesk

DELAY_MS = 60_000
FREE_BYTES_MIN = 1 << 20


class Disk(FaultyFiles):
    """With as much room as the test says, and perhaps one that gives no file the name of a retired one."""

    free = 1 << 40
    refuses_names = False

    def free_bytes(self, _root: str) -> int:
        return self.free

    def rename(self, source: str, target: str) -> None:
        if self.refuses_names and target.endswith(".deleted"):
            raise OSError(errno.EIO, "no such luck")
        super().rename(source, target)


def filled(*, delay_ms: int = DELAY_MS, **others: int) -> tuple[Disk, LogDesk]:
    disk = Disk()
    config = LogConfig(segment_bytes=200, file_delete_delay_ms=delay_ms, **others)
    desk = LogDesk(disk, settings=StorageConfig(free_bytes_min=FREE_BYTES_MIN, sync_threads=1), config=config)
    for number in range(10):
        desk.append(b"%d" % number)
    desk.sync()
    desk.store.checkpoint_now(every_log=True)
    return disk, desk


def waiting(disk: Disk) -> list[str]:
    return [path.rpartition("/")[2] for path in disk.paths() if path.endswith(".deleted")]


def segments(disk: Disk) -> list[str]:
    return [path.rpartition("/")[2] for path in disk.paths() if path.endswith(".log")]


def test_deleted_records_lie_on_the_disk_until_the_delay_is_over() -> None:
    disk, desk = filled()
    gone = [segment for segment in desk.log.segments if segment.next_offset <= 6]
    desk.log.delete_before(6).run()
    assert [name for name in waiting(disk) if ".log" in name] == [
        f"{segment.base_offset:020}.log.deleted" for segment in gone
    ]
    assert segments(disk) == [f"{segment.base_offset:020}.log" for segment in desk.log.segments]
    desk.clock.advance_ms(DELAY_MS - 1)
    desk.store.free_space_check()
    assert waiting(disk)
    desk.clock.advance_ms(1)
    desk.store.free_space_check()
    assert not waiting(disk)


def test_retired_segments_wait_too() -> None:
    disk, desk = filled(retention_bytes=200)
    removal = desk.log.apply_retention(desk.clock.now_ms())
    assert removal is not None
    removal.run()
    assert waiting(disk)


def test_without_a_delay_they_go_at_once() -> None:
    disk, desk = filled(delay_ms=0)
    desk.log.delete_before(6).run()
    assert not waiting(disk)


@pytest.mark.parametrize("is_clean", [True, False])
def test_start_removes_what_waits_and_takes_it_for_no_segment(is_clean: bool) -> None:
    disk, desk = filled()
    desk.log.delete_before(6).run()
    if not is_clean:
        disk.crash(CrashMode.LOST)
    desk.restart(clean=is_clean)
    assert (desk.log.log_start, desk.log.log_end) == (6, 10)
    assert not waiting(disk)
    assert desk.offsets(desk.read(6, bytes_max=1)) == [6]


@pytest.mark.parametrize("mode", list(CrashMode))
def test_crash_at_any_step_of_a_retirement_loses_and_brings_back_nothing(mode: CrashMode) -> None:
    for steps in range(40):
        disk, desk = filled()
        removal = desk.log.delete_before(6)
        disk.crash_after(steps)
        is_over = True
        try:
            removal.run()
        except SimulatedCrash:
            is_over = False
        disk.crash(mode)
        desk.restart(clean=False)
        assert desk.log.log_end == 10
        assert desk.log.log_start == 6 or (not is_over and desk.log.log_start == 0)
        assert desk.log.damage is None
        assert not waiting(disk)
        assert desk.offsets(desk.read(desk.log.log_start, bytes_max=1)) == [desk.log.log_start]
        if is_over:
            return
    pytest.fail("the removal has more steps than were tried")


def test_what_waits_gives_way_before_the_disk_is_full() -> None:
    disk, desk = filled()
    desk.log.delete_before(6).run()
    disk.free = ROOM_FACTOR * FREE_BYTES_MIN
    desk.store.free_space_check()
    assert waiting(disk), "there is room enough"
    disk.free -= 1
    desk.store.free_space_check()
    assert not waiting(disk)
    assert not desk.store.is_full


def test_on_a_full_disk_nothing_waits() -> None:
    disk, desk = filled()
    disk.free = 0
    desk.store.free_space_check()
    assert desk.store.is_full
    desk.log.delete_before(6).run()
    assert not waiting(disk)


def test_write_that_finds_no_room_has_it_given_back() -> None:
    """A quota: the disk itself has room."""
    disk, desk = filled()
    desk.log.delete_before(6).run()
    disk.fail_next("write", errno.EDQUOT)
    with pytest.raises(DiskFullError):
        desk.append(b"more")
    desk.store.free_space_check()
    assert not waiting(disk)


def test_files_that_cannot_be_renamed_go_at_once() -> None:
    disk, desk = filled()
    disk.refuses_names = True
    desk.log.delete_before(6).run()
    assert segments(disk) == [f"{segment.base_offset:020}.log" for segment in desk.log.segments]
    assert not waiting(disk)


def test_files_of_a_deleted_topic_wait_and_no_start_finds_them() -> None:
    disk, desk = filled()
    desk.store.remove_topic(TOPIC_ID).run()
    assert [path for path in disk.paths() if ".removed/" in path]
    desk.clock.advance_ms(DELAY_MS)
    desk.store.free_space_check()
    assert not [path for path in disk.paths() if TOPIC_ID.hex() in path]


def test_files_of_a_deleted_topic_are_gone_after_a_start() -> None:
    disk, desk = filled()
    desk.store.remove_topic(TOPIC_ID).run()
    disk.crash(CrashMode.LOST)
    LogStore.open(disk, desk.root, desk.settings, desk.clock)
    assert not [path for path in disk.paths() if TOPIC_ID.hex() in path]
