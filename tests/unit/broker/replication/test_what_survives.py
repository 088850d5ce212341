"""The table of docs/cluster.md, "What survives": every cell is tried with three nodes and disks that lose power."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from penstock.base.clock import SystemClock
from penstock.broker.partition.acks import Acks
from penstock.broker.partition.outcome import Appended
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.replication.election import choose
from penstock.domain.replication.view import Standing
from support.replication.trio import PATIENCE_SECONDS, Trio
from support.storage.faulty_files import FaultyFiles

PAGE: Final = Path(__file__).parents[4] / "docs" / "cluster.md"
HEADING: Final = "## What survives"
KEPT: Final = b"the record that was acknowledged"
LOG: Final = ".log"
LEADER, FOLLOWERS = 1, (2, 3)


class Row(NamedTuple):
    durability: str
    acks: str
    minimum: str
    # As the page tells it.
    killed: str
    power_of_one: str
    power_of_all: str
    disk_lost: str


def rows() -> Iterator[Row]:
    section = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")][1:]
    for line in lines:
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        row = Row(*cells)
        yield from [
            row._replace(minimum=minimum) for minimum in (("1", "2") if row.minimum == "any" else (row.minimum,))
        ]


def test_the_table_is_found() -> None:
    assert len(list(rows())) >= 9
    assert {(row.durability, row.acks) for row in rows()} >= {("fsync", "all"), ("replicated", "all"), ("fsync", "1")}


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row.durability}-{row.acks}-{row.minimum}")
async def test_what_the_page_says_survives_does_and_the_rest_does_not(row: Row, tmp_path: Path) -> None:
    metadata = await SqliteStore.open(
        str(tmp_path / "metadata.sqlite"), clock=SystemClock(), is_secret=KeySpace().is_secret
    )
    disks = {node: FaultyFiles() for node in (LEADER, *FOLLOWERS)}
    trio = Trio(metadata, dict(disks))
    await trio.start()
    try:
        await trio.create(durability=row.durability, min_insync_replicas=row.minimum, durability_interval_ms="3600000")
        # All of them follow: the worst moment comes later.
        await trio.until(lambda: trio.nodes[LEADER].shell().may_look)
        await acknowledge(trio, row)
        assert tell(trio, disks, row) == row[3:]
    finally:
        await trio.stop(clean=False)
        await metadata.close()


async def acknowledge(trio: Trio, row: Row) -> None:
    """At the worst moment: no more replicas have it than must."""
    trio.wire.cut(*(FOLLOWERS if row.acks == "1" or row.minimum == "1" else FOLLOWERS[1:]))
    batch = memoryview(build_batch([Record(value=KEPT, timestamp_ms=SystemClock().now_ms())]))
    outcome = trio.nodes[LEADER].shell().append(batch, acks=Acks(is_all=row.acks == "all"))
    assert isinstance(outcome, Appended), outcome
    if outcome.commitment is not None:
        assert await asyncio.wait_for(outcome.commitment.kept(), PATIENCE_SECONDS), outcome.commitment.loss
    if row.acks == "all":
        # The store has it already, and the watch brings it a moment later.
        await trio.until(lambda: len(trio.stated(LEADER).state.in_sync) == int(row.minimum))


def tell(trio: Trio, disks: dict[int, FaultyFiles], row: Row) -> tuple[str, ...]:
    (group,) = trio.nodes[LEADER].replication.groups.values()
    # As the store has confirmed it; the watch may bring it later.
    state = group.progress.state
    view = {node: Standing(trio.nodes[node].life) for node in FOLLOWERS}
    after = choose(state, view, minimum=int(row.minimum))
    # Nobody else may lead: the partition waits for the one that had it.
    heir = after.leader if after is not None and after.has_leader else LEADER
    in_memory = {
        node: any(KEPT in disk.content(path) for path in disk.paths() if path.endswith(LOG))
        for node, disk in disks.items()
    }
    on_disk = {node: disk.holds_durably(KEPT, LOG) for node, disk in disks.items()}
    is_led_by_another = heir != LEADER
    survives = (
        in_memory[heir],
        in_memory[heir] if is_led_by_another else on_disk[LEADER],
        on_disk[heir],
        is_led_by_another and in_memory[heir],
    )
    return tuple("yes" if each else "no" for each in survives)
