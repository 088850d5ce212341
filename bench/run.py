"""`make bench`: one load against a broker that does nothing, librdkafka's mock cluster, and Penstock.

The machine is never quiet, so no figure is taken alone: every round runs all targets of a case one after the other,
and a figure is the median over the rounds. What counts is the share of the ceiling in the same run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench import machine, report
from bench.cases import Case, Figures, all_cases
from bench.disk_ceiling import synced_bytes_per_second
from bench.once import run_once, store_for_consume
from bench.quiet import wait_for_quiet
from bench.targets import Target, mock_cluster, null_broker, penstock

ROOT: Final = Path(__file__).parents[1]
DISK_SECONDS: Final = 1.0
DISK_BLOCK_BYTES: Final = 4_096


def main() -> None:
    arguments = _arguments()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=build))
    try:
        facts = machine.facts(directory)
        print(report.headline(facts))
        start = measure_start(directory / "start")
        cases = [case for case in all_cases(arguments.scale) if arguments.only in case.name]
        figures = [measure(case, directory, rounds=arguments.rounds, patience=arguments.patience) for case in cases]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    missed = report.show(figures, start)
    if not arguments.no_save:
        report.save(facts, figures, start)
    if missed and arguments.strict:
        raise SystemExit(1)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of messages")
    parser.add_argument("--patience", type=float, default=5.0, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--no-save", action="store_true")
    parser.add_argument("--strict", action="store_true", help="end with code 1 if a goal is missed")
    return parser.parse_args()


def measure(case: Case, directory: Path, *, rounds: int, patience: float) -> Figures:
    figures = Figures(case, {name: [] for name in case.targets}, {name: [] for name in case.targets}, [], [], [])
    with _brokers(case, directory) as brokers:
        if case.kind == "consume":
            for target in brokers.values():
                store_for_consume(case, target)
        for number in range(rounds):
            turns_before = 0.0
            for name in case.targets:
                wait_for_quiet(patience)
                if name == "fsync":
                    turns_before = _sync_turns(brokers["penstock"])
                _round(figures, brokers[_process_of(name)], name, number)
            if "fsync" in case.targets:
                turns = _sync_turns(brokers["penstock"]) - turns_before
                _disk_round(figures, directory / "disk", turns)
            report.progress(figures, number, rounds)
    return figures


@contextmanager
def _brokers(case: Case, directory: Path) -> Iterator[dict[str, Target]]:
    """New ones for each case: no target carries the memory of an earlier load."""
    place = Path(tempfile.mkdtemp(dir=directory))
    with null_broker(place, case.value_bytes) as null, mock_cluster(place) as mock, penstock(place) as node:
        yield {"null broker": null, "mock cluster": mock, "penstock": node}
    shutil.rmtree(place)


def _process_of(name: str) -> str:
    return name if name in {"null broker", "mock cluster"} else "penstock"


def _round(figures: Figures, target: Target, name: str, number: int) -> None:
    once = run_once(figures.case, target, durability=name, topic=f"{name.replace(' ', '-')}-{number}")
    figures.rounds[name].append(once.messages_per_second)
    figures.broker_cpu_microseconds[name].append(once.broker_cpu_microseconds)
    figures.other_cores.append(once.other_cores)


def _sync_turns(node: Target) -> float:
    with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=10) as page:
        found = re.search(r"^penstock_sync_seconds_count (\S+)$", page.read().decode(), re.MULTILINE)
    assert found is not None, "the node does not count its syncs"
    return float(found[1])


def _disk_round(figures: Figures, directory: Path, turns: float) -> None:
    """The disk is asked what the node asked of it: so many bytes at each sync."""
    case = figures.case
    bytes_per_sync = max(DISK_BLOCK_BYTES, int(case.messages * case.value_bytes / max(1.0, turns)))
    disk = synced_bytes_per_second(directory, bytes_per_sync=bytes_per_sync, seconds=DISK_SECONDS)
    figures.disk_messages_per_second.append(disk / case.value_bytes)
    figures.bytes_per_sync.append(bytes_per_sync)


def measure_start(directory: Path) -> dict[str, float]:
    """The best of three starts, and the memory of a node that has nothing to do."""
    seconds, megabytes = [], []
    for number in range(3):
        place = directory / str(number)
        place.mkdir(parents=True)
        with penstock(place) as node:
            seconds.append(node.ready_seconds)
            megabytes.append(node.resident_bytes() / 1e6)
    return {"start_seconds": min(seconds), "idle_megabytes": max(megabytes)}


if __name__ == "__main__":
    main()
