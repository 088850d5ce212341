"""Named schedules whose partitions different nodes lead: each of their times comes once, whoever leads by then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import SystemClock
from penstock.broker.schedule.values import ChangeOutcome, CronMessage, NotScheduled
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.sqlite import SqliteStore
from penstock.codec.batch.header import walk_headers
from penstock.codec.batch.records import read_records
from penstock.domain.partitioner import partition_for_key
from penstock.domain.schedule.commands import Done
from penstock.storage.log.read_plan import ReadPlan
from support.replication.moving_trio import MovingTrio
from support.replication.trio import TOPIC

EVERY_SECOND = "* * * * * *"
PARTITIONS = 2
# One of each partition.
KEYS = [next(b"%d" % n for n in range(99) if partition_for_key(b"%d" % n, PARTITIONS) == place) for place in (0, 1)]


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[MovingTrio]:
    """Partition 0 is led by node 1, partition 1 by node 2."""
    metadata = await SqliteStore.open(
        str(tmp_path / "metadata.sqlite"), clock=SystemClock(), is_secret=KeySpace().is_secret
    )
    made = MovingTrio(metadata)
    await made.start()
    await made.create((1, 2, 3), (2, 3, 1))
    yield made
    await made.stop()
    await metadata.close()


async def define(trio: MovingTrio, node_id: int, partition: int) -> ChangeOutcome:
    node = trio.nodes[node_id]
    served = node.broker.topic(TOPIC)
    assert served is not None
    message = CronMessage(KEYS[partition], b"%d" % partition)
    return await node.schedules.define_cron(served, "tick", message, expression=EVERY_SECOND)


def fired(trio: MovingTrio, node_id: int, partition: int) -> list[int]:
    """The times that a replica has, committed."""
    log = trio.nodes[node_id].shell(partition).log
    times: list[int] = []
    offset = log.log_start
    while offset < log.readable_end:
        plan = log.plan_read(offset, bytes_max=1 << 20)
        assert isinstance(plan, ReadPlan), plan
        loaded = bytes(plan.load())  # type: ignore[arg-type]
        for place, header in walk_headers(loaded):
            records = read_records(loaded, place)
            assert isinstance(records, list), records
            times += [record.timestamp_ms for record in records]
            offset = header.next_offset
    return times


def check_once(times: list[int]) -> None:
    assert len(set(times)) == len(times), f"a time came twice: {times}"
    first = min(times)
    assert sorted(times) == [first + 1_000 * number for number in range(len(times))], f"a time is missing: {times}"


async def test_a_cron_goes_on_with_the_next_leader_of_its_partition(trio: MovingTrio) -> None:
    assert await define(trio, 1, 0) == Done()
    await trio.until(lambda: len(fired(trio, 1, 0)) >= 1)
    await trio.elect(3, in_sync=(1, 2, 3))
    before = len(fired(trio, 3, 0))
    await trio.until(lambda: len(fired(trio, 3, 0)) >= before + 2)
    check_once(fired(trio, 3, 0))


async def test_a_cron_moves_to_a_partition_that_another_node_leads(trio: MovingTrio) -> None:
    assert await define(trio, 1, 0) == Done()
    await trio.until(lambda: len(fired(trio, 1, 0)) >= 1)
    refused = await define(trio, 1, 1)
    assert isinstance(refused, NotScheduled)
    assert "led by node 2" in refused.reason
    assert await define(trio, 2, 1) == Done()
    await trio.until(lambda: len(fired(trio, 2, 1)) >= 2)
    old = trio.nodes[1].schedules.open_shell(trio.nodes[1].shell(0))
    assert old is not None
    assert old.crons() == [], "its row is gone"
    check_once(fired(trio, 1, 0) + fired(trio, 2, 1))
    listed = await trio.nodes[1].schedules.crons()
    assert isinstance(listed, NotScheduled), "half of a list"


async def test_who_leads_the_old_partition_next_finishes_a_move(trio: MovingTrio) -> None:
    assert await define(trio, 1, 0) == Done()
    await trio.until(lambda: len(fired(trio, 1, 0)) >= 1)
    # Its leader is gone before it hears that another partition is named.
    await trio.stop(1)
    await trio.until(lambda: trio.nodes[2].shell(1).readable_end == 0)
    await trio.put_leader(2, partition=1, in_sync=(2, 3))
    assert await define(trio, 2, 1) == Done()
    topic_id = trio.nodes[2].shell(1).log.home.topic_id
    place = trio.nodes[2].topics.crons.get(topic_id, "tick")
    assert place is not None
    assert (place.partition, place.held) == (1, 0)
    assert fired(trio, 2, 1) == [], "nobody has let go"
    await trio.elect(3, in_sync=(2, 3))
    await trio.until(lambda: len(fired(trio, 2, 1)) >= 1)
    times = fired(trio, 3, 0) + fired(trio, 2, 1)
    assert len(set(times)) == len(times), f"a time came twice: {times}"
