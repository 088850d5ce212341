"""The directory engine of the file seam: real files, one system call a method.

Log data is never mapped into memory: an I/O error on a mapped page is a SIGBUS, which ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import stat
from collections.abc import Callable

from penstock.storage.files.buffers import ReadBuffers
from penstock.storage.files.protocols import WritableBytes

# Linux' errors for "this file system or file cannot do that", after which the blocking way is taken.
_NOT_NOW = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL})
# Before Linux 5.8 syncfs returned 0 although writeback had failed, so it proves nothing there.
_SYNCFS_REPORTS_ERRORS_SINCE = (5, 8)
# What every disk of today takes as the unit of a read past the cache.
_BLOCK_BYTES = 4096
# As much as a scan of a log reads at once, and a block at either end.
_DIRECT_BYTES = (1 << 20) + 2 * _BLOCK_BYTES
_read_buffers = ReadBuffers()
# Linux: "begin to write the dirty pages of this range", without waiting for them and without a journal commit.
_SYNC_FILE_RANGE_WRITE = 2


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


_sync_file_range = _find_sync_file_range()


class DirectoryFile:
    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def write_at(self, data: WritableBytes, position: int) -> int:
        return os.pwrite(self._descriptor, data, position)

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing:
            data = os.pread(self._descriptor, missing, position + size - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def read_cached_at(self, position: int, size: int) -> memoryview | None:
        buffer = _read_buffers.take(size)
        try:
            count = os.preadv(self._descriptor, [buffer], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _NOT_NOW:
                return None
            raise
        # Part of it is in memory: the caller asks again in a thread, rather than serving half now.
        return buffer if count == size else None

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def begin_writeback(self, position: int, size: int) -> None:
        assert _sync_file_range is not None, "has_writeback says so"
        # The descriptor may have been closed meanwhile, or the file system cannot do it: the sync does it then.
        _sync_file_range(self._descriptor, position, size, _SYNC_FILE_RANGE_WRITE)

    def drop_cache(self) -> None:
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class DirectFile(DirectoryFile):
    """Reads past the page cache (O_DIRECT): what the disk gives out, and no page of anybody is pushed out for it."""

    __slots__ = ("_buffer",)

    def __init__(self, path: str, descriptor: int) -> None:
        super().__init__(path, descriptor)
        # Anonymous memory begins with a page, as the system wants it.
        self._buffer = mmap.mmap(-1, _DIRECT_BYTES)

    def read_at(self, position: int, size: int) -> bytes:
        start = position - position % _BLOCK_BYTES
        wanted = position + size - start
        wanted += -wanted % _BLOCK_BYTES
        if wanted > len(self._buffer):
            self._buffer = mmap.mmap(-1, wanted)
        count = 0
        with memoryview(self._buffer) as buffer:
            while count < wanted:
                with buffer[count:wanted] as rest:
                    got = os.preadv(self._descriptor, [rest], start + count)
                count += got
                # The end of the file, which need not be the end of a block.
                if got == 0 or got % _BLOCK_BYTES:
                    break
            return bytes(buffer[position - start : min(position - start + size, count)])


class ReadOnlyFile(DirectoryFile):
    """A file of a file system that takes no writes: what is there is served all the same."""

    __slots__ = ()

    def write_at(self, data: WritableBytes, position: int) -> int:  # noqa: ARG002
        raise self._refusal()

    def truncate(self, size: int) -> None:  # noqa: ARG002
        raise self._refusal()

    def _refusal(self) -> OSError:
        return OSError(errno.EROFS, os.strerror(errno.EROFS), self.path)


class SyncFileSystem:
    """syncfs(2): one call for the whole file system that holds the root.

    Since Linux 5.8 it reports a writeback error of any file of the file system, once for each descriptor it is
    called on. It cannot say which file: every log of the turn counts as failed.
    """

    def __init__(self, root: str, library: ctypes.CDLL) -> None:
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._library = library

    def sync(self) -> None:
        if self._library.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class FileLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class DirectoryFiles:
    is_durable = True
    has_writeback = _sync_file_range is not None

    def open(self, path: str, *, create: bool = False) -> DirectoryFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return DirectoryFile(path, os.open(path, flags, 0o640))
        except OSError as error:
            if error.errno != errno.EROFS or create:
                raise
        return ReadOnlyFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_uncached(self, path: str) -> DirectoryFile:
        try:
            file = DirectFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT))
            file.read_at(0, 1)
        except OSError as error:
            # Not every file system can: tmpfs, and some of those that go over a network.
            if error.errno not in _NOT_NOW:
                raise
            return self.open(path)
        return file

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_directory(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def file_sizes(self, path: str) -> dict[str, int]:
        try:
            with os.scandir(path) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o750, exist_ok=True)

    def make_root(self, path: str) -> None:
        """`path` is in the data directory, which is closed to everybody but its owner and its group."""
        missing = []
        upward = os.path.abspath(path)
        while not os.path.exists(upward):
            missing.append(upward)
            upward = os.path.dirname(upward)
        root = os.path.dirname(os.path.abspath(path))
        if os.path.exists(path):
            _close_to_others(root)
        os.makedirs(os.path.dirname(root), exist_ok=True)
        for directory in (root, path):
            self.make_directory(directory)
        for made in reversed(missing):
            self.sync_directory(os.path.dirname(made))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def whole_disk_sync(self, root: str) -> SyncFileSystem | None:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "syncfs") or _kernel_version() < _SYNCFS_REPORTS_ERRORS_SINCE:
            return None
        return SyncFileSystem(root, library)

    def free_bytes(self, root: str) -> int:
        facts = os.statvfs(root)
        return facts.f_bavail * facts.f_frsize

    def is_read_only(self, root: str) -> bool:
        return bool(os.statvfs(root).f_flag & os.ST_RDONLY)

    def lock(self, path: str) -> FileLock | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            # The kernel lets go of it when the process dies, however it dies: no stale lock to clean up.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # For people alone, so a disk without a free block does not stand in the way of the start.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return FileLock(descriptor)


def _close_to_others(directory: str) -> None:
    """An earlier version left it open. Not where the directory is everybody's, as /tmp is, or another user's."""
    facts = os.stat(directory)
    is_ours = facts.st_uid == os.geteuid() and not facts.st_mode & stat.S_ISVTX
    if is_ours and facts.st_mode & stat.S_IRWXO:
        with contextlib.suppress(OSError):
            os.chmod(directory, stat.S_IMODE(facts.st_mode) & ~stat.S_IRWXO)


def _kernel_version() -> tuple[int, int]:
    numbers = os.uname().release.split("-")[0].split(".")
    return int(numbers[0]), int(numbers[1])
