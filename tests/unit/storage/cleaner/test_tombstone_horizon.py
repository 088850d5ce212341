"""Below the horizon deletions are gone: a replica that has not seen them must not go on from there."""

from __future__ import annotations

import pytest

from penstock.storage.log.swap import COMPACTION_FILE
from support.cleaner.cleaning_desk import RULES, CleaningDesk
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash


def aged(desk: CleaningDesk) -> CleaningDesk:
    """Cleaned once, so that tombstones and markers have their date; and it has come."""
    desk.seal()
    assert desk.clean()
    assert desk.log.tombstone_horizon == 0
    desk.store.checkpoint_now(every_log=True)
    desk.clock.advance_ms(RULES.delete_retention_ms)
    return desk


def with_tombstone() -> CleaningDesk:
    desk = CleaningDesk()
    desk.put(b"a")
    desk.put(b"b")
    desk.put(b"a", None)
    desk.put(b"c")
    return aged(desk)


def test_horizon_lies_after_the_last_tombstone_that_is_gone() -> None:
    desk = with_tombstone()
    desk.clean_again()
    assert 2 not in desk.kept()
    assert desk.log.tombstone_horizon == 3


def test_values_that_were_replaced_move_no_horizon() -> None:
    desk = CleaningDesk()
    for _ in range(3):
        desk.put(b"a")
    aged(desk).clean_again()
    assert desk.log.tombstone_horizon == 0


def test_horizon_lies_after_the_last_marker_that_is_gone() -> None:
    desk = CleaningDesk()
    desk.put(b"a", producer_id=1)
    desk.append_marker(1, is_commit=True)
    desk.put(b"a")
    desk.put(b"z", producer_id=1, sequence=1)
    desk.append_marker(1, is_commit=True)
    # The first cleaning takes the records, the second dates the marker that then ends nothing, the third takes it.
    aged(desk).clean_again()
    assert 1 in desk.kept()
    desk.clock.advance_ms(RULES.delete_retention_ms)
    desk.store.checkpoint_now(every_log=True)
    desk.clean_again()
    assert 1 not in desk.kept()
    assert desk.log.tombstone_horizon == 2


@pytest.mark.parametrize("clean", [True, False])
def test_horizon_is_kept_over_a_restart(clean: bool) -> None:
    desk = with_tombstone()
    desk.clean_again()
    desk.restart(clean=clean)
    assert desk.log.tombstone_horizon == 3
    desk.store.checkpoint_now(every_log=True)
    desk.clean_again()
    assert desk.log.tombstone_horizon == 3


@pytest.mark.parametrize("mode", list(CrashMode))
def test_tombstone_is_there_or_the_horizon_is(mode: CrashMode) -> None:
    for steps in range(1_000):
        desk = with_tombstone()
        desk.put(b"other")
        desk.seal()
        files = desk.files
        assert isinstance(files, FaultyFiles)
        files.crash_after(steps)
        try:
            desk.clean()
            is_over = True
        except SimulatedCrash:
            is_over = False
        files.steps_left = -1
        files.crash(mode)
        desk.restart(clean=False)
        assert 2 in desk.kept() or desk.log.tombstone_horizon == 3
        if is_over:
            assert 2 not in desk.kept()
            return
    raise AssertionError("it never came to its end")


def test_horizon_that_nobody_can_read_is_the_end_of_the_log() -> None:
    desk = with_tombstone()
    desk.clean_again()
    assert isinstance(desk.files, FaultyFiles)
    desk.files.flip_bit(f"{desk.log.home.directory}/{COMPACTION_FILE}", 8 * 20)
    desk.restart(clean=False)
    assert desk.log.tombstone_horizon == desk.log.log_end


def test_cut_takes_the_horizon_along() -> None:
    desk = with_tombstone()
    desk.clean_again()
    desk.store.truncate_log(desk.log, 1)
    assert desk.log.tombstone_horizon == desk.log.log_end
