"""The memory engine of the file seam: `penstock serve --memory`, and what the tests build their faults on.

A file is a bytearray, a directory a set of names. Nothing outlives the process, so a sync has nothing to do.
"""

from __future__ import annotations

import errno
import os

from penstock.storage.files.protocols import WritableBytes

# As much as it holds if nobody says otherwise: half of what a small container has.
BYTES_MAX_DEFAULT = 1 << 30


class MemoryFile:
    """One file; all who open the same path share it."""

    __slots__ = ("__weakref__", "_files", "content", "path")

    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files = files
        self.path = path
        self.content = bytearray()

    def write_at(self, data: WritableBytes, position: int) -> int:
        end = position + len(data)
        content = self.content
        growth = end - len(content)
        if growth > 0:
            self._files.take_bytes(growth)
            if position > len(content):
                content.extend(bytes(position - len(content)))
        content[position:end] = data
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self.content)[position : position + size])

    def read_cached_at(self, position: int, size: int) -> bytes | None:
        data = bytes(memoryview(self.content)[position : position + size])
        return data if len(data) == size else None

    def truncate(self, size: int) -> None:
        growth = size - len(self.content)
        self._files.take_bytes(growth)
        if growth > 0:
            self.content.extend(bytes(growth))
        else:
            del self.content[size:]

    def size(self) -> int:
        return len(self.content)

    def sync(self) -> None:
        return None

    def begin_writeback(self, position: int, size: int) -> None:
        pass

    def drop_cache(self) -> None:
        return None

    def close(self) -> None:
        return None


class MemoryLock:
    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        self._files.locked_paths.discard(self._path)


class MemoryFiles:
    is_durable = False
    has_writeback = False

    def __init__(self, *, bytes_max: int = BYTES_MAX_DEFAULT) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.locked_paths: set[str] = set()
        self._contents: dict[str, MemoryFile] = {}
        self._directories: dict[str, set[str]] = {}

    def take_bytes(self, count: int) -> None:
        """Room for `count` more bytes, or back that many if negative."""
        if count > 0 and self.bytes_used + count > self.bytes_max:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.bytes_used += count

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        file = self._contents.get(path)
        if file is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            file = MemoryFile(self, path)
            self._link(path, file)
        return file

    def open_uncached(self, path: str) -> MemoryFile:
        return self.open(path)

    def exists(self, path: str) -> bool:
        return path in self._contents or path in self._directories

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directories.get(path, ()))

    def file_sizes(self, path: str) -> dict[str, int]:
        found = ((name, self._contents.get(f"{path}/{name}")) for name in self.list_directory(path))
        return {name: file.size() for name, file in found if file is not None}

    def make_directory(self, path: str) -> None:
        while path and path not in self._directories:
            self._directories[path] = set()
            parent, _, name = path.rpartition("/")
            if parent in self._directories:
                self._directories[parent].add(name)
            elif parent:
                self.make_directory(parent)
                self._directories[parent].add(name)
            path = parent

    def make_root(self, path: str) -> None:
        self.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        if source in self._directories:
            self._rename_directory(source, target)
            return
        file = self._contents.get(source)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._unlink(source)
        self.remove(target)
        file.path = target
        self._link(target, file)

    def remove(self, path: str) -> None:
        file = self._contents.get(path)
        if file is not None:
            self._unlink(path)
            self.take_bytes(-file.size())

    def remove_tree(self, path: str) -> None:
        for name in self.list_directory(path):
            self.remove_tree(f"{path}/{name}")
        self.remove(path)
        if self._directories.pop(path, None) is not None:
            self._forget_name(path)

    def sync_directory(self, _path: str) -> None:
        return None

    def whole_disk_sync(self, _root: str) -> None:
        return None

    def is_read_only(self, _root: str) -> bool:
        return False

    def free_bytes(self, _root: str) -> int:
        return self.bytes_max - self.bytes_used

    def lock(self, path: str) -> MemoryLock | None:
        if path in self.locked_paths:
            return None
        self.locked_paths.add(path)
        return MemoryLock(self, path)

    def _link(self, path: str, file: MemoryFile) -> None:
        directory, _, name = path.rpartition("/")
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        self._directories[directory].add(name)
        self._contents[path] = file

    def _unlink(self, path: str) -> None:
        del self._contents[path]
        self._forget_name(path)

    def _forget_name(self, path: str) -> None:
        directory, _, name = path.rpartition("/")
        if directory in self._directories:
            self._directories[directory].discard(name)

    def _rename_directory(self, source: str, target: str) -> None:
        names = self._directories[source]
        self.make_directory(target)
        for name in sorted(names):
            self.rename(f"{source}/{name}", f"{target}/{name}")
        del self._directories[source]
        self._forget_name(source)
