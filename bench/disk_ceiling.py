"""How fast this disk takes synced writes: a loop that writes so many bytes and waits for them, nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

SEGMENT_BYTES_MAX: Final = 64 << 20


def synced_bytes_per_second(directory: Path, *, bytes_per_sync: int, seconds: float) -> float:
    """Appends like a log: new segments of 64 MiB, one write and one fdatasync per turn."""
    chunk = os.urandom(bytes_per_sync)
    directory.mkdir(parents=True, exist_ok=True)
    written, in_segment, number = 0, SEGMENT_BYTES_MAX, 0
    descriptor = -1
    path = directory / "ceiling"
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        if in_segment + bytes_per_sync > SEGMENT_BYTES_MAX:
            if descriptor >= 0:
                os.close(descriptor)
                path.unlink()
            number += 1
            path = directory / f"ceiling-{number}"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            in_segment = 0
        os.write(descriptor, chunk)
        os.fdatasync(descriptor)
        written += bytes_per_sync
        in_segment += bytes_per_sync
    os.close(descriptor)
    path.unlink()
    return written / elapsed
