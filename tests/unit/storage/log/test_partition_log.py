from __future__ import annotations

import errno

import pytest

from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.errors import Damaged, DiskFullError, LogFailedError, Offline, OutOfRange
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.storage.log_desk import LogDesk


def many(desk: LogDesk, count: int, size: int = 10) -> list[bytes]:
    batches = [desk.append(size=size) for _ in range(count)]
    desk.sync()
    return batches


def test_bytes_come_back_as_they_were_appended() -> None:
    desk = LogDesk()
    batches = many(desk, 3)
    assert desk.read(0) == b"".join(batches)
    assert desk.read(1) == b"".join(batches[1:])


def test_nothing_is_read_before_it_is_durable() -> None:
    desk = LogDesk()
    desk.append(b"a")
    assert desk.log.plan_read(0, bytes_max=100) is None
    desk.sync()
    desk.append(b"b")
    assert desk.offsets(desk.read(0)) == [0]


def test_read_returns_the_batch_that_holds_the_offset() -> None:
    desk = LogDesk()
    first = desk.append(b"a", b"b", b"c")
    desk.sync()
    assert desk.read(2) == first


def test_first_batch_is_served_whatever_its_size() -> None:
    desk = LogDesk()
    large = desk.append(size=20_000)
    desk.append(b"small")
    desk.sync()
    assert desk.read(0, bytes_max=10) == large


def test_read_keeps_to_its_limit_with_whole_batches() -> None:
    desk = LogDesk(settings=StorageConfig(free_bytes_min=0, index_interval_bytes=200))
    batches = many(desk, 50)
    size = len(batches[0])
    assert desk.offsets(desk.read(7, bytes_max=size * 5 + 3)) == [7, 8, 9, 10, 11]
    assert desk.offsets(desk.read(12, bytes_max=size * 2)) == [12, 13]


@pytest.mark.parametrize("interval", [1, 100, 4096])
def test_every_offset_is_found_whatever_the_index_interval(interval: int) -> None:
    desk = LogDesk(settings=StorageConfig(free_bytes_min=0, index_interval_bytes=interval))
    many(desk, 60)
    for offset in range(60):
        assert desk.offsets(desk.read(offset, bytes_max=1)) == [offset]


def test_up_to_ends_a_read_before_its_batch() -> None:
    desk = LogDesk()
    desk.append(b"a", b"b")
    desk.append(b"c", b"d")
    desk.sync()
    assert desk.offsets(desk.read(0, up_to=3)) == [0]
    assert desk.offsets(desk.read(0, up_to=4)) == [0, 2]
    assert desk.read(2, up_to=3) == b""


def test_offsets_outside_are_out_of_range() -> None:
    desk = LogDesk()
    many(desk, 2)
    assert desk.log.plan_read(3, bytes_max=1) == OutOfRange(0, 2)
    assert desk.log.plan_read(2, bytes_max=1) is None


def test_log_rolls_when_the_segment_is_full() -> None:
    desk = LogDesk(config=LogConfig(segment_bytes=300))
    many(desk, 10)
    assert len(desk.log.segments) > 2
    assert all(segment.size <= 300 for segment in desk.log.segments)
    offset = 0
    while offset < 10:
        offset = desk.offsets(desk.read(offset))[-1] + 1


def test_empty_log_makes_no_files() -> None:
    files = FaultyFiles()
    LogDesk(files)
    assert files.list_directory("/data/logs") == []


