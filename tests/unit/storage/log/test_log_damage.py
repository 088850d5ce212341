from __future__ import annotations

import pytest

from penstock.storage.config import LogConfig, StorageConfig
from penstock.storage.errors import Damage, Damaged, LogDamagedError, LogFailedError
from penstock.storage.log.damage import DAMAGE_FILE
from penstock.storage.log.time_lookup import TimestampOffset
from penstock.storage.repair.check import repair, verify
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.storage.log_desk import ROOT, LogDesk


class RottenDesk(LogDesk):
    """A log on a disk that rots under a node which has written, checked and read it."""

    def __init__(self, *sizes: int, segment_bytes: int = 1 << 20, interval_bytes: int = 4096) -> None:
        self.disk = FaultyFiles()
        settings = StorageConfig(free_bytes_min=0, sync_threads=1, index_interval_bytes=interval_bytes)
        super().__init__(self.disk, settings=settings, config=LogConfig(segment_bytes=segment_bytes))
        self.batches = [self.append(bytes([65 + place]) * size, timestamp_ms=1_000 + place)
                        for place, size in enumerate(sizes)]  # fmt: skip
        self.sync()

    def rot(self, offset: int, *, byte: int = 65) -> None:
        segment = self.log.segment_of(offset)
        position = sum(len(self.batches[place]) for place in range(segment.base_offset, offset))
        self.disk.flip_bit(segment.path, (position + byte) * 8)

    def load(self, offset: int, bytes_max: int = 1 << 20) -> bytes | Damage | Damaged:
        """As a reader gets it whose bytes are not in memory."""
        plan = self.log.plan_read(offset, bytes_max=bytes_max)
        if isinstance(plan, Damaged):
            return plan
        loaded = plan.load()  # type: ignore[union-attr]
        return loaded if isinstance(loaded, Damage) else bytes(loaded)


def test_cold_read_is_checked_although_this_process_wrote_the_bytes() -> None:
    desk = RottenDesk(30, 30, 30)
    assert desk.load(0) == b"".join(desk.batches)
    desk.rot(1)
    assert desk.load(0) == desk.batches[0]
    assert isinstance(desk.load(1), Damaged)
    assert desk.load(2) == desk.batches[2]
    assert desk.metric("penstock_log_damage_total") == 1


def test_first_cold_read_of_the_rotten_batch_finds_it() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(1)
    found = desk.load(1)
    assert isinstance(found, Damage)
    assert (found.offset, found.offset_end) == (1, 2)
    assert (found.position, found.position_end) == (len(desk.batches[0]), len(desk.batches[0]) * 2)


@pytest.mark.parametrize("interval_bytes", [64, 4096])
@pytest.mark.parametrize("byte", [0, 7, 8, 9, 11, 16, 17, 26, 40, 65, 80])
def test_damage_is_one_batch_wherever_it_was_hit(byte: int, interval_bytes: int) -> None:
    desk = RottenDesk(30, 30, 30, 30, interval_bytes=interval_bytes)
    desk.rot(1, byte=byte)
    assert desk.load(0) == desk.batches[0]
    assert desk.load(2) == desk.batches[2] + desk.batches[3]
    assert desk.load(3) == desk.batches[3]
    assert isinstance(desk.load(1), Damage | Damaged)
    assert [(place.offset, place.offset_end) for place in desk.log.damages.places] == [(1, 2)]


@pytest.mark.parametrize("byte", [0, 8, 9, 11, 26, 65])
def test_nothing_rotten_keeps_the_loop_or_comes_from_memory_with_a_wrong_size(byte: int) -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(1, byte=byte)
    plan = desk.log.plan_read(1, bytes_max=60)
    assert not isinstance(plan, Damaged)
    served = plan.load_cached()  # type: ignore[union-attr]
    # From memory nothing is checked, but no size is believed that leads out of the log.
    assert served is None or len(served) <= sum(map(len, desk.batches[1:]))


