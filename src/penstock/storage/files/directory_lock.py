"""Who holds a data directory: the lock's file has the process id of whoever took it last."""

from __future__ import annotations

from typing import Final

from penstock.storage.errors import DirectoryLockedError
from penstock.storage.files.protocols import Files

# Digits of a process id, and the end of its line.
_PID_BYTES_MAX: Final = 20


def locked_error(files: Files, root: str, lock_path: str) -> DirectoryLockedError:
    """Blocking. For whoever was refused the lock."""
    holder = _holder(files, lock_path)
    return DirectoryLockedError(f"the data directory {root} is used by another process{holder}: stop that one first")


def _holder(files: Files, lock_path: str) -> str:
    try:
        file = files.open(lock_path)
    except OSError:
        return ""
    try:
        text = file.read_at(0, _PID_BYTES_MAX).strip()
    except OSError:
        return ""
    finally:
        file.close()
    return f" (pid {int(text)})" if text.isdigit() else ""
