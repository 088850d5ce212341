"""The work of `penstock mirror …`: a live table while it runs, its sums at the end."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.clock import SystemClock
from penstock.base.log_events import configure
from penstock.base.printable import printable
from penstock.cli.failure import CommandError
from penstock.cli.output import human_bytes, print_json, print_table, run_async, say
from penstock.client.errors import TopicMissingError
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.offsets import offset_ranges
from penstock.net.address import parse_addresses
from penstock.pipeline.mirror.clusters import Mirror, MirrorPlan
from penstock.pipeline.mirror.copy import TopicProgress
from penstock.pipeline.mirror.journal import journal_topic, read_journal

if TYPE_CHECKING:
    from rich.table import Table

REFRESH_SECONDS: Final = 0.5
COLUMNS: Final = ("topic", "records", "bytes", "records/s", "lag", "error")


class TopicSum(msgspec.Struct, frozen=True):
    topic: str
    records: int
    bytes: int
    lag: int
    error: str | None


class PartitionStatus(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    # Up to here the source is mirrored; None of both where the source has no such partition any more.
    mirrored: int
    end: int | None
    lag: int | None


def plan_of(
    *, name: str, source: str, target: str, topics: str, groups: str, prefix: str, from_latest: bool
) -> MirrorPlan:
    return MirrorPlan(name, source, target, topics, groups, prefix, from_latest)


def run(plan: MirrorPlan, *, once: bool, as_json: bool) -> None:
    configure(level="warning" if sys.stderr.isatty() else "info")
    mirror = Mirror(plan, clock=SystemClock())
    try:
        run_async(_run(mirror, once=once))
    except BaseException:
        # What was mirrored all the same, and which topic was not.
        if mirror.progress:
            _tell(plan, mirror.progress, as_json=as_json)
        raise
    _tell(plan, mirror.progress, as_json=as_json)


def _tell(plan: MirrorPlan, progress: Mapping[str, TopicProgress], *, as_json: bool) -> None:
    sums = _sums(progress)
    if as_json:
        print_json({"mirror": plan.name, "topics": sums})
    elif sums:
        print_table(
            ("topic", "records", "bytes", "lag"),
            [(each.topic, each.records, human_bytes(each.bytes), each.lag) for each in sums],
        )
    else:
        say(f"no topic of {plan.source} matches {plan.topics!r}")


async def _run(mirror: Mirror, *, once: bool) -> None:
    _stop_when_told(mirror)
    try:
        async with asyncio.TaskGroup() as together:
            watching = together.create_task(_watch(mirror)) if sys.stderr.isatty() else None
            try:
                await mirror.run(once=once)
            finally:
                if watching is not None:
                    watching.cancel()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _stop_when_told(mirror: Mirror) -> None:
    """The second time without waiting: a cluster that is away may keep a transaction under way for a minute."""
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    assert running is not None

    def stop() -> None:
        if mirror.is_stopping:
            running.cancel()
        else:
            say("stopping after what is under way; once more to stop at once")
            mirror.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


async def _watch(mirror: Mirror) -> None:
    from rich.console import Console
    from rich.live import Live

    before: dict[str, int] = {}
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        while True:
            live.update(_table(mirror.progress, before), refresh=True)
            before = {topic: progress.record_count for topic, progress in mirror.progress.items()}
            await asyncio.sleep(REFRESH_SECONDS)


def _table(progress: Mapping[str, TopicProgress], before: Mapping[str, int]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("topic", "error") else "right")
    for topic, each in sorted(progress.items()):
        rate = (each.record_count - before.get(topic, each.record_count)) / REFRESH_SECONDS
        cells = (
            topic,
            f"{each.record_count:,}",
            human_bytes(each.size_bytes),
            f"{rate:,.0f}",
            f"{each.lag:,}",
            each.error or "",
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _sums(progress: Mapping[str, TopicProgress]) -> list[TopicSum]:
    return [
        TopicSum(topic, each.record_count, each.size_bytes, each.lag, each.error)
        for topic, each in sorted(progress.items())
    ]


def status(source: str, target: str, name: str, *, as_json: bool) -> None:
    found = run_async(_status(source, target, name))
    if as_json:
        print_json({"mirror": name, "partitions": found})
    else:
        rows = [(each.topic, each.partition, each.mirrored, each.end, each.lag) for each in found]
        print_table(("topic", "partition", "mirrored", "end", "lag"), rows)


async def _status(source: str, target: str, name: str) -> list[PartitionStatus]:
    async with (
        ClusterClient(parse_addresses(source)) as source_client,
        ClusterClient(parse_addresses(target)) as target_client,
    ):
        try:
            books = await read_journal(target_client, name)
        except TopicMissingError:
            raise CommandError(f"{target} knows no mirror {name!r}: it has no topic {journal_topic(name)!r}") from None
        ends = await _ends(source_client, {topic for topic, _partition in books})
    found: list[PartitionStatus] = []
    for (topic, partition), book in sorted(books.items()):
        mirrored, end = book.source_next or 0, ends.get((topic, partition))
        lag = None if end is None else max(end - mirrored, 0)
        found.append(PartitionStatus(topic, partition, mirrored, end, lag))
    return found


async def _ends(client: ClusterClient, topics: set[str]) -> dict[tuple[str, int], int]:
    ends: dict[tuple[str, int], int] = {}
    for info in await client.topics():
        if info.name in topics:
            held = await offset_ranges(client, info.name, range(len(info.partitions)), is_read_committed=True)
            ends |= {(info.name, partition): each.end for partition, each in held.items()}
    return ends
