"""Open files of the process: sockets and log files come out of the same limit."""

from __future__ import annotations

import resource
from typing import Final

LOG_FILES_MIN: Final = 16
# More open files make no read faster: nobody reads in so many segments at a time.
LOG_FILES_MAX: Final = 4096
# Left for sockets and everything else, where there is so much.
OTHER_FILES: Final = 512


def log_files_max() -> int:
    """How many segments may be held open at a time, by what the process may have."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return LOG_FILES_MAX
    return max(LOG_FILES_MIN, min(LOG_FILES_MAX, soft_limit - OTHER_FILES))
