from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock
from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.errors import DirectoryLockedError, DiskFullError, LogFailedError
from penstock.storage.files import DirectoryFiles, MemoryFiles
from penstock.storage.files.reserve import RESERVE_BYTES, RESERVE_FILE
from penstock.storage.log.checkpoint_file import read_checkpoint, unpack_entries
from penstock.storage.store import LogStore
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.storage.log_desk import TOPIC_ID, LogDesk


def test_second_node_on_the_same_directory_gets_a_clear_error(tmp_path: Path) -> None:
    root = str(tmp_path / "data")
    desk = LogDesk(DirectoryFiles(), root)
    with pytest.raises(DirectoryLockedError, match="used by another process"):
        LogStore.open(DirectoryFiles(), root, StorageConfig(), ManualClock())
    desk.store.close()
    LogStore.open(DirectoryFiles(), root, StorageConfig(), ManualClock()).close()


def test_directory_engine_keeps_what_was_written(tmp_path: Path) -> None:
    desk = LogDesk(DirectoryFiles(), str(tmp_path / "data"), config=LogConfig(segment_bytes=5_000))
    batches = [desk.append(size=700) for _ in range(40)]
    desk.sync()
    desk.store.checkpoint_now(every_log=True)
    batches += [desk.append(size=700) for _ in range(3)]
    desk.sync()
    for clean in (False, True):
        desk.restart(clean=clean)
        assert [desk.read(offset, bytes_max=1) for offset in range(43)] == batches
    assert desk.store.statistics.was_clean


def test_what_a_refused_start_has_not_opened_is_read_again_at_the_next() -> None:
    desk = LogDesk()
    desk.append(b"saved")
    desk.sync()
    desk.store.checkpoint_now(every_log=True)
    desk.append(b"acknowledged after the checkpoint")
    desk.sync()
    # Killed; the next start is refused before it has opened the log, and ends in good order.
    assert isinstance(desk.files, FaultyFiles)
    desk.files.locked.clear()
    LogStore.open(desk.files, desk.root, desk.settings, desk.clock).close()
    desk.store = LogStore.open(desk.files, desk.root, desk.settings, desk.clock)
    assert desk.open_log().log_end == 2


def test_logs_open_in_no_time_when_nothing_is_there() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    files.journal.clear()
    logs = [desk.open_log(partition) for partition in range(1, 2_000)]
    assert files.journal == []
    assert len(desk.store.logs) == len(logs) + 1


async def test_checkpoint_on_the_loop_leaves_little_to_read() -> None:
    desk = LogDesk()
    for _ in range(20):
        desk.append(size=100)
    desk.sync()
    desk.log.is_save_wanted = True
    await desk.store.checkpoint()
    assert desk.log.saved_end == 20
    assert desk.log.unsaved_batches == 0
    desk.restart(clean=False)
    assert desk.store.statistics.scanned_bytes == 0


def test_small_changes_wait_until_they_are_many() -> None:
    settings = StorageConfig(free_bytes_min=0, sync_threads=1, checkpoint_log_batches=10, checkpoint_sum_batches=25)
    desk = LogDesk(settings=settings)
    others = [desk.open_log(partition) for partition in range(1, 4)]
    for log in others:
        for _ in range(9):
            desk.append(b"x", log=log)
    desk.store.checkpoint_now()
    assert [log.unsaved_batches for log in others] == [0, 0, 0], "together they are over the sum"
    desk.append(b"x")
    desk.store.checkpoint_now()
    assert desk.log.unsaved_batches == 0, "a new segment is made known"
    desk.append(b"x")
    desk.store.checkpoint_now()
    assert desk.log.unsaved_batches == 1


def test_failed_checkpoint_leaves_the_one_before() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append(b"a")
    desk.sync()
    desk.store.checkpoint_now(every_log=True)
    desk.append(b"b")
    desk.sync()
    files.fail_next("rename", errno.EIO)
    desk.store.checkpoint_now(every_log=True)
    assert desk.log.unsaved_batches == 1
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert desk.log.log_end == 2


def test_writes_stop_and_resume_with_the_room_on_the_disk() -> None:
    files = FaultyFiles(bytes_max=10_000_000)
    desk = LogDesk(files, settings=StorageConfig(free_bytes_min=1_000_000, sync_threads=1))
    first = desk.append(b"a")
    desk.sync()
    files.bytes_max = 2_000_000
    desk.store.free_space_check()
    assert desk.store.is_full
    assert desk.metric("penstock_disk_full") == 1
    with pytest.raises(DiskFullError):
        desk.append(b"b")
    assert desk.read(0) == first
    files.bytes_max = 10_000_000
    desk.store.free_space_check()
    desk.append(b"b")
    assert desk.metric("penstock_disk_full") == 0


def test_start_without_a_byte_left_uses_the_reserve() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append(b"a")
    desk.sync()
    files.bytes_max = sum(len(files.content(path)) for path in files.paths())
    desk.restart(clean=False)
    assert files.free_bytes("") >= RESERVE_BYTES
    assert desk.log.is_healthy
    assert desk.log.log_end == 1