def test_bytes_that_went_wrong_on_the_way_are_no_damage() -> None:
    desk = RottenDesk(30, 30)
    path = desk.log.segments[0].path
    desk.disk.spoil_cache(path, 65 * 8)
    assert desk.load(0) == b"".join(desk.batches)
    assert desk.log.damage is None


def test_appends_and_reads_go_on_behind_damage() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(1)
    desk.load(1)
    desk.batches.append(desk.append(b"later"))
    desk.sync()
    assert desk.load(2) == desk.batches[2] + desk.batches[3]
    desk.store.checkpoint_now(every_log=True)
    assert desk.log.unsaved_batches == 0


def test_two_places_of_one_segment_are_kept_apart() -> None:
    desk = RottenDesk(30, 30, 30, 30, 30)
    desk.rot(1)
    desk.rot(3)
    assert desk.load(0) == desk.batches[0]
    assert desk.load(2) == desk.batches[2]
    assert desk.load(4) == desk.batches[4]
    assert [place.offset for place in desk.log.damages.places] == [1, 3]


def test_neighbours_become_one_place() -> None:
    desk = RottenDesk(30, 30, 30, 30)
    desk.rot(2)
    desk.rot(1)
    desk.load(2)
    desk.load(1)
    assert [(place.offset, place.offset_end) for place in desk.log.damages.places] == [(1, 3)]
    assert desk.load(3) == desk.batches[3]


@pytest.mark.parametrize("is_clean", [True, False])
def test_damage_is_remembered_and_the_log_goes_on_after_a_restart(is_clean: bool) -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(1)
    desk.load(1)
    desk.batches.append(desk.append(b"later"))
    desk.sync()
    desk.restart(clean=is_clean)
    assert [(place.offset, place.offset_end) for place in desk.log.damages.places] == [(1, 2)]
    assert desk.log.log_end == 4
    assert desk.load(0) == desk.batches[0]
    assert desk.load(2) == desk.batches[2] + desk.batches[3]
    desk.append(b"more")


def test_last_batch_that_is_known_to_be_rotten_is_not_cut_by_a_start() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(2)
    desk.load(2)
    desk.restart(clean=False)
    assert desk.log.log_end == 3
    assert isinstance(desk.load(2), Damaged)
    desk.append(b"not at its offset")
    assert desk.log.log_end == 4


def test_bytes_that_were_put_back_are_served_after_a_restart() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(1)
    desk.load(1)
    desk.rot(1)
    desk.restart(clean=True)
    assert desk.log.damage is None
    assert desk.load(0) == b"".join(desk.batches)


def test_lookup_by_time_steps_over_damage() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(1)
    found = desk.log.offset_for_timestamp(1_001)
    assert isinstance(found, TimestampOffset)
    assert found.offset == 2
    desk.rot(2)
    newest = desk.log.offset_of_max_timestamp()
    assert isinstance(newest, TimestampOffset)
    assert newest.offset == 0


def test_retention_takes_damage_with_its_segment_and_forgets_it() -> None:
    desk = RottenDesk(30, 30, 30, segment_bytes=100)
    desk.rot(0)
    desk.load(0)
    desk.store.checkpoint_now(every_log=True)
    desk.log.delete_before(1).run()
    assert desk.log.damage is None
    desk.restart(clean=False)
    assert desk.log.damage is None


def test_repair_ends_the_damage() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(1)
    desk.load(1)
    desk.store.close()
    repair(ROOT, files=desk.disk)
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert desk.offsets(desk.read(0)) == [0, 1, 2]


def test_damage_that_a_repair_has_ended_is_not_believed_although_it_is_still_remembered() -> None:
    desk = RottenDesk(*(300 for _ in range(8)))
    for offset in (1, 4):
        desk.rot(offset)
        desk.load(offset)
    desk.store.close()
    path = f"{desk.log.home.directory}/{DAMAGE_FILE}"
    remembered = desk.disk.content(path)
    repair(ROOT, files=desk.disk)
    # The machine went down when the segment was written anew, and the file that remembers was not removed yet.
    desk.disk.open(path, create=True).write_at(remembered, 0)
    for is_clean in (False, True):
        desk.restart(clean=is_clean)
        assert desk.log.damage is None
        assert desk.offsets(desk.load(0)) == list(range(8))  # type: ignore[arg-type]
        assert desk.load(7, bytes_max=1) == desk.batches[7]
    assert not desk.disk.exists(path)


