"""How the process treats memory that it has freed."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

# As glibc's malloc.h numbers them.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Some replies of the largest size; more than this is given back to the system at once.
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
# The most that glibc takes.
MAPPED_BYTES_MIN: Final = 32 * 1024 * 1024


def keep_freed_memory() -> None:
    """A Fetch reads megabytes into memory that is freed when they are sent. glibc hands such memory back to the kernel
    and asks for it again a moment later, zeroed page by page: that was half of a node's work for a consumer of
    messages of 1 KB. Where there is another C library nothing happens.
    """
    with contextlib.suppress(AttributeError, OSError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        set_option(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
