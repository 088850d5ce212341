"""`make bench`: one load against a broker that does nothing, librdkafka's mock cluster, and Penstock.

The machine is never quiet, so no figure is taken alone: every round runs all targets of a case one after the other,
and a figure is the median over the rounds. What counts is the share of the ceiling in the same run.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench import machine, report
from bench.cases import CONSUME_TOPICS, PARTITIONS_PER_TOPIC, Case, Figures, all_cases
from bench.disk_ceiling import synced_bytes_per_second
from bench.load import Achieved, Load
from bench.quiet import busy_seconds, wait_for_quiet
from bench.targets import Target, mock_cluster, null_broker, penstock, run_load

ROOT: Final = Path(__file__).parents[1]
ADMIN_SECONDS_MAX: Final = 30
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
            _store(case, brokers)
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
    case = figures.case
    topic = f"{name.replace(' ', '-')}-{number}"
    topics = [f"consume-{index}" for index in range(CONSUME_TOPICS)]
    if case.kind == "produce":
        topics = [topic]
        if target.name == "penstock":
            _create(target, topic, durability=name)
    load = _load(case, target, topics)
    achieved, broker_cpu, other_cores = _watched(load, target)
    figures.rounds[name].append(achieved.messages_per_second)
    figures.broker_cpu_microseconds[name].append(1e6 * broker_cpu / achieved.messages)
    figures.other_cores.append(other_cores)
    if case.kind == "produce" and target.name == "penstock":
        _delete(target, topic)


def _watched(load: Load, target: Target) -> tuple[Achieved, float, float]:
    """What the client achieved, the broker's CPU seconds, and the cores that neither of them used."""
    began, busy, broker, client = time.monotonic(), busy_seconds(), target.cpu_seconds(), _children_cpu()
    achieved = run_load(load)
    broker_cpu = target.cpu_seconds() - broker
    others = (busy_seconds() - busy) - broker_cpu - (_children_cpu() - client)
    return achieved, broker_cpu, max(0.0, others / (time.monotonic() - began))


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _load(case: Case, target: Target, topics: list[str]) -> Load:
    return Load(
        kind=case.kind,
        bootstrap=target.bootstrap,
        topics=topics,
        partitions=1 if case.kind == "produce" else PARTITIONS_PER_TOPIC,
        value_bytes=case.value_bytes,
        # The last messages of a partition come in small answers; the mock cluster may have dropped its first.
        messages=case.messages if case.kind == "produce" else int(case.messages * 0.9),
        single=case.single,
        codec=case.codec,
    )


def _store(case: Case, brokers: dict[str, Target]) -> None:
    """What will be consumed, in all targets alike."""
    topics = [f"consume-{index}" for index in range(CONSUME_TOPICS)]
    for topic in topics:
        _create(brokers["penstock"], topic, durability="interval", partitions=PARTITIONS_PER_TOPIC)
    for target in brokers.values():
        load = _load(case, target, topics)
        run_load(msgspec.structs.replace(load, kind="produce", partitions=PARTITIONS_PER_TOPIC, messages=case.messages))


def _create(target: Target, topic: str, *, durability: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    new_topic = NewTopic(topic, partitions, config={"durability": durability})
    admin.create_topics([new_topic])[topic].result(ADMIN_SECONDS_MAX)


def _delete(target: Target, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(ADMIN_SECONDS_MAX)


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
