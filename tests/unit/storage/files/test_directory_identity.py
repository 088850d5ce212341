from __future__ import annotations

import pytest

from penstock.storage.errors import DataDirectoryError
from penstock.storage.files.identity import (
    IDENTITY_FILE,
    DirectoryIdentity,
    read_identity,
    write_identity,
)
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash

ROOT = "/data"
FRESH = DirectoryIdentity("directory", "cluster", 1)


def directory() -> FaultyFiles:
    files = FaultyFiles()
    files.make_root(ROOT)
    return files


def test_directory_without_one_is_of_no_node() -> None:
    assert read_identity(directory(), ROOT) is None


def test_life_is_a_revision_that_was_acted_on() -> None:
    identity = FRESH.act_on(5).begin_life((3, 9), "boot")
    assert (identity.broker_epochs, identity.boot_id, identity.metadata_revision) == ((3, 9), "boot", 9)


def test_revision_acted_on_never_falls() -> None:
    assert FRESH.act_on(7).act_on(3).metadata_revision == 7


def test_everything_written_is_read() -> None:
    files = directory()
    identity = DirectoryIdentity("directory", "cluster", 3, (3, 4), "boot", metadata_revision=12)
    write_identity(files, ROOT, identity)
    assert read_identity(files, ROOT) == identity


def test_damaged_identity_is_told_and_not_taken_for_none() -> None:
    files = directory()
    write_identity(files, ROOT, FRESH)
    files.flip_bit(f"{ROOT}/{IDENTITY_FILE}", 8 * 20)
    with pytest.raises(DataDirectoryError, match="identity is damaged"):
        read_identity(files, ROOT)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_crash_leaves_the_identity_before_or_after(mode: CrashMode) -> None:
    before, after = FRESH.begin_life((1,), "boot"), FRESH.begin_life((1, 2), "boot")
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
