"""The figures of a run: as lines while it runs, as a table at its end, as JSON and a picture for later."""

from __future__ import annotations

import statistics
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import result_files
from bench.cases import Figures
from bench.quiet import OTHER_CORES_MAX

NAME: Final = "share-of-ceiling"
PENSTOCK: Final = ("interval", "fsync")
START_SECONDS_MAX: Final = 1.0
IDLE_MEGABYTES_MAX: Final = 100.0
TABLE_WIDTH: Final = 132


def headline(facts: dict[str, Any]) -> str:
    return (
        f"{facts['cores']} cores, {facts['memory_gigabytes']} GB, {facts['filesystem']}, "
        f"kernel {facts['kernel']}, Python {facts['python']}, commit {facts['commit']}"
    )


def progress(figures: Figures, number: int, rounds: int) -> None:
    latest = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in figures.rounds.items())
    disk = figures.disk_messages_per_second[-1:]
    tail = f", disk {disk[0]:,.0f}" if disk else ""
    print(f"{figures.case.name}, round {number + 1} of {rounds}: {latest}{tail} msg/s{_noise(figures)}", flush=True)


def _noise(figures: Figures) -> str:
    cores = max(figures.other_cores[-len(figures.rounds) :])
    return f" (others used {cores:.1f} cores)" if cores > OTHER_CORES_MAX else ""


def show(all_figures: list[Figures], start: dict[str, float]) -> list[str]:
    """Prints the table. Returns the goals that were missed."""
    table = Table(title="messages per second, and Penstock's share of the ceiling")
    for heading in (
        "load",
        "null broker",
        "mock cluster",
        "disk",
        "durability",
        "Penstock",
        "share",
        "goal",
        "",
        "CPU",
    ):
        table.add_column(heading, justify="left" if heading in {"load", "durability"} else "right")
    missed: list[str] = []
    for figures in all_figures:
        for name in PENSTOCK:
            if name in figures.rounds:
                table.add_row(*_row(figures, name, missed))
    # Written into a file or a narrow terminal, the table must still be readable.
    console = Console(width=TABLE_WIDTH)
    console.print(table)
    console.print("CPU: seconds of the broker's processor time for a million messages")
    console.print(
        f"start {start['start_seconds']:.2f} s (goal {START_SECONDS_MAX}), "
        f"idle {start['idle_megabytes']:.0f} MB (goal {IDLE_MEGABYTES_MAX:.0f})"
    )
    other_cores = statistics.median(cores for figures in all_figures for cores in figures.other_cores)
    if other_cores > OTHER_CORES_MAX:
        console.print(f"not a quiet machine: others used {other_cores:.1f} cores, so trust no figure", style="red")
    console.print(f"missed: {'; '.join(missed)}" if missed else "every goal is met", style="bold")
    return missed


def _row(figures: Figures, name: Any, missed: list[str]) -> list[str]:
    share, goal = figures.share(name), figures.case.goals.get(name)
    verdict = ""
    cpu, cpu_goal = figures.cpu_median(name), figures.case.cpu_goal
    cpu_words = f"{cpu:.2f}"
    if cpu_goal is not None:
        verdict = "met" if cpu <= cpu_goal else "missed"
        cpu_words = f"{cpu:.2f} of {cpu_goal}"
        if cpu > cpu_goal:
            missed.append(
                f"{figures.case.name} with {name}: {cpu:.2f} s of CPU for a million messages, at most {cpu_goal}"
            )
    if goal is not None:
        verdict = "met" if share >= goal else "missed"
        if share < goal:
            missed.append(f"{figures.case.name} with {name}: {share:.2f} of {goal}")
    disk = figures.disk_messages_per_second
    return [
        figures.case.name,
        f"{figures.median('null broker'):,.0f}",
        f"{figures.median('mock cluster'):,.0f}",
        f"{sorted(disk)[len(disk) // 2]:,.0f}" if disk and name == "fsync" else "",
        name,
        f"{figures.median(name):,.0f}",
        f"{share:.2f}",
        "" if goal is None else f"{goal:.2f}",
        verdict,
        cpu_words,
    ]


def save(facts: dict[str, Any], all_figures: list[Figures], start: dict[str, float]) -> None:
    cases = [
        {
            "name": figures.case.name,
            "rounds": figures.rounds,
            "broker_cpu_microseconds_per_message": figures.broker_cpu_microseconds,
            "disk_messages_per_second": figures.disk_messages_per_second,
            "bytes_per_sync": figures.bytes_per_sync,
            "other_cores": [round(cores, 2) for cores in figures.other_cores],
            "share": {name: round(figures.share(name), 3) for name in PENSTOCK if name in figures.rounds},
            "goal": figures.case.goals,
            "cpu_goal": figures.case.cpu_goal,
        }
        for figures in all_figures
    ]
    path = result_files.save(NAME, {"machine": facts, "start": start, "cases": cases})
    picture = result_files.save_picture(NAME, _draw(all_figures))
    print(f"saved bench/results/{path.name} and {picture.name}")


def _draw(all_figures: list[Figures]) -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "penstock"
    from matplotlib import patches
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.9 * len(all_figures) + 1.2))
    colours = {"interval": "#2a7f9e", "fsync": "#1b4965"}
    for position, figures in enumerate(all_figures):
        names = [name for name in PENSTOCK if name in figures.rounds]
        for index, name in enumerate(names):
            height = position + (index - (len(names) - 1) / 2) * 0.36
            axes.barh(height, figures.share(name), 0.32, color=colours[name])
            axes.text(figures.share(name) + 0.01, height, f"{figures.median(name):,.0f} msg/s", va="center")
            goal = figures.case.goals.get(name)
            if goal is not None:
                axes.plot([goal, goal], [height - 0.18, height + 0.18], color="#d1495b", linewidth=2)
    axes.set_yticks(range(len(all_figures)), [figures.case.name for figures in all_figures])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35)
    axes.set_xlabel("share of the ceiling in the same run; red: the goal")
    handles = [patches.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    axes.legend(handles, list(colours), title="durability", loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
