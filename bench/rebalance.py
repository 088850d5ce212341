"""`make bench-rebalance`: a hundred members over three hundred partitions, one leaves, one is killed.

With the consumer protocol (KIP-848) every partition must be consumed again within a second from the moment at which
the coordinator knows, and members that keep their partitions must not notice. The classic protocol is shown beside it:
there the clients' heartbeat decides, and the coordinator's own share is measured apart.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import machine, quiet, rebalance_report, report, result_files
from bench.rebalance_coordinator import OwnTime, classic_own_time, heartbeat_intervals_ms
from bench.rebalance_group import FLOW_INTERVAL_MS, GroupPlan, measure
from bench.rebalance_report import INTERVALS_MS_EXPECTED, Found
from bench.targets import Target, penstock

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "rebalance"
OWN_TIME_ROUNDS: Final = 5


class Figures:
    def __init__(self) -> None:
        self.found: Found = {"consumer": [], "classic": []}
        self.own_times: list[OwnTime] = []
        self.intervals_ms: dict[int, int] = {}
        # Cores that somebody else used, right before each measurement.
        self.other_cores: list[float] = []

    def document(self) -> dict[str, Any]:
        return {
            "flow_interval_ms": FLOW_INTERVAL_MS,
            "departures": {
                protocol: [rebalance_report.document(one) for one in departures]
                for protocol, departures in self.found.items()
            },
            "classic_coordinator": self.own_times,
            "heartbeat_intervals_ms": self.intervals_ms,
            "other_cores": [round(cores, 2) for cores in self.other_cores],
        }


def run(directory: Path, *, members: int, partitions: int, rounds: int) -> Figures:
    figures = Figures()
    for number in range(rounds):
        for protocol, departures in figures.found.items():
            place = directory / f"{protocol}-{number}"
            place.mkdir()
            figures.other_cores.append(_other_cores())
            plan = GroupPlan(protocol=protocol, members=members, partitions=partitions, directory=place)
            with penstock(place, environment=plan.environment) as node:
                plan = msgspec.structs.replace(plan, bootstrap=node.bootstrap)
                departures += measure(plan)
                if protocol == "classic":
                    figures.own_times.append(_own_time(node, plan))
                    intervals = heartbeat_intervals_ms(node.bootstrap, plan.topic, list(INTERVALS_MS_EXPECTED))
                    figures.intervals_ms = asyncio.run(intervals)
            print(f"round {number + 1} of {rounds}, {protocol}: {rebalance_report.line(departures[-2:])}", flush=True)
    return figures


def _other_cores() -> float:
    before = quiet.busy_seconds()
    time.sleep(quiet.LOOK_SECONDS)
    return (quiet.busy_seconds() - before) / quiet.LOOK_SECONDS


def _own_time(node: Target, plan: GroupPlan) -> OwnTime:
    """The median of some, by their sum."""
    times = []
    for number in range(OWN_TIME_ROUNDS):
        work = classic_own_time(
            node.bootstrap, f"own-time-{number}", plan.topic, members=plan.members, partitions=plan.partitions
        )
        times.append(asyncio.run(work))
    return sorted(times, key=lambda one: one.own_ms)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="rebalance-", dir=build))
    try:
        facts = machine.facts(directory)
        print(report.headline(facts))
        quiet.wait_for_quiet(10)
        figures = run(directory, members=arguments.members, partitions=arguments.partitions, rounds=arguments.rounds)
    finally:
        shutil.rmtree(directory)
    rebalance_report.show(figures.found, figures.own_times, figures.intervals_ms, figures.other_cores)
    missed = rebalance_report.missed(figures.found["consumer"], figures.intervals_ms)
    print("goals: " + ("; ".join(missed) if missed else "met"))
    if not arguments.no_save:
        size = {"members": arguments.members, "partitions": arguments.partitions}
        result_files.save(NAME, {"machine": facts, **size, **figures.document(), "missed": missed})
        result_files.save_picture(NAME, rebalance_report.draw(figures.found))


if __name__ == "__main__":
    main()
