"""Bucket files of a schedule, beside its log: when its pending messages are due, 16 bytes for each.

    <partition>/bucket-<number>-<level>-<index>    entries, as they came
    <partition>/schedule-checkpoint                what the schedule knew at one offset of its log, and which files go
                                                   with it, each with as many entries as count

Nothing here is more than what the log says: files that do not go with the checkpoint are removed at the start, and
without a checkpoint everything is made anew. Blocking, all of it, and one call at a time: whoever owns it sees to that.
An OSError means that nobody knows what the files hold: start anew from the last checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.domain.schedule_buckets import ENTRY_BYTES
from penstock.domain.schedule_commands import BucketName, BucketWrite
from penstock.domain.schedule_records import StoredBucket
from penstock.storage.file_protocols import File, Files
from penstock.storage.small_file import read_small_file, write_fully, write_small_file

CHECKPOINT_FILE: Final = "schedule-checkpoint"
_MAGIC: Final = b"PSSCHED1"
_NAME: Final = re.compile(r"bucket-(\d+)-(\d+)-(\d+)")
# Files that are open because they are not synced yet. An error of the disk is told to those who had the file open when
# it came, so they stay open until then; more than this are synced early.
UNSYNCED_MAX: Final = 64


class BucketFiles:
    __slots__ = ("_directory", "_files", "_has_new_names", "_sizes", "_unsynced")

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        # In bytes, by the number of the bucket.
        self._sizes: dict[int, int] = {}
        self._unsynced: dict[int, File] = {}
        self._has_new_names = False

    # At a start

    def read_checkpoint(self) -> bytes | None:
        """None: there is none, or none that can be believed."""
        return read_small_file(self._files, self._directory, CHECKPOINT_FILE, _MAGIC)

    def adopt(self, stored: Iterable[StoredBucket]) -> bool:
        """Files as the checkpoint knows them: what is behind that is cut off, and others are removed. False: one of
        them is not whole, and nothing was changed."""
        counts = {each.number: each for each in stored}
        names = {number: _file_name(BucketName(each.number, each.level, each.index)) for number, each in counts.items()}
        sizes = self._files.file_sizes(self._directory)
        if any(
            sizes.get(names[number], -1) < each.count * ENTRY_BYTES for number, each in counts.items() if each.count
        ):
            return False
        self._reset()
        for name in sizes:
            if _NAME.fullmatch(name) and name not in names.values():
                self._files.remove(f"{self._directory}/{name}")
        for number, each in counts.items():
            size = each.count * ENTRY_BYTES
            if sizes.get(names[number], 0) > size:
                file = self._files.open(f"{self._directory}/{names[number]}")
                file.truncate(size)
                self._unsynced[number] = file
            self._sizes[number] = size
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
        self._sizes.clear()
        self._unsynced.clear()
        self._has_new_names = False

    # Live

    def append(self, writes: Sequence[BucketWrite]) -> None:
        """Behind what each file has. Not synced."""
        for write in writes:
            number = write.name.number
            file = self._unsynced.get(number)
            if file is None:
                self._has_new_names |= number not in self._sizes
                file = self._files.open(self._path(write.name), create=True)
                self._unsynced[number] = file
            position = self._sizes.get(number, 0)
            write_fully(file, write.entries, position)
            self._sizes[number] = position + len(write.entries)
            if len(self._unsynced) >= UNSYNCED_MAX:
                self._sync_files()

    def read(self, name: BucketName, *, position: int, size: int) -> bytes:
        """Bytes of a file; shorter only at its end."""
        file = self._unsynced.get(name.number)
        if file is None:
            file = self._files.open(self._path(name))
        return file.read_at(position, size)

    def save_checkpoint(self, payload: bytes) -> None:
        """Everything written so far is durable, then the checkpoint is."""
        self._sync_files()
        if self._has_new_names:
            self._files.sync_directory(self._directory)
            self._has_new_names = False
        write_small_file(self._files, self._directory, CHECKPOINT_FILE, _MAGIC, payload)

    def remove_others(self, stored: Iterable[StoredBucket], *, below: int) -> None:
        """After the checkpoint: files with lower numbers that it does not name."""
        named = {each.number for each in stored}
        for name in self._files.file_sizes(self._directory):
            found = _NAME.fullmatch(name)
            if found is None or int(found[1]) >= below or int(found[1]) in named:
                continue
            self._files.remove(f"{self._directory}/{name}")
            self._sizes.pop(int(found[1]), None)
            self._unsynced.pop(int(found[1]), None)

    def _sync_files(self) -> None:
        for file in self._unsynced.values():
            file.sync()
        self._unsynced.clear()

    def _path(self, name: BucketName) -> str:
        return f"{self._directory}/{_file_name(name)}"


def _file_name(name: BucketName) -> str:
    return f"bucket-{name.number}-{name.level}-{name.index}"
