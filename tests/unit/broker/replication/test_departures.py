"""A replica that is whole again says so until the store has it."""

from __future__ import annotations

import asyncio

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.replication import departures
from penstock.broker.replication.departures import Departures
from penstock.broker.replication.in_sync import Decide, Place
from penstock.cluster.catalog.partition_image import Stated
from penstock.cluster.store.protocol import StoreUnavailableError
from penstock.domain.replication.state import PartitionState

PLACE: Place = (bytes(16), 0)
NODE = 1
MENDING = PartitionState(leader=2, life=5, epoch=0, replicas=(1, 2), in_sync=(2,), mending=(NODE,))
PATIENCE_SECONDS = 10 * departures.RETRY_MS / 1000


class Changes:
    """A store that is out of reach for so many changes."""

    def __init__(self, *, away_count: int) -> None:
        self.away_count = away_count
        self.state = MENDING
        self.is_asked = asyncio.Event()
        self.is_changed = asyncio.Event()

    async def change(self, _place: Place, decide: Decide) -> Stated | None:
        self.is_asked.set()
        if self.away_count:
            self.away_count -= 1
            raise StoreUnavailableError("the metadata store is out of reach")
        after = decide(self.state)
        if after is not None:
            self.state = after
            self.is_changed.set()
        return None


def departing(changes: Changes, tasks: TaskSupervisor) -> Departures:
    return Departures(changes, tasks, lambda _place: 1, dict, NODE)  # type: ignore[arg-type]


async def test_a_replica_that_is_whole_while_the_store_is_away_says_so_when_it_is_back() -> None:
    tasks, changes = TaskSupervisor(get_logger("test")), Changes(away_count=1)
    departing(changes, tasks).come_back(PLACE, lambda: True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await changes.is_changed.wait()
    await tasks.stop()
    assert changes.state.mending == ()


async def test_a_replica_that_is_not_whole_any_more_says_nothing() -> None:
    tasks, changes = TaskSupervisor(get_logger("test")), Changes(away_count=0)
    looks = iter([True, False])
    departing(changes, tasks).come_back(PLACE, lambda: next(looks, False))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await changes.is_asked.wait()
    await tasks.stop()
    assert changes.state == MENDING