@pytest.mark.parametrize("segment_bytes", [300, 1 << 20])
@pytest.mark.parametrize("way", ["read", "start", "repair"])
@pytest.mark.parametrize("rotten", [(1,), (1, 3)])
def test_rotten_base_offset_behind_a_rotten_batch_costs_no_batch_that_is_whole(
    rotten: tuple[int, ...], way: str, segment_bytes: int
) -> None:
    desk = RottenDesk(*(30 for _ in range(7)), segment_bytes=segment_bytes)
    for offset in rotten:
        desk.rot(offset)
    # No checksum covers it: the batch is whole, and says that it begins 512 offsets later.
    desk.disk.flip_bit(desk.log.segment_of(2).path, (2 * len(desk.batches[0]) + 6) * 8 + 1)
    if way == "read":
        assert isinstance(desk.load(1), Damage)
    elif way == "start":
        desk.restart(clean=False)
    else:
        desk.store.close()
        repair(ROOT, files=desk.disk)
        desk.restart(clean=False)
    assert desk.log.log_end == 7
    assert desk.log.lost_end is None
    whole = sorted({*range(7)} - {*rotten, 2})
    assert [desk.load(offset, bytes_max=1) for offset in whole] == [desk.batches[offset] for offset in whole]


def test_index_made_anew_reaches_past_damage() -> None:
    desk = RottenDesk(*(30 for _ in range(20)), interval_bytes=64)
    desk.rot(5)
    desk.store.close()
    desk.disk.remove(desk.log.segments[0].prefix + ".index")
    desk.restart(clean=True)
    assert desk.load(10, bytes_max=1) == desk.batches[10]
    assert desk.load(6, bytes_max=1) == desk.batches[6]
    assert isinstance(desk.load(5), Damage | Damaged)


# --- what recovery cuts ----------------------------------------------------------------------------------------------


def test_rotten_last_batch_that_nobody_knew_of_is_cut_and_kept_aside() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(2)
    rotten = desk.disk.content(desk.log.segments[0].path)[-len(desk.batches[2]) :]
    desk.restart(clean=False)
    assert desk.log.log_end == 2
    kept = [path for path in desk.disk.paths() if path.endswith(".cut")]
    assert [desk.disk.content(path) for path in kept] == [rotten]
    assert [report.kept_files for report in verify_stopped(desk)] == [(kept[0].rsplit("/", 1)[1],)]


def test_what_is_kept_aside_is_bounded() -> None:
    desk = RottenDesk(30)
    for _ in range(12):
        desk.batches.append(desk.append(b"x"))
        desk.sync()
        desk.store.checkpoint_now(every_log=True)
        file = desk.disk.open(desk.log.segments[0].path)
        file.write_at(b"torn", file.size())
        desk.restart(clean=False)
    assert len([path for path in desk.disk.paths() if path.endswith(".cut")]) == 8
    assert desk.log.log_end == 13


def test_what_was_cut_last_is_kept_also_where_its_position_has_one_more_digit() -> None:
    desk = RottenDesk(30)
    for place in range(14):
        desk.batches.append(desk.append(b"x"))
        desk.sync()
        desk.store.checkpoint_now(every_log=True)
        file = desk.disk.open(desk.log.segments[0].path)
        position = file.size()
        file.write_at(b"torn %d" % place, position)
        desk.restart(clean=False)
        kept = f"{desk.log.home.directory}/{0:020}-{position}.cut"
        assert desk.disk.content(kept) == b"torn %d" % place
    assert position > 1_000


