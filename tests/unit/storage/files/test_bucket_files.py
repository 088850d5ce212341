"""Bucket files of a schedule: what a checkpoint names is there after a crash, and nothing else is."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from penstock.domain.schedule.buckets import ENTRY_BYTES
from penstock.domain.schedule.commands import BucketName, BucketWrite
from penstock.domain.schedule.records import StoredBucket
from penstock.storage.files import MemoryFiles
from penstock.storage.files.buckets import (
    BLOCK_BYTES,
    CHECKPOINT_FILE,
    UNSYNCED_MAX,
    BucketDamagedError,
    BucketFiles,
)
from penstock.storage.files.small import write_small_file
from support.storage.faulty_files import CrashMode, FaultyFiles

DIRECTORY = "/data"


def entries(count: int, fill: int) -> bytes:
    return bytes([fill]) * (count * ENTRY_BYTES)


def name_of(number: int) -> BucketName:
    return BucketName(number, 1, 1_000 + number)


def stored(number: int, count: int) -> StoredBucket:
    return StoredBucket(number, 1, 1_000 + number, count)


def opened(files: MemoryFiles | FaultyFiles) -> BucketFiles:
    buckets = BucketFiles(files, DIRECTORY)
    assert buckets.read_checkpoint() is not None
    return buckets


def bucket_names(files: MemoryFiles | FaultyFiles) -> list[str]:
    return [name for name in files.list_directory(DIRECTORY) if name.startswith("bucket-")]


def test_writes_follow_each_other_and_are_read_back() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    buckets = BucketFiles(files, DIRECTORY)
    buckets.append([BucketWrite(name_of(1), entries(2, 1)), BucketWrite(name_of(2), entries(1, 2))])
    buckets.append([BucketWrite(name_of(1), entries(3, 3))])
    assert buckets.read(name_of(1), position=0, size=1_000) == entries(2, 1) + entries(3, 3)
    assert buckets.read(name_of(1), position=0, size=3 * ENTRY_BYTES) == entries(2, 1) + entries(1, 3)
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
    buckets.save_checkpoint(b"x")
    assert not opened(files).adopt([stored(1, 3)])
    assert not opened(files).adopt([stored(1, 2), stored(2, 1)])
    assert opened(files).adopt([stored(1, 2), stored(2, 0)])
    files.open(f"{DIRECTORY}/bucket-1-1-1001").truncate(2 * ENTRY_BYTES - 1)
    assert not opened(files).adopt([stored(1, 2)])


def test_flipped_bit_is_never_handed_out() -> None:
    """Wherever it is: in a whole block, in the last one, in what was there at the checkpoint or came behind it."""
    count = 2 * BLOCK_BYTES // ENTRY_BYTES + 5
    for seed in range(60):
        random = Random(seed)
        files = FaultyFiles(random)
        files.make_root(DIRECTORY)
        buckets = BucketFiles(files, DIRECTORY)
        data = random.randbytes(count * ENTRY_BYTES)
        first = random.randrange(count) * ENTRY_BYTES
        buckets.append([BucketWrite(name_of(1), data[:first])])
        buckets.save_checkpoint(b"x")
        if seed % 2:
            buckets = opened(files)
            assert buckets.adopt([stored(1, first // ENTRY_BYTES)])
        buckets.append([BucketWrite(name_of(1), data[first:])])
        bit = random.randrange(len(data) * 8)
        files.flip_bit(f"{DIRECTORY}/bucket-1-1-1001", bit)
        for position in range(0, len(data), BLOCK_BYTES):
            if position <= bit // 8 < position + BLOCK_BYTES:
                with pytest.raises(BucketDamagedError):
                    buckets.read(name_of(1), position=position, size=BLOCK_BYTES)
            else:
                expected = data[position : position + BLOCK_BYTES]
                assert buckets.read(name_of(1), position=position, size=BLOCK_BYTES) == expected
        with pytest.raises(BucketDamagedError):
            buckets.read(name_of(1), position=0, size=len(data))


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_file_that_cannot_be_read_for_a_moment_is_not_damaged(number: int) -> None:
    files = FaultyFiles(Random(1))
    files.make_root(DIRECTORY)
    buckets = BucketFiles(files, DIRECTORY)
    buckets.append([BucketWrite(name_of(1), entries(2, 1))])
    buckets.save_checkpoint(b"x")
    files.fail_next("open", number)
    if number == errno.EMFILE:
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            buckets.read(name_of(1), position=0, size=100)
        assert not isinstance(caught.value, BucketDamagedError)
    assert buckets.read(name_of(1), position=0, size=100) == entries(2, 1)


def test_sector_or_file_that_is_gone_is_damage() -> None:
    files = FaultyFiles(Random(1))
    files.make_root(DIRECTORY)
    buckets = BucketFiles(files, DIRECTORY)
    buckets.append([BucketWrite(name_of(1), entries(2, 1))])
    buckets.save_checkpoint(b"x")
    files.fail_next("open", errno.EIO)
    files.fail_next("open", errno.EIO)
    with pytest.raises(BucketDamagedError):
        buckets.read(name_of(1), position=0, size=100)
    files.remove(f"{DIRECTORY}/bucket-1-1-1001")
    with pytest.raises(BucketDamagedError):
        buckets.read(name_of(1), position=0, size=100)
    with pytest.raises(FileNotFoundError):
        buckets.read(name_of(2), position=0, size=100)


def test_checkpoint_of_the_time_without_checksums_is_not_believed() -> None:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    write_small_file(files, DIRECTORY, CHECKPOINT_FILE, b"PSSCHED1", b"x")
    assert BucketFiles(files, DIRECTORY).read_checkpoint() is None


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
