"""The figures of `make bench-rebalance`: goals, a table, a document, a picture of the gap of each member."""

from __future__ import annotations

import statistics
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench import report
from bench.quiet import OTHER_CORES_MAX
from bench.rebalance_coordinator import OwnTime
from bench.rebalance_gaps import Departure
from bench.rebalance_group import FLOW_INTERVAL_MS

RECOVERY_MS_GOAL: Final = 1_000
# How much longer than the longest gap without a departure, and still "did not stop": two bursts of the flow.
GAP_MS_SPARE: Final = 2 * FLOW_INTERVAL_MS
INTERVALS_MS_EXPECTED: Final = {100: 500, 200: 500, 400: 1_000}

Found = dict[str, list[Departure]]


def line(departures: list[Departure]) -> str:
    return "; ".join(
        f"{one.how}: consumed again after {one.recovered_ms:.0f} ms, longest gap elsewhere {one.gaps_ms[-1]:.0f} ms"
        for one in departures
    )


def document(one: Departure) -> dict[str, Any]:
    return {
        "how": one.how,
        "moved_partitions": one.moved_partitions,
        "needless_moves": one.needless_moves,
        "recovery_ms": [round(value) for value in one.recovery_ms],
        # Of each member that kept its partitions, ascending.
        "steady_gaps_ms": [round(value) for value in one.steady_gaps_ms],
        "gaps_ms": [round(value) for value in one.gaps_ms],
    }


def show(found: Found, own_times: list[OwnTime], intervals_ms: dict[int, int], other_cores: list[float]) -> None:
    table = Table(title="milliseconds; gaps are the longest of each member that kept its partitions")
    for heading in ("protocol", "one member", "consumed again", "steady gap", "gap", "longest gap", "moved in vain"):
        table.add_column(heading, justify="left" if heading in {"protocol", "one member"} else "right")
    for protocol, departures in found.items():
        for one in departures:
            table.add_row(
                protocol,
                one.how,
                f"{one.recovered_ms:.0f}",
                f"{statistics.median(one.steady_gaps_ms):.0f}",
                f"{one.gap_median_ms:.0f}",
                f"{one.gaps_ms[-1]:.0f}",
                str(one.needless_moves),
            )
    console = Console(width=report.TABLE_WIDTH)
    console.print(table)
    for own in own_times:
        console.print(
            f"classic, {own.members} members: {own.own_ms:.1f} ms of a round are the coordinator's own "
            f"(join {own.join_ms:.1f}, sync {own.sync_ms:.1f}), {own.round_ms:.1f} ms from leave to end"
        )
    asked = ", ".join(f"{interval} ms for {count} members" for count, interval in intervals_ms.items())
    console.print(f"heartbeats asked for: {asked}")
    if statistics.median(other_cores) > OTHER_CORES_MAX:
        console.print(f"not a quiet machine: others used {statistics.median(other_cores):.1f} cores", style="red")


def missed(departures: list[Departure], intervals_ms: dict[int, int]) -> list[str]:
    """The goals, which hold for the consumer protocol, that were not met."""
    found: list[str] = []
    for one in departures:
        if one.recovered_ms >= RECOVERY_MS_GOAL:
            found.append(f"{one.how}: consumed again after {one.recovered_ms:.0f} ms, goal {RECOVERY_MS_GOAL}")
        if one.gaps_ms[-1] > one.steady_gaps_ms[-1] + GAP_MS_SPARE:
            found.append(f"{one.how}: a member that kept its partitions paused for {one.gaps_ms[-1]:.0f} ms")
        if one.needless_moves:
            found.append(f"{one.how}: {one.needless_moves} partitions moved between members that stayed")
    if intervals_ms != INTERVALS_MS_EXPECTED:
        found.append(f"heartbeat intervals {intervals_ms}, expected {INTERVALS_MS_EXPECTED}")
    return found


def draw(found: Found) -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "penstock"
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    figure, panels = plt.subplots(1, len(found), figsize=(9, 3.6), sharey=True)
    for panel, (protocol, departures) in zip(panels, found.items(), strict=True):
        for one in departures:
            colour = "tab:blue" if one.how == "left" else "tab:orange"
            panel.plot(one.steady_gaps_ms, color="lightgrey", zorder=1)
            panel.plot(one.gaps_ms, color=colour)
            panel.plot([len(one.gaps_ms) + 2], [one.recovered_ms], marker="o", color=colour)
        panel.axhline(RECOVERY_MS_GOAL, color="grey", linewidth=0.8, linestyle="--")
        panel.set_title(f"{protocol} protocol")
        panel.set_xlabel("members that kept their partitions, by gap")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("longest gap, ms")
    names = {"lightgrey": "before", "tab:blue": "after one left", "tab:orange": "after one was killed"}
    handles = [Line2D([], [], color=colour, label=name) for colour, name in names.items()]
    handles.append(Line2D([], [], color="black", marker="o", linestyle="", label="its partitions consumed again"))
    panels[0].legend(handles=handles, frameon=False)
    return figure
