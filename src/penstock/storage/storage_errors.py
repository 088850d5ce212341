"""What can go wrong on the disk: exceptions where the world failed, values where the caller must look."""

from __future__ import annotations

import msgspec


class StorageError(Exception):
    """The disk layer cannot do what it was asked to; nothing was changed."""


class DiskFullError(StorageError):
    """There is no room, or less than the node keeps for itself. Writes resume by themselves when there is."""


class LogFailedError(StorageError):
    """The log takes no writes: its disk failed it, or it is damaged, or it was closed."""


class DirectoryLockedError(StorageError):
    """Another process uses the data directory."""


class DataDirectoryError(StorageError):
    """The data directory cannot be used: not ours, unreadable, or of another format."""


class Damage(msgspec.Struct, frozen=True):
    """A place in a log where bytes that should be a batch are none. Everything below `offset` is whole."""

    offset: int
    segment_base_offset: int
    position: int
    reason: str
    # False: the disk did not give the bytes out, or nobody could open the file. That may pass, and nothing is marked.
    is_proven: bool = True

    def describe(self) -> str:
        return f"segment {self.segment_base_offset:020}.log: batch at byte {self.position}: {self.reason}"


class OutOfRange(msgspec.Struct, frozen=True):
    """The log does not hold that offset: it is below its start or past its end."""

    log_start: int
    log_end: int


class Damaged(msgspec.Struct, frozen=True):
    """The offset lies at or past damage: nothing is served there until the log was repaired."""

    damage: Damage


class Offline(msgspec.Struct, frozen=True):
    """The log's disk failed it; nothing is served until recovery has read it again."""

    reason: str
