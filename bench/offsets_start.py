"""`make bench-offsets`: how long a killed node needs to be ready again when its groups hold a million positions.

Every position is a (group, topic, partition) of its own, committed through the Kafka door and acknowledged. Then kill
-9, and starts of two kinds: from the log alone, and from the snapshot that the node makes by itself in a while. After
each start some groups are asked for all of their positions: a quick start that has forgotten something is none.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench import machine, report, result_files
from bench.targets import Target, penstock
from penstock.client.kafka import admin, groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.address import parse_addresses
from penstock.storage.log.journal_snapshot import SNAPSHOT_FILE

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "offsets-start"
TOPICS: Final = 10
PARTITIONS: Final = 100
POSITIONS_PER_GROUP: Final = TOPICS * PARTITIONS
COMMITS_AT_ONCE: Final = 8
READY_SECONDS_GOAL: Final = 5.0
STARTS: Final = 3
GROUPS_CHECKED: Final = 5
# The node looks every half a minute whether one is due, and writes one partition after the other.
SNAPSHOT_SECONDS_MAX: Final = 90.0


def positions_of(group: int) -> dict[tuple[str, int], int]:
    return {
        (f"topic-{topic}", partition): group * POSITIONS_PER_GROUP + topic * PARTITIONS + partition
        for topic in range(TOPICS)
        for partition in range(PARTITIONS)
    }


def connected(node: Target) -> ClusterClient:
    return ClusterClient(parse_addresses(node.bootstrap))


async def fill(node: Target, *, group_count: int) -> None:
    async with connected(node) as client:
        for topic in range(TOPICS):
            await admin.create_topic(client, f"topic-{topic}", partitions=PARTITIONS)
        numbers = iter(range(group_count))

        async def commit() -> None:
            for number in numbers:
                await groups.commit_offsets(client, f"group-{number}", positions_of(number))

        await asyncio.gather(*(commit() for _ in range(COMMITS_AT_ONCE)))


async def check(node: Target, *, group_count: int) -> None:
    async with connected(node) as client:
        for number in range(0, group_count, max(1, group_count // GROUPS_CHECKED)):
            found = await groups.committed_offsets(client, f"group-{number}")
            assert found == positions_of(number), f"group-{number} has {len(found)} positions, or others"


def measure(directory: Path, *, group_count: int, kind: str) -> dict[str, Any]:
    with penstock(directory) as node:
        start: dict[str, Any] = {
            "kind": kind,
            "seconds": round(node.ready_seconds, 3),
            "cpu_seconds": round(node.cpu_seconds(), 2),
            "resident_bytes": node.resident_bytes(),
        }
        asyncio.run(check(node, group_count=group_count))
        if kind == "log":
            _remove_snapshots(directory)
        node.kill()
    print(
        f"from the {kind}: ready after {start['seconds']} s, {start['cpu_seconds']} s of processor time, "
        f"{start['resident_bytes'] / 1e6:.0f} MB resident",
        flush=True,
    )
    return start


def _snapshots(directory: Path) -> list[Path]:
    return sorted(directory.rglob(SNAPSHOT_FILE))


def _remove_snapshots(directory: Path) -> None:
    for path in _snapshots(directory):
        path.unlink()


def _partitions_with_records(directory: Path) -> int:
    """Of the internal topic: nothing else was written to."""
    return len({path.parent for path in directory.rglob("*.log") if path.parent.name.isdigit() and path.stat().st_size})


def make_snapshots(directory: Path) -> float:
    """The node runs until it has made one for each partition; how long that took."""
    with penstock(directory) as node:
        began = time.monotonic()
        while len(_snapshots(directory)) < _partitions_with_records(directory):
            seconds = time.monotonic() - began
            assert seconds < SNAPSHOT_SECONDS_MAX, f"{len(_snapshots(directory))} snapshots after {seconds:.0f} s"
            time.sleep(0.5)
        node.kill()
    return time.monotonic() - began


def run(directory: Path, *, group_count: int) -> dict[str, Any]:
    count = group_count * POSITIONS_PER_GROUP
    print(f"committing {count:,} positions", flush=True)
    with penstock(directory) as node:
        began = time.monotonic()
        asyncio.run(fill(node, group_count=group_count))
        seconds = time.monotonic() - began
        node.kill()
    _remove_snapshots(directory)
    print(f"committed in {seconds:.1f} s", flush=True)
    starts = [measure(directory, group_count=group_count, kind="log") for _ in range(STARTS)]
    make_snapshots(directory)
    starts += [measure(directory, group_count=group_count, kind="snapshot") for _ in range(STARTS)]
    log_bytes = sum(path.stat().st_size for path in directory.rglob("*.log") if path.parent.name.isdigit())
    snapshot_bytes = sum(path.stat().st_size for path in _snapshots(directory))
    return {"positions": count, "log_bytes": log_bytes, "snapshot_bytes": snapshot_bytes, "starts": starts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--groups",
        type=int,
        default=1_000,
        help=f"each commits {POSITIONS_PER_GROUP} positions; at least 200, or no snapshot is worth it",
    )
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="offsets-", dir=build))
    try:
        facts = machine.facts(directory)
        print(report.headline(facts))
        result = run(directory, group_count=arguments.groups)
    finally:
        shutil.rmtree(directory)
    slowest = max(start["seconds"] for start in result["starts"])
    verdict = "met" if slowest < READY_SECONDS_GOAL else "missed"
    print(f"{result['positions']:,} positions: slowest start {slowest} s, goal {READY_SECONDS_GOAL} s {verdict}")
    if not arguments.no_save:
        result_files.save(NAME, {"machine": facts, **result})


if __name__ == "__main__":
    main()
