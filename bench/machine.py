"""What a result was measured on: enough to compare two results, nothing that names a place or a person."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = ("confluent-kafka", "cramjam", "fastcrc", "msgspec", "polars", "uvloop")
ROOT: Final = Path(__file__).parents[1]


def facts(data_directory: Path) -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gigabytes": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "processor": _processor(),
        "kernel": re.sub(r"^(\d+\.\d+\.\d+).*", r"\1", platform.release()),
        "filesystem": _filesystem(data_directory),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "commit": commit(ROOT),
        "date": today(),
    }


def today() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _filesystem(directory: Path) -> str:
    """The kind of file system under `directory`: the mount point with the longest matching name."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    place = directory.resolve()
    fitting = [(len(mount[1]), mount[2]) for mount in mounts if place.is_relative_to(mount[1])]
    return max(fitting)[1] if fitting else "unknown"


def commit(tree: Path) -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True)
        return done.stdout.strip()

    found = git("rev-parse", "--short", "HEAD") if shutil.which("git") else ""
    if not found:
        return "unknown"
    return f"{found}, changed" if git("status", "--porcelain", "--", "src") else found
