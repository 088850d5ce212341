"""`make bench-replicated`: three nodes that keep every message three times, beside one node, in turn in one run.

The same client, the same load, `durability=fsync`, `acks=all`; all nodes are processes of this machine and share its
processors and its disk. What the disk takes when three programs sync the same bytes at once is measured in the same
run: no replication on one disk can be faster than that.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import tempfile
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench import machine, result_files
from bench.disk_ceiling import synced_bytes_per_second
from bench.end_to_end import run_end_to_end
from bench.end_to_end_load import EndToEndLoad
from bench.load import Load
from bench.once import ADMIN_SECONDS_MAX
from bench.quiet import wait_for_quiet
from bench.targets import Target, penstock, run_load

NAME: Final = "replicated"
ROOT: Final = Path(__file__).parents[1]
NODES: Final = 3
# Each node leads one.
PARTITIONS: Final = 3
PATIENCE_SECONDS: Final = 5.0
DISK_SECONDS: Final = 2.0
DISK_BLOCK_BYTES: Final = 4_096
STEADY_RATE: Final = 10_000
STEADY_BYTES: Final = 100
P99_MS_MAX: Final = 20.0
P99_TIMES_MAX: Final = 6.0
# The least share of one node's rate; for batches a share of what the disk takes for three copies will do instead.
GOALS: Final = {"batched": 0.5, "one message per request": 0.25}
DISK_GOAL: Final = 0.8


class Rates(msgspec.Struct):
    """Messages per second of each round, and what the brokers took of a processor for one message."""

    name: str
    one: list[float]
    three: list[float]
    one_cpu_microseconds: list[float]
    three_cpu_microseconds: list[float]
    disk_of_three: list[float]

    @property
    def share(self) -> float:
        return max(self.three) / max(self.one)

    @property
    def share_of_disk(self) -> float:
        return max(self.three) / statistics.median(self.disk_of_three)

    @property
    def is_met(self) -> bool:
        kind = self.name.partition(", ")[2]
        return self.share >= GOALS[kind] or (kind == "batched" and self.share_of_disk >= DISK_GOAL)


class Steady(msgspec.Struct):
    """Milliseconds from send to receive, the 99th percentile of each round."""

    one_p99_ms: list[float]
    three_p99_ms: list[float]
    one_p50_ms: list[float]
    three_p50_ms: list[float]

    @property
    def is_met(self) -> bool:
        best_one, best_three = min(self.one_p99_ms), min(self.three_p99_ms)
        return best_three < P99_MS_MAX and best_three <= P99_TIMES_MAX * best_one


def main() -> None:
    arguments = _arguments()
    (ROOT / "build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="replicated-", dir=ROOT / "build"))
    try:
        facts = machine.facts(directory)
        with ExitStack() as stack:
            one = [stack.enter_context(_node(directory / "one", 1))]
            # The first makes what they share.
            three = [stack.enter_context(_node(directory / "three", number)) for number in range(1, NODES + 1)]
            rates = _measure_rates(one, three, directory, rounds=arguments.rounds, scale=arguments.scale)
            steady = _measure_steady(one, three, rounds=arguments.rounds, seconds=arguments.seconds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    is_met = all(each.is_met for each in rates) and steady.is_met
    print("every goal is met" if is_met else "a goal is missed")
    if not arguments.no_save:
        path = result_files.save(NAME, {"machine": facts, "rates": rates, "steady": steady, "is_met": is_met})
        print(f"saved bench/results/{path.name}")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=8.0, help="of the steady load")
    parser.add_argument("--no-save", action="store_true")
    return parser.parse_args()


def _node(directory: Path, number: int) -> Target:
    place = directory / str(number)
    place.mkdir(parents=True)
    environment = {
        "PENSTOCK_NODE__ID": str(number),
        "PENSTOCK_NODE__METADATA": f"sqlite:{directory / 'metadata.sqlite'}",
        "PENSTOCK_CLUSTER__LISTEN": "127.0.0.1:0",
    }
    return penstock(place, environment=environment)


def _measure_rates(
    one: Sequence[Target], three: Sequence[Target], directory: Path, *, rounds: int, scale: float
) -> list[Rates]:
    measured = []
    for kind, messages in (("batched", 2_000_000), ("one message per request", 60_000)):
        rates = Rates(f"produce 100 B, {kind}", [], [], [], [], [])
        for number in range(rounds):
            load = partial(_once, single=kind != "batched", messages=int(messages * scale))
            alone = load(one, f"{kind[:3]}-{number}", replication=1)
            spread = load(three, f"{kind[:3]}-{number}", replication=NODES)
            rates.one.append(alone.messages_per_second)
            rates.three.append(spread.messages_per_second)
            rates.one_cpu_microseconds.append(alone.cpu_microseconds)
            rates.three_cpu_microseconds.append(spread.cpu_microseconds)
            rates.disk_of_three.append(_disk_of_three(directory, bytes_per_sync=spread.bytes_per_sync) / 100)
            print(
                f"{rates.name}, round {number + 1}: {_sentence(rates)} ({spread.bytes_per_sync:,} B a sync)", flush=True
            )
        print(f"{rates.name}: {rates.share:.2f} of one node, {rates.share_of_disk:.2f} of the disk")
        measured.append(rates)
    return measured


def _sentence(rates: Rates) -> str:
    """About the last round."""
    alone = f"one node {rates.one[-1]:,.0f}/s at {rates.one_cpu_microseconds[-1]:.2f} us"
    spread = f"three {rates.three[-1]:,.0f}/s at {rates.three_cpu_microseconds[-1]:.2f} us"
    return f"{alone}, {spread}, the disk {rates.disk_of_three[-1]:,.0f}/s"


class _Run(msgspec.Struct, frozen=True):
    messages_per_second: float
    cpu_microseconds: float
    bytes_per_sync: int


def _once(nodes: Sequence[Target], topic: str, *, replication: int, single: bool, messages: int) -> _Run:
    _create(nodes, topic, replication=replication)
    wait_for_quiet(PATIENCE_SECONDS)
    cpu, turns = _cpu(nodes), _sync_turns(nodes)
    bootstrap = ",".join(node.bootstrap for node in nodes)
    load = Load(
        kind="produce",
        bootstrap=bootstrap,
        topics=[topic],
        partitions=PARTITIONS,
        value_bytes=100,
        messages=messages,
        single=single,
    )
    achieved = run_load(load)
    each = messages * 100 * replication / max(1.0, _sync_turns(nodes) - turns)
    return _Run(achieved.messages_per_second, 1e6 * (_cpu(nodes) - cpu) / messages, max(DISK_BLOCK_BYTES, int(each)))


def _create(nodes: Sequence[Target], topic: str, *, replication: int, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": nodes[0].bootstrap, "log_level": 0})
    wanted = NewTopic(topic, partitions, replication_factor=replication, config={"durability": "fsync"})
    admin.create_topics([wanted])[topic].result(ADMIN_SECONDS_MAX)


def _cpu(nodes: Sequence[Target]) -> float:
    return sum(node.cpu_seconds() for node in nodes)


def _sync_turns(nodes: Sequence[Target]) -> float:
    total = 0.0
    for node in nodes:
        with urllib.request.urlopen(f"http://{node.metrics}/metrics", timeout=10) as page:
            found = re.search(r"^penstock_sync_seconds_count (\S+)$", page.read().decode(), re.MULTILINE)
        assert found is not None, "the node does not count its syncs"
        total += float(found[1])
    return total


def _disk_of_three(directory: Path, *, bytes_per_sync: int) -> float:
    """Bytes of messages a second, when each of three processes writes and syncs all of them."""
    places = [directory / f"disk-{number}" for number in range(NODES)]
    with ProcessPoolExecutor(NODES) as pool:
        measure = partial(synced_bytes_per_second, bytes_per_sync=bytes_per_sync, seconds=DISK_SECONDS)
        return min(pool.map(measure, places))


def _measure_steady(one: Sequence[Target], three: Sequence[Target], *, rounds: int, seconds: float) -> Steady:
    steady = Steady([], [], [], [])
    for number in range(rounds):
        for name, nodes, replication in (("one node", one, 1), ("three", three, NODES)):
            topic = f"steady-{number}"
            _create(nodes, topic, replication=replication, partitions=1)
            wait_for_quiet(PATIENCE_SECONDS)
            arrived = run_end_to_end(
                EndToEndLoad(
                    seconds=seconds,
                    rate=STEADY_RATE,
                    value_bytes=STEADY_BYTES,
                    bootstrap=",".join(node.bootstrap for node in nodes),
                    topic=topic,
                )
            )
            p50, p99 = arrived.at(50) / 1000, arrived.at(99) / 1000
            (steady.one_p50_ms if replication == 1 else steady.three_p50_ms).append(p50)
            (steady.one_p99_ms if replication == 1 else steady.three_p99_ms).append(p99)
            print(f"{STEADY_RATE:,} a second, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
    return steady


if __name__ == "__main__":
    main()
