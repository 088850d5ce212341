"""Bucket files of a schedule, beside its log: when its pending messages are due, 16 bytes for each.

    <partition>/bucket-<number>-<level>-<index>    entries, as they came
    <partition>/schedule-checkpoint                what the schedule knew at one offset of its log, and which files go
                                                   with it, each with as many entries as count, and their checksums

Nothing is handed out that is not what was written: a flipped bit would release a message at another time, or another
message. Each block of a file has its checksum; they are in memory, and in the checkpoint, so that files are only ever
appended to and a torn write harms nothing that counts.

Nothing here is more than what the log says: files that do not go with the checkpoint are removed at the start, and
without a checkpoint everything is made anew. Blocking, all of it, and one call at a time: whoever owns it sees to that.
An OSError of a write means that nobody knows what the files hold: start anew from the last checkpoint. One of a read
may be over a moment later; BucketDamagedError is not, and all has to be made anew.
"""

from __future__ import annotations

import errno
import re
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.base.checksum import crc32c
from penstock.domain.schedule.buckets import ENTRY_BYTES
from penstock.domain.schedule.commands import BucketName, BucketWrite
from penstock.domain.schedule.records import StoredBucket
from penstock.storage.files.protocols import File, Files
from penstock.storage.files.small import read_small_file, write_fully, write_small_file

CHECKPOINT_FILE: Final = "schedule-checkpoint"
# With 1 at the end there were no checksums: nobody can say whether files of that time are whole.
_MAGIC: Final = b"PSSCHED2"
# What has a checksum of its own, and is read as a whole.
BLOCK_BYTES: Final = 4096 * ENTRY_BYTES
_NAME: Final = re.compile(r"bucket-(\d+)-(\d+)-(\d+)")
# Files that are open because they are not synced yet. An error of the disk is told to those who had the file open when
# it came, so they stay open until then; more than this are synced early.
UNSYNCED_MAX: Final = 64
# A file or a sector that is gone. Everything else (no more handles, no memory) is not about the file.
_NOT_THERE: Final = (errno.EIO, errno.ENOENT)


class BucketDamagedError(OSError):
    """A file does not hold what was written to it, now and when it was read once more."""


class _StoredSums(msgspec.Struct, frozen=True, array_like=True):
    number: int
    size: int
    blocks: bytes
    tail: int


class _StoredCheckpoint(msgspec.Struct, frozen=True, array_like=True):
    sums: tuple[_StoredSums, ...]
    payload: bytes


_STORED: Final = msgspec.msgpack.Decoder(_StoredCheckpoint)


