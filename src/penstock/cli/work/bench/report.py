"""The outcome of a bench: a table and a histogram for people, one document for programs."""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from penstock.cli.output import print_json, print_table
from penstock.cli.work.bench.latency_histogram import LatencyHistogram

_BAR_WIDTH: Final = 50
_PERCENTS: Final = (50.0, 90.0, 99.0, 99.9)
# 1, 2, 5 in each decade from 100 µs to 10 s: the shape is seen, whatever the disk.
_LIMITS_US: Final = tuple(
    base * 10**power for power in range(2, 7) for base in (1, 2, 5)
)  # fmt: skip
MEGABYTE: Final = 1_000_000


class LatencySummary(msgspec.Struct, frozen=True):
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p99_9_ms: float
    max_ms: float
    mean_ms: float


class BenchOutcome(msgspec.Struct, frozen=True):
    kind: str
    topic: str
    partitions: int
    message_bytes: int
    messages: int
    payload_bytes: int
    seconds: float
    messages_per_second: float
    megabytes_per_second: float
    requests: int
    latency: LatencySummary | None = None
    # The disk's own sync of writes of the same size, in the same run.
    disk_sync: LatencySummary | None = None
    # p99 over the disk's own p99.
    disk_ratio: float | None = None
    # How far the client was behind its plan at worst: large means that the client was the bottleneck.
    behind_ms_max: float | None = None


def summarise(histogram: LatencyHistogram) -> LatencySummary | None:
    if not histogram.count:
        return None
    p50, p90, p99, p99_9 = (round(histogram.percentile_us(percent) / 1000, 3) for percent in _PERCENTS)
    return LatencySummary(
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p99_9_ms=p99_9,
        max_ms=round(histogram.max_us / 1000, 3),
        mean_ms=round(histogram.mean_us / 1000, 3),
    )


def show(outcome: BenchOutcome, histogram: LatencyHistogram | None, *, as_json: bool) -> None:
    if as_json:
        document = msgspec.to_builtins(outcome)
        document["histogram"] = [] if histogram is None else [
            {"from_ms": bar.low_us / 1000, "to_ms": bar.high_us / 1000, "count": bar.count}
            for bar in histogram.bars(_LIMITS_US)
        ]  # fmt: skip
        print_json(document)
        return
    print_table(None, _rows(outcome), title=f"bench {outcome.kind}")
    if histogram is not None and histogram.count:
        sys.stdout.write("\n".join(histogram_lines(histogram)) + "\n")


def _rows(outcome: BenchOutcome) -> list[tuple[str, str]]:
    rows = [
        ("topic", f"{outcome.topic}, {outcome.partitions} partition{'s' if outcome.partitions != 1 else ''}"),
        ("messages", f"{outcome.messages:,} of {outcome.message_bytes:,} B in {outcome.requests:,} requests"),
        ("payload", f"{outcome.payload_bytes / MEGABYTE:,.1f} MB in {outcome.seconds:.2f} s"),
        ("messages/s", f"{outcome.messages_per_second:,.0f}"),
        ("MB/s", f"{outcome.megabytes_per_second:,.1f}"),
    ]
    if outcome.latency is not None:
        rows.append(("latency", _latency_text(outcome.latency)))
    if outcome.behind_ms_max is not None:
        rows.append(("client late by", f"{outcome.behind_ms_max:.2f} ms at most"))
    if outcome.disk_sync is not None:
        rows.append(("disk sync alone", _latency_text(outcome.disk_sync)))
    if outcome.disk_ratio is not None:
        rows.append(("p99 / disk p99", f"{outcome.disk_ratio:.2f}"))
    return rows


def _latency_text(latency: LatencySummary) -> str:
    values = (
        ("p50", latency.p50_ms),
        ("p90", latency.p90_ms),
        ("p99", latency.p99_ms),
        ("p99.9", latency.p99_9_ms),
        ("max", latency.max_ms),
    )
    return "  ".join(f"{name} {value:.2f}" for name, value in values) + " ms"


def histogram_lines(histogram: LatencyHistogram) -> list[str]:
    bars = histogram.bars(_LIMITS_US)
    largest = max(bar.count for bar in bars)
    lines = ["latency"]
    for bar in bars:
        # A single message in a million is still worth a mark.
        length = max(round(bar.count / largest * _BAR_WIDTH), 1) if bar.count else 0
        share = bar.count / histogram.count * 100
        lines.append(
            f"  {_edge(bar.low_us):>8} - {_edge(bar.high_us):<8} {'#' * length:<{_BAR_WIDTH}} "
            f"{share:7.3f} %  {bar.count:,}"
        )
    return lines


def _edge(value_us: int) -> str:
    return f"{value_us / 1000:g} ms" if value_us < 1_000_000 else f"{value_us / 1_000_000:g} s"
