"""What can go wrong on the disk: exceptions where the world failed, values where the caller must look."""

from __future__ import annotations

import msgspec


class StorageError(Exception):
    """The disk layer cannot do what it was asked to; nothing was changed."""


class DiskFullError(StorageError):
    """There is no room, or less than the node keeps for itself. Writes resume by themselves when there is."""


class LogFailedError(StorageError):
    """The log takes no writes: its disk failed it, or it was closed."""


class LogDamagedError(LogFailedError):
    """Some of the log cannot be read, and so what was asked cannot be done."""

    def __init__(self, damage: Damage, words: str = "") -> None:
        super().__init__(words or damage.describe())
        self.damage = damage


class DirectoryLockedError(StorageError):
    """Another process uses the data directory."""


class DataDirectoryError(StorageError):
    """The data directory cannot be used: not ours, unreadable, or of another format."""


class Damage(msgspec.Struct, frozen=True):
    """A place in a log where bytes that should be batches are none: offsets [offset, offset_end) cannot be read. What
    lies before it and after it can."""

    offset: int
    segment_base_offset: int
    position: int
    reason: str
    # False: the disk did not give the bytes out, or nobody could open the file. That may pass, and nothing is marked.
    is_proven: bool = True
    # Where the next whole batch begins, or the log goes on; -1: nobody has looked.
    offset_end: int = -1
    position_end: int = -1
    # The end of the log is gone, and where it was nobody knows: an append might give out offsets a second time.
    is_end_lost: bool = False

    def describe(self) -> str:
        where = f"segment {self.segment_base_offset:020}.log: batch at byte {self.position}: {self.reason}"
        return (
            where
            if self.offset_end <= self.offset
            else f"{where}; offsets {self.offset} to {self.offset_end - 1} are lost"
        )


class OutOfRange(msgspec.Struct, frozen=True):
    """The log does not hold that offset: it is below its start or past its end."""

    log_start: int
    log_end: int


class Damaged(msgspec.Struct, frozen=True):
    """The offset lies in a damaged place: it is not served, and what comes after it is."""

    damage: Damage


class Offline(msgspec.Struct, frozen=True):
    """The log's disk failed it; nothing is served until recovery has read it again."""

    reason: str