def test_rotten_last_batch_below_the_checkpoint_is_damage_and_not_cut() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.store.checkpoint_now(every_log=True)
    desk.rot(2)
    # Without its index the last segment is read again from its beginning.
    desk.disk.remove(desk.log.segments[0].prefix + ".index")
    desk.append(b"unsynced")
    desk.restart(clean=False)
    assert (desk.log.log_end, desk.log.damage.offset) == (4, 2)  # type: ignore[union-attr]
    assert isinstance(desk.load(2), Damaged)


def test_deleted_last_segment_is_missed_and_its_offsets_are_not_used_again() -> None:
    desk = RottenDesk(30, 30, segment_bytes=100)
    desk.log.roll()
    desk.sync()
    desk.store.checkpoint_now()
    desk.batches.append(desk.append(b"past the checkpoint"))
    desk.sync()
    desk.disk.remove(desk.log.segments[-1].path)
    desk.disk.crash(CrashMode.KILL)
    desk.restart(clean=False)
    assert desk.log.lost_end is not None
    assert desk.load(1) == desk.batches[1]
    assert isinstance(desk.load(desk.log.log_end), Damaged)
    with pytest.raises(LogDamagedError, match="log repair"):
        desk.append(b"at an offset that was given out")


def test_only_segment_of_a_small_log_is_missed_too() -> None:
    desk = RottenDesk(30)
    desk.store.checkpoint_now()
    desk.disk.remove(desk.log.segments[0].path)
    desk.restart(clean=False)
    with pytest.raises(LogFailedError):
        desk.append(b"x")


def test_repair_of_a_lost_end_goes_on_past_all_that_can_have_been_given_out() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.store.checkpoint_now()
    desk.append(b"not in the checkpoint")
    desk.sync()
    desk.disk.remove(desk.log.segments[0].path)
    desk.restart(clean=False)
    desk.store.close()
    repair(ROOT, files=desk.disk)
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert desk.log.log_end > 4
    desk.append(b"new")


def test_repair_of_a_rotten_end_before_an_empty_segment_leaves_no_problem() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.log.roll()
    desk.sync()
    desk.store.checkpoint_now(every_log=True)
    desk.rot(2)
    desk.store.close()
    repair(ROOT, files=desk.disk)
    assert verify(ROOT, files=desk.disk)[0].problems == ()
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert desk.load(1, bytes_max=1) == desk.batches[1]
    assert desk.log.log_end >= 3
    desk.append(b"new")


def verify_stopped(desk: LogDesk) -> list:  # type: ignore[type-arg]
    desk.store.close()
    return verify(ROOT, files=desk.files)


def test_missing_first_segment_stays_missing_after_the_next_checkpoint() -> None:
    desk = RottenDesk(30, 30, 30, segment_bytes=100)
    desk.store.checkpoint_now(every_log=True)
    desk.disk.remove(desk.log.segments[0].path)
    for is_clean in (False, True, True):
        desk.restart(clean=is_clean)
        assert desk.log.log_start == 0
        assert isinstance(desk.load(0), Damaged)
        assert desk.load(1) == desk.batches[1]
    desk.store.close()
    repair(ROOT, files=desk.disk)
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert desk.log.log_start == 1


def test_truncation_behind_damage_keeps_what_lies_between() -> None:
    desk = RottenDesk(30, 30, 30, 30)
    desk.rot(1)
    desk.load(1)
    desk.store.truncate_log(desk.log, 3)
    assert desk.log.log_end == 3
    assert desk.load(2) == desk.batches[2]
    assert isinstance(desk.load(1), Damaged)


def test_truncation_below_damage_forgets_it() -> None:
    desk = RottenDesk(30, 30, 30)
    desk.rot(2)
    desk.load(2)
    desk.store.truncate_log(desk.log, 1)
    other = desk.append(b"of another length" * 5)
    desk.append(b"and one more")
    desk.sync()
    desk.restart(clean=False)
    assert desk.log.damage is None
    assert desk.load(1, bytes_max=1) == other
