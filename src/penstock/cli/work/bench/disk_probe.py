"""What the disk itself needs to make a write of a given size durable: `write` and `fdatasync`, over and over.

Meant for a pause of the load, before and after it: during it the two would measure each other.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from penstock.base.chance import SYSTEM_CHANCE
from penstock.cli.failure import CommandError
from penstock.cli.work.bench.latency_histogram import LatencyHistogram

# A probe never leaves more than this on the disk; it begins again at the start of its file.
FILE_BYTES_MAX: Final = 64 * 1024 * 1024


def probe_disk(directory: Path, *, write_bytes: int, seconds: float, interval_ms: float) -> LatencyHistogram:
    """Blocking: run it in a thread. One synced append every `interval_ms`, as the load's ticks come."""
    if not directory.is_dir():
        raise CommandError(f"{directory} is not a directory to probe the disk in")
    histogram = LatencyHistogram()
    data = SYSTEM_CHANCE.bytes(write_bytes)
    with tempfile.TemporaryFile(dir=directory, prefix=".penstock-probe-") as file:
        descriptor = file.fileno()
        start = time.perf_counter()
        written, number = 0, 0
        while time.perf_counter() - start < seconds:
            began = time.perf_counter()
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            ended = time.perf_counter()
            histogram.record(int((ended - began) * 1_000_000))
            written += write_bytes
            if written + write_bytes > FILE_BYTES_MAX:
                os.lseek(descriptor, 0, os.SEEK_SET)
                written = 0
            number += 1
            wait = start + number * interval_ms / 1000 - ended
            if wait > 0:
                time.sleep(wait)
    return histogram
