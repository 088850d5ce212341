from __future__ import annotations

import pytest

from penstock.storage.config import LogConfig
from penstock.storage.errors import Damaged, LogFailedError
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.storage.log_desk import LogDesk


def synced(desk: LogDesk, *values: bytes) -> list[bytes]:
    batches = [desk.append(value) for value in values]
    desk.sync()
    return batches


def test_synced_bytes_survive_a_power_cut() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    kept = synced(desk, b"a", b"b")
    desk.append(b"not synced")
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert desk.read(0) == b"".join(kept)
    assert desk.log.log_end == 2


def test_torn_tail_is_cut_and_counted() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    kept = synced(desk, b"a")
    file = files.open(desk.log.segments[0].path)
    file.write_at(desk.batch(b"torn", base_offset=1)[:50], len(kept[0]))
    desk.restart(clean=False)
    assert desk.log.log_end == 1
    assert desk.log.damage is None
    assert desk.store.statistics.torn_bytes == 50
    assert desk.metric("penstock_recovery_torn_bytes_total") == 50
    assert files.content(desk.log.segments[0].path) == kept[0]


def test_tail_of_zeros_is_torn() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    kept = synced(desk, b"a")
    files.open(desk.log.segments[0].path).write_at(bytes(5_000), len(kept[0]))
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert desk.store.statistics.torn_bytes == 5_000
    desk.append(b"next")


def test_bad_batch_with_a_good_one_after_it_is_damage_and_not_cut() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    batches = synced(desk, b"a", b"b", b"c")
    path = desk.log.segments[0].path
    files.flip_bit(path, (len(batches[0]) + 65) * 8)
    desk.restart(clean=False)
    assert desk.log.damage is not None
    assert desk.log.damage.offset == 1
    assert desk.read(0) == batches[0]
    assert isinstance(desk.log.plan_read(1, bytes_max=1), Damaged)
    assert desk.read(2) == batches[2]
    assert len(files.content(path)) == sum(map(len, batches))
    later = synced(desk, b"d")
    assert desk.read(2) == batches[2] + later[0]


def test_damage_is_found_again_after_a_clean_end() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    batches = synced(desk, b"a", b"b", b"c")
    files.flip_bit(desk.log.segments[0].path, (len(batches[0]) + 65) * 8)
    desk.restart(clean=False)
    desk.restart(clean=True)
    assert desk.log.damage is not None


def test_only_what_lies_past_the_checkpoint_is_read() -> None:
    desk = LogDesk()
    synced(desk, *(b"old" for _ in range(50)))
    desk.store.checkpoint_now(every_log=True)
    late = synced(desk, b"new")
    desk.restart(clean=False)
    assert desk.store.statistics.scanned_bytes == len(late[0])
    assert desk.log.log_end == 51


def test_clean_start_reads_nothing() -> None:
    desk = LogDesk()
    batches = synced(desk, b"a", b"b")
    desk.restart(clean=True)
    assert desk.store.statistics.was_clean
    assert desk.store.statistics.scanned_bytes == 0
    assert desk.read(0) == b"".join(batches)
    desk.append(b"c")


def test_second_crash_does_not_look_like_the_clean_end_before_it() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    synced(desk, b"a")
    desk.restart(clean=True)
    synced(desk, b"b")
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert not desk.store.statistics.was_clean
    assert desk.log.log_end == 2


def test_what_a_killed_process_left_in_the_cache_is_synced_before_it_is_served() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append(b"a")
    desk.restart(clean=False)
    assert desk.log.readable_end == 1
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert desk.log.log_end == 1


def test_producers_and_epochs_come_back() -> None:
    desk = LogDesk()
    desk.append(b"a", producer_id=7, producer_epoch=1, base_sequence=0, leader_epoch=2)
    desk.sync()
    desk.store.checkpoint_now(every_log=True)
    desk.append(b"b", producer_id=7, producer_epoch=1, base_sequence=1, leader_epoch=4)
    desk.sync()
    producers, epochs = desk.log.producers.as_dict(), desk.log.epochs.entries()
    desk.restart(clean=False)
    assert desk.log.producers.as_dict() == producers
    assert desk.log.epochs.entries() == epochs == [(2, 0), (4, 1)]


