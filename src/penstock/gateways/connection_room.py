"""How many connections a door may hold: sockets and log files come out of the same limit of the process.

With none left no segment can be rolled and no topic opened, and partitions go offline: so clients, who can be told to
come again, are counted and the log's files are not.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

from penstock.base.file_limit import log_files_max

# Directories, side files, the metadata store, and what a library opens for a moment.
SPARE_FILES: Final = 128
# Kafka's and HTTP's.
DOORS: Final = 2
CONNECTIONS_MIN: Final = 8


def connections_room(wanted: int) -> int:
    """As many as were asked for, or as many as one door can have beside the other and the log."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted
    room = (limit - log_files_max() - SPARE_FILES) // DOORS
    return min(wanted, max(CONNECTIONS_MIN, room))


def raise_file_limit() -> None:
    """To what the process may have: the usual limit is one for programs that wait for many sockets by `select`."""
    limit, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != allowed:
        # A system may promise more than it gives.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
