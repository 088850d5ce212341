"""Is the machine doing something else? A share of a ceiling means little when a third process took a core."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

# Above this many cores of other work a figure says as much about that work as about the broker.
OTHER_CORES_MAX: Final = 0.25
LOOK_SECONDS: Final = 0.2


def busy_seconds() -> float:
    """CPU time that all processes and the kernel have used since the machine started."""
    fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _waiting, interrupt, soft_interrupt, stolen = fields
    return (user + nice + system + interrupt + soft_interrupt + stolen) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(seconds_max: float) -> None:
    """Returns when others use less than a quarter of a core, or when patience is at its end."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        before = busy_seconds()
        time.sleep(LOOK_SECONDS)
        if (busy_seconds() - before) / LOOK_SECONDS < OTHER_CORES_MAX:
            return
