"""`make bench-beside BESIDE=../other-checkout`: two commits under the same loads, in turn in one run.

A single figure of a machine that is shared says little, and two runs an hour apart say nothing. Here every round runs
this checkout and the other one after the other, the order changing from round to round, and a row is the ratio of the
medians: rates above 1 and processor times below 1 speak for this one.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench import machine, result_files
from bench.cases import Case, all_cases
from bench.once import Once, run_once, store_for_consume
from bench.quiet import OTHER_CORES_MAX, wait_for_quiet
from bench.targets import Target, penstock

NAME: Final = "beside"
ROOT: Final = Path(__file__).parents[1]
TABLE_WIDTH: Final = 120
DURABILITIES: Final = ("interval", "fsync")
STARTS: Final = 5


class Row(msgspec.Struct, frozen=True):
    """Rounds of both checkouts: what each achieved, and what it took."""

    name: str
    this: list[Once]
    beside: list[Once]

    @property
    def rate(self) -> float:
        return _median(self.this, "messages_per_second") / _median(self.beside, "messages_per_second")

    @property
    def cpu(self) -> float:
        return _median(self.this, "broker_cpu_microseconds") / _median(self.beside, "broker_cpu_microseconds")


def main() -> None:
    arguments = _arguments()
    trees = {"this": ROOT, "beside": arguments.beside.resolve()}
    commits = {name: machine.commit(tree) for name, tree in trees.items()}
    print(", ".join(f"{name}: commit {commit}" for name, commit in commits.items()), flush=True)
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="beside-", dir=build))
    try:
        facts = machine.facts(directory)
        starts = _starts(trees, directory)
        rows = []
        for case in all_cases(arguments.scale):
            if arguments.only in case.name:
                rows += _measure(case, trees, directory, arguments.rounds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _show(rows, starts)
    if not arguments.no_save:
        saved = {"machine": facts, "commits": commits, "start_seconds": starts, "rows": rows}
        print(f"saved bench/results/{result_files.save(NAME, saved).name}")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("beside", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=0.5, help="of the number of messages")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--no-save", action="store_true")
    return parser.parse_args()


def _starts(trees: dict[str, Path], directory: Path) -> dict[str, list[float]]:
    """Seconds until ready, on an empty directory; the first start of each compiles its modules and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(STARTS + 1):
        for name, tree in trees.items():
            place = directory / f"start-{name}-{number}"
            place.mkdir()
            with penstock(place, tree=tree) as node:
                if number > 0:
                    seconds[name].append(round(node.ready_seconds, 3))
    return seconds


def _measure(case: Case, trees: dict[str, Path], directory: Path, rounds: int) -> list[Row]:
    durabilities = [name for name in DURABILITIES if name in case.targets]
    rows = {name: Row(f"{case.name}, {name}", [], []) for name in durabilities}
    with ExitStack() as stack:
        nodes: dict[str, Target] = {}
        for name, tree in trees.items():
            place = Path(tempfile.mkdtemp(dir=directory))
            nodes[name] = stack.enter_context(penstock(place, tree=tree))
            if case.kind == "consume":
                store_for_consume(case, nodes[name])
        for number in range(rounds):
            for durability in durabilities:
                for name in list(nodes)[:: 1 if number % 2 else -1]:
                    wait_for_quiet(2.0)
                    topic = f"{durability}-{number}"
                    getattr(rows[durability], name).append(
                        run_once(case, nodes[name], durability=durability, topic=topic)
                    )
    for row in rows.values():
        print(f"{row.name}: rate {row.rate:.3f}, CPU {row.cpu:.3f}", flush=True)
    return list(rows.values())


def _median(rounds: list[Once], field: str) -> float:
    values: list[float] = [getattr(once, field) for once in rounds]
    return statistics.median(values)


def _show(rows: list[Row], starts: dict[str, list[float]]) -> None:
    table = Table(title="this checkout beside the other: medians, and their ratio")
    for heading in ("load", "this msg/s", "beside msg/s", "rate", "this CPU", "beside CPU", "CPU"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    for row in rows:
        table.add_row(
            row.name,
            f"{_median(row.this, 'messages_per_second'):,.0f}",
            f"{_median(row.beside, 'messages_per_second'):,.0f}",
            f"{row.rate:.3f}",
            f"{_median(row.this, 'broker_cpu_microseconds'):.2f}",
            f"{_median(row.beside, 'broker_cpu_microseconds'):.2f}",
            f"{row.cpu:.3f}",
        )
    console = Console(width=TABLE_WIDTH)
    console.print(table)
    console.print("CPU: microseconds of the broker's processor time for one message, or seconds for a million")
    this, beside = (statistics.median(starts[name]) for name in ("this", "beside"))
    console.print(f"start: {this:.2f} s beside {beside:.2f} s, medians of {STARTS}")
    other = statistics.median(once.other_cores for row in rows for once in (*row.this, *row.beside))
    if other > OTHER_CORES_MAX:
        console.print(f"not a quiet machine: others used {other:.1f} cores, so trust no figure", style="red")


if __name__ == "__main__":
    main()