class BlockSums:
    """What a file holds, as far as it counts: its size, and a checksum of each block."""

    __slots__ = ("_blocks", "_tail", "size")

    def __init__(self, size: int = 0, blocks: bytes = b"", tail: int = 0) -> None:
        self.size = size
        # Of whole blocks; and of the last one, as far as it is filled.
        self._blocks = array("I", blocks)
        self._tail = tail

    def add(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            some = view[: BLOCK_BYTES - self.size % BLOCK_BYTES]
            self._tail = crc32c(some, self._tail)
            self.size += len(some)
            if self.size % BLOCK_BYTES == 0:
                self._blocks.append(self._tail)
                self._tail = 0
            view = view[len(some) :]

    def end_of(self, position: int, size: int) -> int:
        """Of the blocks that hold so many bytes from there on."""
        return min(-(-(position + size) // BLOCK_BYTES) * BLOCK_BYTES, self.size)

    def holds(self, data: bytes, position: int) -> bool:
        """Whether these are the blocks that begin there."""
        view = memoryview(data)
        for place in range(0, len(view), BLOCK_BYTES):
            block = (position + place) // BLOCK_BYTES
            expected = self._blocks[block] if block < len(self._blocks) else self._tail
            if crc32c(view[place : place + BLOCK_BYTES]) != expected:
                return False
        return True

    def store(self, number: int) -> _StoredSums:
        return _StoredSums(number, self.size, self._blocks.tobytes(), self._tail)


class BucketFiles:
    __slots__ = ("_directory", "_files", "_has_new_names", "_stored", "_sums", "_unsynced")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        # By the number of the bucket; and as the checkpoint has them that was read.
        self._sums: dict[int, BlockSums] = {}
        self._stored: dict[int, BlockSums] = {}
        self._unsynced: dict[int, File] = {}
        self._has_new_names = False

    # At a start

    def read_checkpoint(self) -> bytes | None:
        """None: there is none, or none that can be believed."""
        data = read_small_file(self._files, self._directory, CHECKPOINT_FILE, _MAGIC)
        if data is None:
            return None
        try:
            stored = _STORED.decode(data)
        except msgspec.DecodeError:
            return None
        self._stored = {each.number: BlockSums(each.size, each.blocks, each.tail) for each in stored.sums}
        return stored.payload

    def adopt(self, stored: Iterable[StoredBucket]) -> bool:
        """Files as the checkpoint that was read knows them: what is behind that is cut off, and others are removed.
        False: one of them is too short, and nothing was changed."""
        counts = {each.number: each for each in stored}
        names = {number: _file_name(BucketName(each.number, each.level, each.index)) for number, each in counts.items()}
        sizes = self._files.file_sizes(self._directory)
        sums = {number: self._stored.get(number, BlockSums()) for number in counts}
        if any(sums[number].size != each.count * ENTRY_BYTES for number, each in counts.items()):
            return False
        if any(sizes.get(names[number], 0) < sums[number].size for number in counts):
            return False
        self._reset()
        for name in sizes:
            if _NAME.fullmatch(name) and name not in names.values():
                self._files.remove(f"{self._directory}/{name}")
        for number in counts:
            if sizes.get(names[number], 0) > sums[number].size:
                file = self._files.open(f"{self._directory}/{names[number]}")
                file.truncate(sums[number].size)
                self._unsynced[number] = file
        self._sums = sums
        return True

    def clear(self) -> None:
        """The checkpoint goes first: without its files it must not be believed."""
        self._reset()
        if self._files.exists(f"{self._directory}/{CHECKPOINT_FILE}"):
            self._files.remove(f"{self._directory}/{CHECKPOINT_FILE}")
            self._files.sync_directory(self._directory)
        for name in self._files.file_sizes(self._directory):
            if _NAME.fullmatch(name):
                self._files.remove(f"{self._directory}/{name}")

    def _reset(self) -> None:
        self._sums.clear()
        self._unsynced.clear()
        self._has_new_names = False

    # Live

    def append(self, writes: Sequence[BucketWrite]) -> None:
        """Behind what each file has. Not synced."""
        for write in writes:
            number = write.name.number
            file = self._unsynced.get(number)
            if file is None:
                self._has_new_names |= number not in self._sums
                file = self._files.open(self._path(write.name), create=True)
                self._unsynced[number] = file
            sums = self._sums.setdefault(number, BlockSums())
            write_fully(file, write.entries, sums.size)
            sums.add(write.entries)
            if len(self._unsynced) >= UNSYNCED_MAX:
                self._sync_files()

    def read(self, name: BucketName, *, position: int, size: int) -> bytes:
        """Bytes of a file from the beginning of a block on, as they were written; shorter only at its end.
        FileNotFoundError: its time came, and it was removed."""
        assert position % BLOCK_BYTES == 0, position
        sums = self._sums.get(name.number)
        if sums is None:
            raise FileNotFoundError(errno.ENOENT, "bucket is over", self._path(name))
        end = sums.end_of(position, size)
        if end <= position:
            return b""
        # Once more: what went wrong on the way from the disk need not be wrong on the disk.
        for _attempt in range(2):
            data = self._read_once(name, position, end - position)
            if data is not None and len(data) == end - position and sums.holds(data, position):
                return data[:size]
        raise BucketDamagedError(f"{self._path(name)} is damaged between byte {position} and byte {end}")

    def _read_once(self, name: BucketName, position: int, size: int) -> bytes | None:
        """None: the disk does not have it."""
        try:
            file = self._unsynced.get(name.number) or self._files.open(self._path(name))
            return file.read_at(position, size)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise

    def save_checkpoint(self, payload: bytes) -> None:
        """Everything written so far is durable, then the checkpoint is."""
        self._sync_files()
        if self._has_new_names:
            self._files.sync_directory(self._directory)
            self._has_new_names = False
        sums = tuple(sums.store(number) for number, sums in self._sums.items())
        whole = msgspec.msgpack.encode(_StoredCheckpoint(sums, payload))
        write_small_file(self._files, self._directory, CHECKPOINT_FILE, _MAGIC, whole)

    def remove_others(self, stored: Iterable[StoredBucket], *, below: int) -> None:
        """After the checkpoint: files with lower numbers that it does not name."""
        named = {each.number for each in stored}
        for name in self._files.file_sizes(self._directory):
            found = _NAME.fullmatch(name)
            if found is None or int(found[1]) >= below or int(found[1]) in named:
                continue
            self._files.remove(f"{self._directory}/{name}")
            self._sums.pop(int(found[1]), None)
            self._unsynced.pop(int(found[1]), None)

    def _sync_files(self) -> None:
        for file in self._unsynced.values():
            file.sync()
        self._unsynced.clear()

    def _path(self, name: BucketName) -> str:
        return f"{self._directory}/{_file_name(name)}"


def _file_name(name: BucketName) -> str:
    return f"bucket-{name.number}-{name.level}-{name.index}"
