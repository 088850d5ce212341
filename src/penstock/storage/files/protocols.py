"""The seam between storage and the disk: every byte that storage reads or writes passes through these two protocols.

Two engines stand behind them (`directory`, `memory`) and the tests put a third one there, which forgets
unsynced bytes at a crash, tears writes, flips bits and fails on demand. So nothing in storage calls `os` by itself.

Rules for the caller, which the faulty engine holds it to:
- bytes written are lost at a crash until `File.sync` has returned;
- a file's *name* (created, renamed, removed) is lost at a crash until `sync_directory` of its directory has returned;
- a sync that failed says nothing about the bytes: they may be gone from memory and never have reached the disk, and
  a second sync would answer "well" (https://lwn.net/Articles/752063/). It is never retried.
"""

from __future__ import annotations

from typing import Protocol

WritableBytes = bytes | bytearray | memoryview


class ReadableFile(Protocol):
    """As much of a file as those need who walk its batches."""

    def read_at(self, position: int, size: int, /) -> bytes: ...

    def size(self) -> int: ...


class File(Protocol):
    """An open file. It closes by itself when the last reference to it goes, so a reader that still holds it may
    finish although the file was removed or pushed out of the handle cache."""

    path: str

    def write_at(self, data: WritableBytes, position: int, /) -> int:
        """How many bytes were written, which may be fewer than asked for."""
        ...

    def read_at(self, position: int, size: int, /) -> bytes:
        """Shorter than asked for only at the end of the file. May wait for the disk."""
        ...

    def read_cached_at(self, position: int, size: int, /) -> bytes | memoryview | None:
        """None when it would have to wait for the disk."""
        ...

    def truncate(self, size: int, /) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None: ...

    def begin_writeback(self, position: int, size: int, /) -> None:
        """The system may write these bytes to the disk from now on. It promises nothing and fails with nothing: the
        next sync does both. May wait for the disk."""
        ...

    def drop_cache(self) -> None:
        """The next read asks the disk itself. What is written but not synced may or may not survive this."""
        ...

    def close(self) -> None: ...


class WholeDiskSync(Protocol):
    """One sync of everything written so far below the root. Held open for long: an error is reported once to each
    handle, and only for what failed after the handle was opened."""

    def sync(self) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    # False where nothing survives the process anyway: a sync is then over before it begins.
    is_durable: bool
    # Whether `File.begin_writeback` does anything.
    has_writeback: bool

    def open(self, path: str, /, *, create: bool = False) -> File:
        """For reading and writing, or for reading alone where the file system takes no writes; `FileNotFoundError`
        without `create`."""
        ...

    def open_uncached(self, path: str, /) -> File:
        """For reading alone: from the disk itself where the system can, past its memory and without filling it."""
        ...

    def exists(self, path: str, /) -> bool: ...

    def list_directory(self, path: str, /) -> list[str]:
        """Names, sorted; none when there is no such directory."""
        ...

    def file_sizes(self, path: str, /) -> dict[str, int]:
        """The plain files of one directory; none when there is no such directory."""
        ...

    def make_directory(self, path: str, /) -> None:
        """With its parents; no harm if it is there."""
        ...

    def make_root(self, path: str, /) -> None:
        """As `make_directory`, and durable when it returns: its name in its parent, and so on upwards."""
        ...

    def rename(self, source: str, target: str, /) -> None: ...

    def remove(self, path: str, /) -> None:
        """No harm if it is not there."""
        ...

    def remove_tree(self, path: str, /) -> None: ...

    def sync_directory(self, path: str, /) -> None: ...

    def whole_disk_sync(self, root: str, /) -> WholeDiskSync | None:
        """None where the system cannot do it or cannot report its errors."""
        ...

    def free_bytes(self, root: str, /) -> int: ...

    def is_read_only(self, root: str, /) -> bool:
        """The file system takes no writes: it was mounted so, or the kernel made it so after an error."""
        ...

    def lock(self, path: str, /) -> Lock | None:
        """None when another process holds it."""
        ...
