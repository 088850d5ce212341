"""Files that wait under another name before they go."""

from __future__ import annotations

import errno

from penstock.storage.files import retired
from penstock.storage.files.retired import RetiredFiles
from support.storage.faulty_files import FaultyFiles

PATHS = ("/data/1.index", "/data/1.log")


def files_with(*paths: str) -> FaultyFiles:
    files = FaultyFiles()
    files.make_directory("/data")
    for path in paths:
        files.open(path, create=True).write_at(b"x", 0)
    return files


def names(files: FaultyFiles) -> list[str]:
    return files.list_directory("/data")


def test_files_have_another_name_until_their_time_comes() -> None:
    files = files_with(*PATHS)
    kept = RetiredFiles(files)
    kept.keep_files(PATHS, until_ms=100)
    assert names(files) == ["1.index.deleted", "1.log.deleted"]
    assert kept.sweep(99, is_room_wanted=False) == 0
    assert names(files) == ["1.index.deleted", "1.log.deleted"]
    assert kept.sweep(100, is_room_wanted=False) == 1
    assert names(files) == []


def test_only_what_is_due_goes() -> None:
    files = files_with("/data/1.log", "/data/2.log")
    kept = RetiredFiles(files)
    kept.keep_files(["/data/2.log"], until_ms=200)
    kept.keep_files(["/data/1.log"], until_ms=100)
    kept.sweep(150, is_room_wanted=False)
    assert names(files) == ["2.log.deleted"]


def test_everything_goes_where_room_is_wanted() -> None:
    files = files_with(*PATHS)
    kept = RetiredFiles(files)
    kept.keep_files(PATHS, until_ms=100)
    assert kept.sweep(0, is_room_wanted=True) == 1
    assert names(files) == []


def test_write_without_room_makes_the_next_sweep_leave_nothing() -> None:
    files = files_with(*PATHS, "/data/2.log")
    kept = RetiredFiles(files)
    kept.keep_files(PATHS, until_ms=100)
    kept.give_way()
    assert kept.sweep(0, is_room_wanted=False) == 1
    kept.keep_files(["/data/2.log"], until_ms=100)
    assert kept.sweep(0, is_room_wanted=False) == 0, "said once, done once"


def test_what_was_renamed_before_a_failure_goes_all_the_same() -> None:
    files = files_with(*PATHS)
    kept = RetiredFiles(files)
    files.fail_next("rename", errno.EIO)
    try:
        kept.keep_files(PATHS, until_ms=100)
    except OSError:
        files.remove(PATHS[0])
    assert len(kept) == 1
    assert kept.sweep(100, is_room_wanted=False) == 1


def test_more_than_can_be_remembered_go_before_their_time() -> None:
    files = files_with("/data/1.log")
    kept = RetiredFiles(files)
    kept.keep_files(["/data/1.log"], until_ms=1)
    for _ in range(retired.WAITING_MAX):
        kept.keep_files([], until_ms=2)
    assert names(files) == []
    assert len(kept) == retired.WAITING_MAX
