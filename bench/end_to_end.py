"""`make bench-end-to-end`: from produce to consume at a steady rate, and what the node's event loop did meanwhile.

    python -m bench.end_to_end --beside ../other-checkout      two commits in turn, in one run

One producer sends what is due every millisecond; one consumer reads it. The node is started anew for every turn, on an
empty directory, and its loop is watched (`bench.watched_node`).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import machine, result_files
from bench.end_to_end_load import Arrived, EndToEndLoad
from bench.once import create_topic
from bench.quiet import wait_for_quiet
from bench.targets import penstock
from bench.watched_node import OUT

NAME: Final = "end-to-end"
ROOT: Final = Path(__file__).parents[1]
PERCENTS: Final = (50.0, 90.0, 99.0, 99.9, 100.0)
PATIENCE_SECONDS: Final = 5.0
MORE_SECONDS_MAX: Final = 60.0


class Turn(msgspec.Struct, frozen=True):
    """Milliseconds at each of PERCENTS: of messages on their way, and of the loop on its way to what was due."""

    latency_ms: list[float]
    loop_delay_ms: list[float]
    messages: int
    node_cpu_seconds: float

    def sentence(self) -> str:
        return f"messages {_words(self.latency_ms)}; loop {_words(self.loop_delay_ms)}; CPU {self.node_cpu_seconds} s"


def main() -> None:
    arguments = _arguments()
    trees = {"this": ROOT} | ({"beside": arguments.beside.resolve()} if arguments.beside else {})
    load = EndToEndLoad(seconds=arguments.seconds, rate=arguments.rate, value_bytes=arguments.value_bytes)
    turns: dict[str, list[Turn]] = {name: [] for name in trees}
    (ROOT / "build").mkdir(exist_ok=True)
    print(f"{load.rate:,} messages of {load.value_bytes} B a second, durability={arguments.durability}; milliseconds")
    for number in range(arguments.rounds):
        for name, tree in trees.items():
            turn = _turn(tree, load, arguments.durability)
            turns[name].append(turn)
            print(f"round {number + 1} of {arguments.rounds}, {name}: {turn.sentence()}", flush=True)
    for name, of_tree in turns.items():
        print(f"median of {len(of_tree)}, {name}: {_median(of_tree).sentence()}")
    if not arguments.no_save:
        _save(arguments.durability, load, trees, turns)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=100_000, help="messages a second")
    parser.add_argument("--value-bytes", type=int, default=1_024)
    parser.add_argument("--durability", choices=("interval", "fsync"), default="interval")
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn with this one")
    parser.add_argument("--no-save", action="store_true")
    return parser.parse_args()


def _turn(tree: Path, load: EndToEndLoad, durability: str) -> Turn:
    directory = Path(tempfile.mkdtemp(prefix="end-to-end-", dir=ROOT / "build"))
    delays = directory / "delays.json"
    wait_for_quiet(PATIENCE_SECONDS)
    try:
        node = penstock(directory, environment={OUT: str(delays)}, tree=tree, module="bench.watched_node")
        with node:
            create_topic(node, load.topic, durability=durability)
            began = node.cpu_seconds()
            arrived = run_end_to_end(msgspec.structs.replace(load, bootstrap=node.bootstrap))
            node_cpu = node.cpu_seconds() - began
        loop_delays = sorted(msgspec.json.decode(delays.read_bytes(), type=list[int]))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    last = len(loop_delays) - 1
    return Turn(
        latency_ms=[round(arrived.at(percent) / 1000, 2) for percent in PERCENTS],
        loop_delay_ms=[round(loop_delays[int(last * percent / 100)] / 1000, 2) for percent in PERCENTS],
        messages=arrived.messages,
        node_cpu_seconds=round(node_cpu, 2),
    )


def run_end_to_end(load: EndToEndLoad) -> Arrived:
    told = msgspec.json.encode(load).decode()
    command = [sys.executable, "-m", "bench.end_to_end_load"]
    consumer = subprocess.Popen([*command, "consume", told], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        subprocess.run([*command, "produce", told], check=True, capture_output=True, timeout=_longest(load), cwd=ROOT)
        printed, _ = consumer.communicate(timeout=_longest(load))
    finally:
        consumer.kill()
        consumer.wait()
    assert consumer.returncode == 0, "the consumer failed"
    return msgspec.json.decode(printed, type=Arrived)


def _longest(load: EndToEndLoad) -> float:
    return load.seconds + MORE_SECONDS_MAX


def _median(turns: list[Turn]) -> Turn:
    def at_each_percent(field: str) -> list[float]:
        by_percent = zip(*(getattr(turn, field) for turn in turns), strict=True)
        return [round(statistics.median(values), 2) for values in by_percent]

    return Turn(
        at_each_percent("latency_ms"),
        at_each_percent("loop_delay_ms"),
        min(turn.messages for turn in turns),
        round(statistics.median(turn.node_cpu_seconds for turn in turns), 2),
    )


def _words(values: list[float]) -> str:
    names = [f"p{percent:g}" if percent < 100 else "max" for percent in PERCENTS]
    return ", ".join(f"{name} {value:.1f}" for name, value in zip(names, values, strict=True))


def _save(durability: str, load: EndToEndLoad, trees: dict[str, Path], turns: dict[str, list[Turn]]) -> None:
    result = {
        "machine": machine.facts(ROOT),
        "commits": {name: machine.commit(tree) for name, tree in trees.items()},
        "durability": durability,
        "load": load,
        "percents": PERCENTS,
        "turns": turns,
    }
    path = result_files.save(NAME, result)
    picture = result_files.save_picture(NAME, _draw(turns))
    print(f"saved bench/results/{path.name} and {picture.name}")


def _draw(turns: dict[str, list[Turn]]) -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "penstock"
    from matplotlib import pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    colours = {"this": "#1b4965", "beside": "#d1495b"}
    places = range(len(PERCENTS))
    titles = {"latency_ms": "from produce to consume", "loop_delay_ms": "the event loop's delay"}
    for axes, (field, title) in zip(both, titles.items(), strict=True):
        for name, of_tree in turns.items():
            for turn in of_tree:
                axes.plot(places, getattr(turn, field), color=colours[name], alpha=0.25, linewidth=1)
            axes.plot(places, getattr(_median(of_tree), field), color=colours[name], marker="o", label=name)
        axes.set_xticks(places, [f"{percent:g} %" for percent in PERCENTS])
        axes.set_yscale("log")
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_ylabel("milliseconds")
    both[1].legend(title="checkout")
    return figure


if __name__ == "__main__":
    main()
