"""A disk in memory that grows old: bits flip, and reads of some files fail, for a while or for good."""

from __future__ import annotations

import errno
import os

from penstock.storage.files.memory import MemoryFile, MemoryFiles


class WeakFile(MemoryFile):
    __slots__ = ("disk",)

    disk: WeakDisk

    def read_at(self, position: int, size: int) -> bytes:
        self.disk.maybe_fail(self.path)
        return super().read_at(position, size)

    def read_cached_at(self, position: int, size: int) -> bytes | None:
        # Whoever asks the cache first gets the error from the disk itself.
        return None if self.disk.is_failing(self.path) else super().read_cached_at(position, size)


class WeakDisk(MemoryFiles):
    def __init__(self) -> None:
        super().__init__()
        self.failed_count = 0
        self._failing: list[tuple[str, int, int]] = []

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if create and path not in self._contents:
            file = WeakFile(self, path)
            file.disk = self
            self._link(path, file)
            return file
        return super().open(path)

    def fail_reads(self, part: str, number: int = errno.EIO, *, count: int = 1 << 30) -> None:
        """The next `count` reads of files with that in their path."""
        self._failing.append((part, number, count))

    def heal(self) -> None:
        self._failing.clear()

    def is_failing(self, path: str) -> bool:
        return any(part in path for part, _number, _count in self._failing)

    def maybe_fail(self, path: str) -> None:
        for place, (part, number, count) in enumerate(self._failing):
            if part in path:
                self.failed_count += 1
                self._failing[place : place + 1] = [(part, number, count - 1)] if count > 1 else []
                raise OSError(number, os.strerror(number), path)

    def paths(self, part: str) -> list[str]:
        return sorted(path for path in self._contents if part in path)

    def flip_bit(self, path: str, bit: int) -> None:
        self._contents[path].content[bit // 8] ^= 1 << bit % 8
