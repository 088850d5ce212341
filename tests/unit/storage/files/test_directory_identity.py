from __future__ import annotations

import pytest

from penstock.storage.errors import DataDirectoryError
from penstock.storage.files.identity import (
    IDENTITY_FILE,
    DirectoryIdentity,
    ensure_identity,
    read_identity,
    write_identity,
)
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash

ROOT = "/data"
ONE, OTHER = bytes(16), bytes([1]) * 16


def directory() -> FaultyFiles:
    files = FaultyFiles()
    files.make_root(ROOT)
    return files


def test_directory_keeps_its_number_whatever_is_offered_later() -> None:
    files = directory()
    assert read_identity(files, ROOT) is None
    assert ensure_identity(files, ROOT, ONE).directory_id == ONE
    files.crash(CrashMode.LOST)
    files.locked.clear()
    assert ensure_identity(files, ROOT, OTHER).directory_id == ONE


def test_last_two_lives_are_known() -> None:
    identity = DirectoryIdentity(ONE)
    for epoch in (5, 9, 7):
        identity = identity.begin_life(epoch, "boot")
    assert identity.broker_epochs == (9, 7)


def test_clean_stop_holds_for_the_next_life_only() -> None:
    identity = DirectoryIdentity(ONE).begin_life(1, "first").stop_cleanly()
    assert identity.was_stopped_cleanly
    identity = identity.begin_life(2, "second")
    assert (identity.was_stopped_cleanly, identity.boot_id) == (False, "second")


def test_revision_acted_on_never_falls() -> None:
    assert DirectoryIdentity(ONE).act_on(7).act_on(3).metadata_revision == 7


def test_everything_written_is_read() -> None:
    files = directory()
    identity = DirectoryIdentity(ONE, (3, 4), "boot", was_stopped_cleanly=True, metadata_revision=12)
    write_identity(files, ROOT, identity)
    assert read_identity(files, ROOT) == identity


def test_damaged_identity_is_told_and_not_replaced() -> None:
    files = directory()
    ensure_identity(files, ROOT, ONE)
    files.flip_bit(f"{ROOT}/{IDENTITY_FILE}", 8 * 20)
    with pytest.raises(DataDirectoryError, match="identity is damaged"):
        ensure_identity(files, ROOT, OTHER)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_crash_leaves_the_identity_before_or_after(mode: CrashMode) -> None:
    before, after = DirectoryIdentity(ONE, (1,)), DirectoryIdentity(ONE, (1, 2))
    for steps in range(100):
        files = directory()
        write_identity(files, ROOT, before)
        files.crash_after(steps)
        try:
            write_identity(files, ROOT, after)
            is_over = True
        except SimulatedCrash:
            is_over = False
        files.steps_left = -1
        files.crash(mode)
        assert read_identity(files, ROOT) in ((after,) if is_over else (before, after))
        if is_over:
            return
    raise AssertionError("it never came to its end")