@pytest.mark.parametrize("name", ["producers", "leader_epochs", "00000000000000000000.index", "checkpoint"])
def test_damaged_small_file_is_rebuilt(name: str) -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    for number in range(30):
        desk.append(b"x" * 300, producer_id=7, producer_epoch=0, base_sequence=number)
    desk.sync()
    producers, epochs = desk.log.producers.as_dict(), desk.log.epochs.entries()
    desk.store.close()
    path = next(path for path in files.paths() if path.endswith(name))
    files.flip_bit(path, 8 * 20)
    desk.restart(clean=False)
    assert desk.log.log_end == 30
    assert desk.log.producers.as_dict() == producers
    assert desk.log.epochs.entries() == epochs
    assert desk.offsets(desk.read(17, bytes_max=1)) == [17]


def test_missing_segment_is_damage() -> None:
    files = FaultyFiles()
    desk = LogDesk(files, config=LogConfig(segment_bytes=100))
    synced(desk, *(b"x" * 30 for _ in range(5)))
    path = desk.log.segments[2].path
    desk.store.close()
    files.remove(path)
    desk.restart(clean=False)
    assert desk.log.damage is not None
    assert (desk.log.damage.offset, desk.log.damage.offset_end, desk.log.log_end) == (2, 3, 5)
    assert desk.offsets(desk.read(0)) == [0]
    assert desk.offsets(desk.read(1)) == [1]
    assert isinstance(desk.log.plan_read(2, bytes_max=1), Damaged)
    assert desk.offsets(desk.read(3)) == [3]
    desk.append(b"f")


def test_shortened_segment_is_damage() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    batches = synced(desk, b"a", b"b")
    desk.store.close()
    files.open(desk.log.segments[0].path).truncate(len(batches[0]))
    desk.restart(clean=False)
    assert desk.log.damage is not None
    assert desk.log.damage.offset == 1


def test_failed_sync_is_never_retried_and_recovery_serves_what_is_on_disk() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    kept = synced(desk, b"a")
    desk.append(b"lost")
    files.fail_next("sync", 5)
    assert desk.store.group_commit.sync_now([desk.log]) == {desk.log}
    assert desk.log.failure is not None
    assert desk.store.group_commit.sync_now([desk.log]) == {desk.log}
    desk.log.adopt(desk.store.recover_log(desk.log))
    assert desk.log.log_end == 1
    assert desk.read(0) == kept[0]


def test_promised_end_that_rotted_is_not_cut_while_the_process_knows_that_it_was_promised() -> None:
    desk = LogDesk()
    disk = desk.files
    assert isinstance(disk, FaultyFiles)
    batches = [desk.append(b"a"), desk.append(b"b")]
    desk.sync()
    desk.append(b"unpromised")
    disk.flip_bit(desk.log.segments[0].path, (len(batches[0]) + 65) * 8)
    disk.open(desk.log.segments[0].path).truncate(len(batches[0]) + len(batches[1]))
    desk.log.fail("the disk failed a sync")
    desk.log.adopt(desk.store.recover_log(desk.log))
    assert [(damage.offset, damage.offset_end) for damage in desk.log.damages.places] == [(1, 2)]
    assert desk.log.log_end == 2
    assert desk.read(0) == batches[0]
    later = desk.append(b"not at its offset")
    desk.sync()
    desk.restart(clean=False)
    assert (desk.log.log_end, desk.read(2)) == (3, later)


def test_truncation_holds_after_a_crash() -> None:
    files = FaultyFiles()
    desk = LogDesk(files, config=LogConfig(segment_bytes=200))
    synced(desk, *(b"x" * 30 for _ in range(10)))
    desk.store.checkpoint_now(every_log=True)
    desk.store.truncate_log(desk.log, 4)
    assert (desk.log.log_end, desk.log.readable_end) == (4, 4)
    other = synced(desk, b"other")
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert desk.log.log_end == 5
    assert desk.read(4) == other[0]


def test_index_of_a_segment_that_is_gone_is_swept_up() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    synced(desk, b"a")
    files.open(f"{desk.log.home.directory}/00000000000000000099.index", create=True)
    desk.restart(clean=False)
    assert not [path for path in files.paths() if "0099" in path]


def test_log_whose_directory_vanished_is_damaged_and_not_empty() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    synced(desk, b"a", b"b")
    desk.store.close()
    files.remove_tree(desk.log.home.directory)
    desk.restart(clean=False)
    assert desk.log.damage is not None
    with pytest.raises(LogFailedError):
        desk.append(b"c")
