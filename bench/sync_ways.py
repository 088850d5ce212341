"""`make bench-sync`: what a turn of group commit costs, by the way it syncs and by what else the disk does.

A turn appends 4 KiB to each of 1, 4, 16 or 64 files and waits until all are on disk: by `fdatasync` of one after the
other, by `fdatasync` on several threads, or by one `syncfs` of the whole file system. `syncfs` also waits for what a
neighbour has written there, so each is measured again beside a process that writes as fast as it can.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import machine, report, result_files

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "sync-ways"
FILE_COUNTS: Final = (1, 4, 16, 64)
APPEND_BYTES: Final = 4_096
THREADS: Final = 16
TURNS_MIN: Final = 5
# What the noisy neighbour writes before it starts its file again: more than the disk takes in a few seconds.
NEIGHBOUR_FILE_BYTES: Final = 1 << 30
NEIGHBOUR: Final = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
chunk, most = os.urandom(1 << 20), int(sys.argv[2])
while True:
    os.lseek(descriptor, 0, os.SEEK_SET)
    for _ in range(most >> 20):
        os.write(descriptor, chunk)
"""

Way = Callable[[Sequence[int]], None]
_libc: Final = ctypes.CDLL(None, use_errno=True)


def one_after_the_other(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.fdatasync(descriptor)


def whole_file_system(descriptors: Sequence[int]) -> None:
    if _libc.syncfs(descriptors[0]) != 0:
        raise OSError(ctypes.get_errno(), "syncfs")


def measure(directory: Path, way: Way, files: int, seconds: float) -> list[float]:
    """Milliseconds of each turn."""
    paths = [directory / f"log-{number}" for number in range(files)]
    descriptors = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in paths]
    chunk = os.urandom(APPEND_BYTES)
    turns_ms: list[float] = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(turns_ms) < TURNS_MIN:
        for descriptor in descriptors:
            os.write(descriptor, chunk)
        began = time.perf_counter()
        way(descriptors)
        turns_ms.append(1_000 * (time.perf_counter() - began))
    for descriptor, path in zip(descriptors, paths, strict=True):
        os.close(descriptor)
        path.unlink()
    return turns_ms


@contextlib.contextmanager
def neighbour(directory: Path, *, is_there: bool) -> Iterator[None]:
    if not is_there:
        yield
        return
    path = directory / "neighbour"
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(path), str(NEIGHBOUR_FILE_BYTES)])
    try:
        yield
    finally:
        process.kill()
        process.wait()
        path.unlink(missing_ok=True)
        # What the neighbour left in memory must not be paid for by the next measurement.
        os.sync()


def run(directory: Path, seconds: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(THREADS) as pool:

        def on_threads(descriptors: Sequence[int]) -> None:
            list(pool.map(os.fdatasync, descriptors))

        ways: dict[str, Way] = {
            "fdatasync, one after the other": one_after_the_other,
            f"fdatasync, {THREADS} threads": on_threads,
            "syncfs": whole_file_system,
        }
        for is_noisy in (False, True):
            with neighbour(directory, is_there=is_noisy):
                for files in FILE_COUNTS:
                    for name, way in ways.items():
                        turns_ms = measure(directory, way, files, seconds)
                        rows.append(_row(name, files, turns_ms, is_noisy=is_noisy))
    return rows


def _row(name: str, files: int, turns_ms: list[float], *, is_noisy: bool) -> dict[str, Any]:
    quantiles = statistics.quantiles(turns_ms, n=100)
    return {
        "way": name,
        "files": files,
        "neighbour": is_noisy,
        "turns": len(turns_ms),
        "median_ms": round(quantiles[49], 3),
        "p99_ms": round(quantiles[98], 3),
    }


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="one turn of group commit, milliseconds: median (99th percentile)")
    table.add_column("way")
    table.add_column("neighbour")
    for files in FILE_COUNTS:
        table.add_column(f"{files} files", justify="right")
    for is_noisy in (False, True):
        for name in dict.fromkeys(row["way"] for row in rows):
            cells = [
                f"{row['median_ms']:.2f} ({row['p99_ms']:.1f})"
                for row in rows
                if row["way"] == name and row["neighbour"] == is_noisy
            ]
            table.add_row(name, "writes" if is_noisy else "quiet", *cells)
    Console().print(table)


def draw(rows: list[dict[str, Any]]) -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "penstock"
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for panel, is_noisy in zip(panels, (False, True), strict=True):
        for name in dict.fromkeys(row["way"] for row in rows):
            line = [row for row in rows if row["way"] == name and row["neighbour"] == is_noisy]
            panel.plot([row["files"] for row in line], [row["median_ms"] for row in line], marker="o", label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xticks(FILE_COUNTS, [str(files) for files in FILE_COUNTS])
        panel.set_xlabel("dirty files in the turn")
        panel.set_title("beside a neighbour that writes" if is_noisy else "alone")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("median turn, ms")
    panels[0].legend(frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each of the 24 measurements")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="sync-", dir=build))
    try:
        facts = machine.facts(directory)
        print(report.headline(facts))
        rows = run(directory, arguments.seconds)
    finally:
        shutil.rmtree(directory)
    show(rows)
    if not arguments.no_save:
        result_files.save(NAME, {"machine": facts, "rows": rows})
        result_files.save_picture(NAME, draw(rows))


if __name__ == "__main__":
    main()
