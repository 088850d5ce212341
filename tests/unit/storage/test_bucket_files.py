"""Bucket files of a schedule: what a checkpoint names is there after a crash, and nothing else is."""

from __future__ import annotations

from random import Random

import pytest

from penstock.domain.schedule_buckets import ENTRY_BYTES
from penstock.domain.schedule_commands import BucketName, BucketWrite
from penstock.domain.schedule_records import StoredBucket
from penstock.storage.bucket_files import CHECKPOINT_FILE, UNSYNCED_MAX, BucketFiles
from penstock.storage.files import MemoryFiles
from support.faulty_files import CrashMode, FaultyFiles

DIRECTORY = "/data"


def entries(count: int, fill: int) -> bytes:
    return bytes([fill]) * (count * ENTRY_BYTES)


def name_of(number: int) -> BucketName:
    return BucketName(number, 1, 1_000 + number)


def stored(number: int, count: int) -> StoredBucket:
    return StoredBucket(number, 1, 1_000 + number, count)


def bucket_names(files: MemoryFiles | FaultyFiles) -> list[str]:
    return [name for name in files.list_directory(DIRECTORY) if name.startswith("bucket-")]


def test_writes_follow_each_other_and_are_read_back() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    buckets = BucketFiles(files, DIRECTORY)
    buckets.append([BucketWrite(name_of(1), entries(2, 1)), BucketWrite(name_of(2), entries(1, 2))])
    buckets.append([BucketWrite(name_of(1), entries(3, 3))])
    assert buckets.read(name_of(1), position=ENTRY_BYTES, size=1_000) == entries(1, 1) + entries(3, 3)
    assert buckets.read(name_of(2), position=0, size=ENTRY_BYTES) == entries(1, 2)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_crash_keeps_what_the_checkpoint_names(mode: CrashMode) -> None:
    for seed in range(20):
        files = FaultyFiles(Random(seed))
        files.make_root(DIRECTORY)
        buckets = BucketFiles(files, DIRECTORY)
        count = UNSYNCED_MAX + 5
        buckets.append([BucketWrite(name_of(number), entries(600, number)) for number in range(count)])
        buckets.save_checkpoint(b"first")
        buckets.append([BucketWrite(name_of(number), entries(7, 255)) for number in range(0, count + 3, 2)])
        files.crash(mode)
        buckets = BucketFiles(files, DIRECTORY)
        assert buckets.read_checkpoint() == b"first"
        assert buckets.adopt([stored(number, 600) for number in range(count)])
        assert len(bucket_names(files)) == count
        # What comes now goes behind what counts, whatever the crash had left there.
        buckets.append([BucketWrite(name_of(0), entries(1, 9))])
        assert buckets.read(name_of(0), position=0, size=10**6) == entries(600, 0) + entries(1, 9)


def test_file_that_is_too_short_is_not_adopted() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    buckets = BucketFiles(files, DIRECTORY)
    buckets.append([BucketWrite(name_of(1), entries(2, 1))])
    assert not BucketFiles(files, DIRECTORY).adopt([stored(1, 3)])
    assert not BucketFiles(files, DIRECTORY).adopt([stored(1, 2), stored(2, 1)])
    assert BucketFiles(files, DIRECTORY).adopt([stored(1, 2), stored(2, 0)])


def test_nothing_is_left_when_all_is_made_anew() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    files.open(f"{DIRECTORY}/00000000000000000000.log", create=True)
    buckets = BucketFiles(files, DIRECTORY)
    buckets.append([BucketWrite(name_of(1), entries(2, 1))])
    buckets.save_checkpoint(b"x")
    buckets.clear()
    assert files.list_directory(DIRECTORY) == ["00000000000000000000.log"]
    assert buckets.read_checkpoint() is None


def test_only_older_files_that_are_not_named_go() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    buckets = BucketFiles(files, DIRECTORY)
    buckets.append([BucketWrite(name_of(number), entries(1, 1)) for number in range(1, 6)])
    buckets.save_checkpoint(b"x")
    buckets.remove_others([stored(2, 1)], below=4)
    assert bucket_names(files) == ["bucket-2-1-1002", "bucket-4-1-1004", "bucket-5-1-1005"]
    assert CHECKPOINT_FILE in files.list_directory(DIRECTORY)