def test_disk_full_changes_nothing_and_passes() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    before = (desk.log.log_end, desk.log.size_bytes, desk.log.producers.as_dict())
    files.shorten_next_write(30)
    files.fail_next("write", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        desk.append(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
    assert (desk.log.log_end, desk.log.size_bytes, desk.log.producers.as_dict()) == before
    assert files.content(desk.log.segments[0].path)[desk.log.size_bytes :] == b""
    second = desk.append(b"c")
    desk.sync()
    assert desk.read(1) == second


def test_cut_after_a_failed_write_is_synced_with_the_next_turn() -> None:
    """Else a power cut could keep half a batch in front of the next segment, which is damage."""
    files = FaultyFiles()
    desk = LogDesk(files)
    desk.append(b"a")
    desk.sync()
    path = desk.log.segments[0].path
    files.shorten_next_write(30)
    files.fail_next("write", errno.ENOSPC)
    with pytest.raises(DiskFullError):
        desk.append(b"b")
    desk.log.roll()
    desk.append(b"c")
    files.journal.clear()
    desk.sync()
    assert ("sync", path) in files.journal


def test_short_write_is_finished() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    files.shorten_next_write(10)
    batch = desk.append(b"abc")
    desk.sync()
    assert desk.read(0) == batch


def test_write_error_takes_the_log_offline_until_it_was_read_again() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    kept = desk.append(b"a")
    desk.sync()
    files.fail_next("write", errno.EIO)
    with pytest.raises(LogFailedError):
        desk.append(b"b")
    assert isinstance(desk.log.plan_read(0, bytes_max=1), Offline)
    assert desk.metric("penstock_logs_offline") == 1
    desk.log.adopt(desk.store.recover_log(desk.log))
    assert desk.metric("penstock_logs_offline") == 0
    assert desk.read(0) == kept
    desk.append(b"c")


def test_few_handles_serve_many_segments() -> None:
    settings = StorageConfig(free_bytes_min=0, handles_max=2, sync_threads=1)
    desk = LogDesk(settings=settings, config=LogConfig(segment_bytes=100))
    batches = [desk.append(size=30) for _ in range(20)]
    assert len(desk.store.context.handles) <= 2
    desk.sync()
    assert [desk.read(offset) for offset in range(20)] == batches
    desk.restart(clean=False)
    assert [desk.read(offset) for offset in range(20)] == batches


def test_deleted_records_stay_deleted() -> None:
    files = FaultyFiles()
    desk = LogDesk(files, config=LogConfig(segment_bytes=200))
    many(desk, 10)
    desk.store.checkpoint_now(every_log=True)
    desk.log.delete_before(5).run()
    assert desk.log.log_start == 5
    assert desk.log.plan_read(4, bytes_max=1) == OutOfRange(5, 10)
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert (desk.log.log_start, desk.log.log_end) == (5, 10)
    assert desk.offsets(desk.read(5, bytes_max=1)) == [5]


def test_deletion_of_everything_keeps_the_end() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    many(desk, 4)
    desk.store.checkpoint_now(every_log=True)
    desk.log.delete_before(4).run()
    assert desk.log.size_bytes == 0
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert (desk.log.log_start, desk.log.log_end) == (4, 4)
    desk.append(b"next")
    desk.sync()
    assert desk.offsets(desk.read(4)) == [4]


def test_planned_read_survives_the_removal_of_its_segment() -> None:
    desk = LogDesk(config=LogConfig(segment_bytes=100))
    batches = many(desk, 5, size=30)
    desk.store.checkpoint_now(every_log=True)
    plan = desk.log.plan_read(0, bytes_max=1)
    desk.log.delete_before(5).run()
    assert plan is not None
    assert bytes(plan.load()) == batches[0]  # type: ignore[union-attr, arg-type]


def test_retention_waits_for_the_checkpoint_that_knows_the_producers() -> None:
    desk = LogDesk(config=LogConfig(segment_bytes=100, retention_ms=1000))
    many(desk, 3, size=30)
    desk.clock.advance_ms(5_000)
    assert desk.log.apply_retention(desk.clock.now_ms()) is None
    desk.store.checkpoint_now()
    removal = desk.log.apply_retention(desk.clock.now_ms())
    assert removal is not None
    removal.run()
    assert (desk.log.log_start, desk.log.log_end, desk.log.size_bytes) == (3, 3, 0)


def test_idle_segment_rolls_by_age() -> None:
    desk = LogDesk(config=LogConfig(segment_ms=1000))
    many(desk, 1)
    desk.clock.advance_ms(1000)
    desk.log.apply_retention(desk.clock.now_ms())
    assert [segment.base_offset for segment in desk.log.segments] == [0, 1]


def test_time_finds_the_first_record_at_or_after_it() -> None:
    desk = LogDesk(
        config=LogConfig(segment_bytes=300), settings=StorageConfig(free_bytes_min=0, index_interval_bytes=1)
    )
    for stamp in (1000, 3000, 2000, 5000, 4000):
        desk.append(b"x", timestamp_ms=stamp)
    desk.sync()
    found = [desk.log.offset_for_timestamp(moment) for moment in (0, 1001, 3001, 5001)]
    assert [(hit.offset, hit.timestamp_ms) if hit else None for hit in found] == [  # type: ignore[union-attr]
        (0, 1000), (1, 3000), (3, 5000), None,
    ]  # fmt: skip
    newest = desk.log.offset_of_max_timestamp()
    assert newest is not None
    assert newest.offset == 3  # type: ignore[union-attr]


def test_flipped_bit_in_old_bytes_is_reported_once_and_never_served() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    batches = many(desk, 3)
    path, size = desk.log.segments[0].path, len(batches[0])
    desk.store.close()
    files.flip_bit(path, (size + 70) * 8)
    desk.files.locked.clear()  # type: ignore[attr-defined]
    desk.restart(clean=False)
    assert desk.read(0) == batches[0]
    assert isinstance(desk.log.plan_read(1, bytes_max=1), Damaged)
    assert desk.read(2) == batches[2]
    assert desk.metric("penstock_log_damage_total") == 1
    desk.append(b"x")


def test_flipped_base_offset_is_damage_although_no_checksum_covers_it() -> None:
    files = FaultyFiles()
    desk = LogDesk(files)
    batches = many(desk, 3)
    path = desk.log.segments[0].path
    desk.store.close()
    files.flip_bit(path, (len(batches[0]) + 7) * 8 + 3)
    desk.restart(clean=False)
    assert desk.read(0) == batches[0]
    assert isinstance(desk.log.plan_read(1, bytes_max=1), Damaged)


def test_records_are_counted_by_headers() -> None:
    desk = LogDesk()
    desk.append(b"a", b"b")
    desk.append(b"c")
    assert desk.log.record_count == 3
    assert desk.log.max_timestamp == desk.clock.now_ms()
