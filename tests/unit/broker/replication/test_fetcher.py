"""A lane to one leader: what becomes of a log whose answer it has taken."""

from __future__ import annotations

import asyncio

from penstock.base.clock import SystemClock
from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.broker.partition.role import Following
from penstock.broker.replication.fetcher import Asking, Fetcher
from penstock.broker.replication.followed import Failure, FollowedLog
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.replication.exchange import LogFetched, LogName, ReplicaFetch, ReplicaFetched
from penstock.domain.replication.truncation import BeginAnew, Cut
from penstock.net.peers import Lane
from support.partition import TOPIC_ID, PartitionDesk
from support.storage.gated_disk import GatedDisk

NAME = LogName(TOPIC_ID, 0)
LEADER = 2
PATIENCE_SECONDS = 5.0


class OneAnswer:
    """A leader that gives one batch, and is asked no more after it."""

    def __init__(self) -> None:
        self.is_asked = False
        self.is_asked_again = asyncio.Event()

    async def fetch(self, _node_id: int, _lane: Lane, _fetch: ReplicaFetch) -> ReplicaFetched:
        if self.is_asked:
            self.is_asked_again.set()
            await asyncio.Event().wait()
        self.is_asked = True
        records = bytes(build_batch([Record(value=b"v", timestamp_ms=1)], base_offset=0, leader_epoch=1))
        answer = LogFetched(log=NAME, records=records, high_watermark=0, log_start=0)
        return ReplicaFetched(session_id=1, logs=[answer])


class Failures:
    def __init__(self) -> None:
        self.told: list[Failure] = []

    async def cut(self, _log: FollowedLog, _plan: Cut | BeginAnew) -> None:
        raise AssertionError("nothing is cut")

    async def open(self, _log: FollowedLog) -> None:
        raise AssertionError("nothing is opened")

    def on_failed(self, _log: FollowedLog, failure: Failure) -> None:
        self.told.append(failure)

    def on_behind(self, _log: FollowedLog) -> None:
        return None

    def on_caught_up(self, _log: FollowedLog) -> None:
        return None


async def test_a_leader_that_changes_while_the_disk_is_at_work_is_no_failure_of_the_disk() -> None:
    """Or a replica would leave the set whenever a role changes under load."""
    files = GatedDisk()
    desk = PartitionDesk(files)
    role = Following(1, LEADER)
    desk.shell.take_role(role)
    log = FollowedLog(NAME, desk.shell, role, kind=None, shell=desk.shell)
    tasks, failures, leader = TaskSupervisor(get_logger("test")), Failures(), OneAnswer()
    asking = Asking(node_id=1, life=lambda: 1, clock=SystemClock(), tasks=tasks, catch_up_bytes_per_second=1)
    fetcher = Fetcher(LEADER, Lane.SYNCED, leader, failures, asking)
    fetcher.add(log)
    files.close_gate()
    fetcher.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await files.wait_until_syncing()
        desk.shell.take_role(Following(2, LEADER))
        await leader.is_asked_again.wait()
    files.open_gate()
    await tasks.stop()
    assert failures.told == []
    await desk.turn()
    desk.store.close(clean=False)