def test_reserve_that_can_neither_be_filled_nor_removed_disturbs_nobody() -> None:
    """It raised once a second on a file system that had become read-only."""
    files = FaultyFiles()
    desk = LogDesk(files)
    files.remove(f"{desk.root}/{RESERVE_FILE}")
    files.fail_next("open", errno.EROFS)
    files.fail_next("remove", errno.EROFS)
    desk.store.free_space_check()
    assert desk.store.is_full
    assert desk.store.context.is_read_only
    desk.store.free_space_check()
    assert not desk.store.is_full


def test_read_only_file_system_refuses_writes_and_serves_what_is_there() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    first = desk.append(b"a")
    desk.sync()
    files.fail_next("write", errno.EROFS)
    with pytest.raises(DiskFullError, match="read-only"):
        desk.append(b"b")
    assert desk.log.is_healthy
    assert desk.read(0) == first
    files.read_only = True
    desk.store.free_space_check()
    with pytest.raises(DiskFullError, match="read-only"):
        desk.append(b"b")
    files.read_only = False
    desk.store.free_space_check()
    desk.append(b"b")


def test_segment_that_cannot_be_begun_on_a_read_only_file_system_leaves_the_log_online() -> None:
    files = FaultyFiles()
    desk = LogDesk(files, config=LogConfig(segment_bytes=100))
    first = desk.append(size=40)
    desk.sync()
    files.fail_next("open", errno.EROFS)
    with pytest.raises(DiskFullError, match="read-only"):
        desk.append(size=80)
    assert desk.log.is_healthy
    assert desk.read(0) == first


def test_retention_works_on_a_disk_without_a_byte_left() -> None:
    files = FaultyFiles()
    desk = LogDesk(files, config=LogConfig(segment_bytes=100, retention_bytes=100))
    for _ in range(10):
        desk.append(size=40)
    desk.sync()
    files.bytes_max = sum(len(files.content(path)) for path in files.paths())
    desk.store.checkpoint_now(every_log=True)
    removal = desk.log.apply_retention(desk.clock.now_ms())
    assert removal is not None
    removal.run()
    assert desk.log.log_start == 9


def test_memory_engine_is_full_at_its_bound() -> None:
    desk = LogDesk(MemoryFiles(bytes_max=20_000))
    desk.append(size=15_000)
    with pytest.raises(DiskFullError):
        desk.append(size=15_000)
    desk.sync()
    assert desk.offsets(desk.read(0))[0] == 0


def test_removed_topic_takes_nothing_and_leaves_nothing() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append(b"a")
    desk.sync()
    desk.store.checkpoint_now(every_log=True)
    removal = desk.store.remove_topic(TOPIC_ID)
    with pytest.raises(LogFailedError):
        desk.append(b"b")
    removal.run()
    assert not [path for path in files.paths() if TOPIC_ID.hex() in path]
    desk.restart(clean=True)
    assert (desk.log.log_start, desk.log.log_end) == (0, 0)


def test_removal_that_a_crash_interrupted_is_finished_at_the_next_start() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append(b"a")
    desk.sync()
    desk.store.remove_topic(TOPIC_ID)
    desk.restart(clean=False)
    assert not [path for path in files.paths() if ".removed" in path]


def test_log_whose_recovery_fails_does_not_keep_the_others_from_starting() -> None:
    files = FaultyFiles()
    files.can_sync_all = False
    desk = LogDesk(files)
    desk.append(b"a")
    desk.store.close(clean=False)
    desk.store = LogStore.open(files, "/data", desk.settings, desk.clock, None)
    files.fail_next("sync", errno.EIO)
    desk.log = desk.open_log()
    assert desk.log.failure is not None
    desk.log.adopt(desk.store.recover_log(desk.log))
    assert desk.log.failure is None


def test_topic_that_is_deleted_during_a_checkpoint_does_not_spoil_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = LogDesk(DirectoryFiles(), str(tmp_path))
    other_id = bytes(reversed(range(16)))
    other = desk.store.open_log("other", other_id, 0, LogConfig())
    for log in (desk.log, other):
        desk.append(b"a", log=log)
    work = desk.store.begin_checkpoint()
    assert work is not None
    desk.store.group_commit.sync_now([capture.log for capture in work.captures])
    removal = desk.store.remove_topic(other_id)
    desk.store.run_checkpoint(work)
    desk.store.end_checkpoint(work)
    removal.run()
    assert "checkpoint failed" not in capsys.readouterr().out
    assert desk.log.unsaved_batches == 0
    payload = read_checkpoint(desk.files, desk.root)
    assert payload is not None
    assert list(unpack_entries(payload)) == [(TOPIC_ID, 0)]


def test_threads_open_logs_while_topics_are_removed_and_checkpoints_are_made() -> None:
    """As companions are opened: whoever goes through all logs on the loop meets logs that come meanwhile."""
    store = LogDesk(MemoryFiles()).store
    other = bytes(16)
    opener = threading.Thread(
        target=lambda: [store.open_log("t", other, partition, LogConfig()) for partition in range(5_000)]
    )
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        opener.start()
        while opener.is_alive():
            store.remove_topic(bytes([1]) * 16)
            assert store.begin_checkpoint() is None
    finally:
        sys.setswitchinterval(interval)
        opener.join()
    assert len(store.logs) == 5_001
