"""Why a log takes nothing: each refusal leaves it as it was, or offline."""

from __future__ import annotations

import errno
from typing import Final, Protocol

from penstock.storage.context import StoreContext
from penstock.storage.errors import Damage, DiskFullError, LogDamagedError, LogFailedError, StorageError
from penstock.storage.log.flaws import WITHHELD, LogFlaws
from penstock.storage.log.home import LogHome
from penstock.storage.log.sync import UnsyncedFiles
from penstock.storage.segment.facts import Segment

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# The process or the system is out of descriptors: that passes, and says nothing about this log.
_NO_HANDLE: Final = frozenset({errno.EMFILE, errno.ENFILE})


class RefusingLog(Protocol):
    """What is needed of a PartitionLog."""

    context: StoreContext
    home: LogHome
    lost_end: Damage | None
    failure: str | None
    is_being_cut: bool
    unsynced: UnsyncedFiles
    flaws: LogFlaws

    def fail(self, reason: str) -> None: ...


def refusal_of(log: RefusingLog) -> StorageError:
    """Of a log that is offline, has lost its end, is being cut, or is on a full disk."""
    if log.failure is not None:
        return LogFailedError(f"{log.home.topic}-{log.home.partition} is offline: {log.failure}")
    if log.lost_end is not None and log.flaws.is_withheld:
        return LogFailedError(f"{log.home.topic}-{log.home.partition}: {WITHHELD}")
    if log.lost_end is not None:
        words = f"{log.home.topic}-{log.home.partition} is damaged: {log.lost_end.describe()}"
        return LogDamagedError(log.lost_end, f"{words}; `penstock log repair` lets it take records again")
    if log.is_being_cut:
        return LogFailedError(f"{log.home.topic}-{log.home.partition}: its end is being cut off")
    log.context.metrics.refused_full.inc()
    if log.context.is_read_only:
        return DiskFullError("the file system of the data directory is read-only")
    return DiskFullError("the disk has less room than the node keeps for itself")


def write_failed(log: RefusingLog, segment: Segment, error: OSError) -> StorageError:
    """Takes back what was written of the batch, so that the next one finds the end where it was."""
    if error.errno in _NO_HANDLE:
        return LogFailedError(f"{segment.path}: {error.strerror}")
    if error.errno == errno.EROFS:
        # Nothing of it was written, so nothing has to be taken back, and readers are served as before.
        return _read_only(log)
    try:
        if segment.file is not None:
            segment.file.truncate(segment.size)
            # The cut is as little durable as a write. Without it a crash leaves half a batch in front of the
            # next segment, which would be damage.
            log.unsynced.note(segment)
    except OSError as second_error:
        log.fail(f"{segment.path} could not be cut back after a failed write: {second_error}")
        return LogFailedError(log.failure)
    if error.errno in _NO_ROOM:
        _note_full(log)
        return DiskFullError(f"{segment.path}: {error.strerror}")
    log.fail(f"{segment.path} could not be written: {error}")
    return LogFailedError(log.failure)


def cannot_begin(log: RefusingLog, error: OSError) -> StorageError:
    """A new segment, that is; the one before it is as it was."""
    if error.errno in _NO_HANDLE:
        return LogFailedError(f"{log.home.directory}: {error.strerror}")
    if error.errno == errno.EROFS:
        return _read_only(log)
    if error.errno in _NO_ROOM:
        _note_full(log)
        return DiskFullError(f"{log.home.directory}: {error.strerror}")
    log.fail(f"{log.home.directory}: a segment could not be begun: {error}")
    return LogFailedError(log.failure)


def _read_only(log: RefusingLog) -> StorageError:
    log.context.note_read_only()
    return refusal_of(log)


def _note_full(log: RefusingLog) -> None:
    """Also of a quota, which the free room of the disk does not tell."""
    log.context.metrics.refused_full.inc()
    log.context.retired.give_way()
