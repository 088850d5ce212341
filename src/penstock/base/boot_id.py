"""Which start of this machine it is: whatever was only in memory, and every process, is of one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PLACE: Final = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """Another after each start of the machine; empty where the system does not tell."""
    try:
        return _PLACE.read_text().strip()
    except OSError:
        return ""
