"""What a leader tells its followers: what has changed, once, and to those alone whose word counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.broker.partition.role import Leading
from penstock.broker.replication.feed import LeaderFeed
from penstock.broker.replication.group import ReplicaGroup
from penstock.cluster.catalog.partition_image import Stated
from penstock.domain.replication.exchange import LogFetch, LogFetched, LogName, ReplicaFetch, ReplicaProblem
from penstock.domain.replication.state import PartitionState
from penstock.domain.replication.view import Standing
from penstock.storage.files import MemoryFiles
from support.partition import PartitionDesk

LEADER, FOLLOWER, OTHER = 1, 2, 3
LIFE = 20
EPOCH = 5
STATE = PartitionState(
    leader=LEADER, life=10, epoch=EPOCH, replicas=(LEADER, FOLLOWER, OTHER), in_sync=(LEADER, FOLLOWER)
)
VIEW = {LEADER: Standing(10), FOLLOWER: Standing(LIFE), OTHER: Standing(30)}


class Told:
    """In place of the node."""

    def __init__(self) -> None:
        self.restless = self.wanted = 0

    def on_restless(self, _group: ReplicaGroup) -> None:
        self.restless += 1

    def on_change_wanted(self, _group: ReplicaGroup) -> None:
        self.wanted += 1

    def on_failed(self, _group: ReplicaGroup) -> None: ...


class LeaderDesk:
    def __init__(self) -> None:
        self.desk = PartitionDesk(MemoryFiles())
        self.desk.shell.take_role(Leading(EPOCH, is_replicated=True))
        self.told = Told()
        self.group = ReplicaGroup(
            self.desk.shell, {}, Stated(STATE, 7), node_id=LEADER, minimum=2, now_ms=0, listener=self.told
        )
        self._threads = ThreadPoolExecutor(1)
        led = {log.name: log for log in self.group.logs}
        self.feed = LeaderFeed(led, lambda: VIEW, lambda _: None, readers=self._threads, clock=self.desk.clock)
        self.data = self.group.logs[0].name
        self._session = self._epoch = 0

    async def close(self) -> None:
        self.group.close()
        await self.desk.turn()
        self.desk.store.close(clean=False)
        self._threads.shutdown()

    def wanted(self, offset: int, *, log: LogName | None = None, epoch: int = EPOCH, last_epoch: int = -1) -> LogFetch:
        last_epoch = (EPOCH if offset else -1) if last_epoch == -1 else last_epoch
        return LogFetch(
            log=log or self.data,
            leader_epoch=epoch,
            offset=offset,
            last_epoch=last_epoch,
            log_start=0,
            bytes_max=1 << 20,
        )

    async def fetch(
        self, *wanted: LogFetch, life: int = LIFE, wait_ms: int = 0, bytes_max: int = 1 << 20
    ) -> Sequence[LogFetched]:
        fetch = ReplicaFetch(
            node_id=FOLLOWER,
            life=life,
            session_id=self._session,
            session_epoch=self._epoch,
            wait_ms=wait_ms,
            bytes_max=bytes_max,
            logs=wanted,
        )
        reply = await self.feed.fetch(fetch)
        assert reply.problem is None
        self._session, self._epoch = reply.session_id, self._epoch + 1
        return reply.logs


@pytest.fixture
async def leader() -> AsyncIterator[LeaderDesk]:
    made = LeaderDesk()
    yield made
    await made.close()


async def test_data_is_given_before_it_is_committed_or_on_the_leaders_disk(leader: LeaderDesk) -> None:
    leader.desk.append()
    (answer,) = await leader.fetch(leader.wanted(0))
    assert len(answer.records) > 0
    assert (answer.high_watermark, leader.desk.shell.log.durable_end) == (0, 0)


async def test_watermark_waits_for_the_disk_of_the_leader_too(leader: LeaderDesk) -> None:
    commitment = leader.desk.append_synced()
    await leader.fetch(leader.wanted(0))
    await leader.fetch(leader.wanted(1))
    assert not commitment.is_known, "the follower has it, and the leader's disk has not"
    await leader.desk.turn()
    assert commitment.is_known
    assert leader.desk.shell.readable_end == 1


async def test_watermark_waits_for_every_member_of_the_set(leader: LeaderDesk) -> None:
    commitment = leader.desk.append_synced()
    await leader.desk.turn()
    assert not commitment.is_known
    await leader.fetch(leader.wanted(0))
    assert not commitment.is_known
    await leader.fetch(leader.wanted(1))
    assert commitment.is_known


async def test_only_what_has_changed_is_told(leader: LeaderDesk) -> None:
    leader.desk.append()
    await leader.desk.turn()
    assert [answer.log for answer in await leader.fetch(leader.wanted(0))] == [leader.data]
    # Its fetch moves the watermark, which is news.
    (news,) = await leader.fetch(leader.wanted(1))
    assert (news.high_watermark, len(news.records)) == (1, 0)
    assert await leader.fetch() == []


async def test_what_was_given_and_not_named_is_given_again(leader: LeaderDesk) -> None:
    leader.desk.append()
    first = await leader.fetch(leader.wanted(0))
    again = await leader.fetch()
    assert [bytes(each.records) for each in first] == [bytes(each.records) for each in again]


async def test_fetch_waits_until_there_is_something(leader: LeaderDesk) -> None:
    await leader.fetch(leader.wanted(0))
    waiting = asyncio.ensure_future(leader.fetch(wait_ms=60_000))
    await asyncio.sleep(0)
    assert not waiting.done()
    leader.desk.append()
    (answer,) = await waiting
    assert len(answer.records) > 0


@pytest.mark.parametrize(
    ("epoch", "life", "problem"),
    [
        (EPOCH - 1, LIFE, ReplicaProblem.FENCED_EPOCH),
        (EPOCH + 1, LIFE, ReplicaProblem.UNKNOWN_EPOCH),
        (EPOCH, LIFE - 1, ReplicaProblem.STALE_LIFE),
    ],
)
async def test_fetch_of_another_epoch_or_life_counts_for_nothing(
    leader: LeaderDesk, epoch: int, life: int, problem: ReplicaProblem
) -> None:
    commitment = leader.desk.append_synced()
    await leader.desk.turn()
    (answer,) = await leader.fetch(leader.wanted(1, epoch=epoch, last_epoch=epoch), life=life)
    assert (answer.problem, len(answer.records)) == (problem, 0)
    assert not commitment.is_known


async def test_diverging_fetch_counts_for_nothing(leader: LeaderDesk) -> None:
    commitment = leader.desk.append_synced()
    await leader.desk.turn()
    (answer,) = await leader.fetch(leader.wanted(1, last_epoch=EPOCH - 1))
    assert answer.diverging is not None
    assert answer.diverging.end_offset == 0
    assert not commitment.is_known


async def test_every_log_of_the_partition_has_to_be_held(leader: LeaderDesk) -> None:
    """Only one that holds all three joins the set."""
    other = ReplicaFetch(node_id=OTHER, life=30, bytes_max=1 << 20, logs=[leader.wanted(0)])
    await leader.feed.fetch(other)
    assert leader.group.progress.caught_up(VIEW) == []
    rest = [leader.wanted(0, log=log.name) for log in leader.group.logs]
    await leader.feed.fetch(ReplicaFetch(node_id=OTHER, life=30, bytes_max=1 << 20, logs=rest))
    assert leader.group.progress.caught_up(VIEW) == [OTHER]
    assert leader.told.wanted > 0


async def test_reply_has_a_limit_and_who_found_no_room_is_next(leader: LeaderDesk) -> None:
    for _ in range(3):
        leader.desk.append()
    (answer,) = await leader.fetch(leader.wanted(0), bytes_max=1)
    one = len(answer.records)
    assert one > 0, "one batch at least, whatever its size"
    (answer,) = await leader.fetch(leader.wanted(1), bytes_max=1)
    assert len(answer.records) == one


async def test_session_of_before_is_not_known(leader: LeaderDesk) -> None:
    await leader.fetch(leader.wanted(0))
    stranger = ReplicaFetch(node_id=OTHER, life=30, session_id=1, session_epoch=1)
    assert (await leader.feed.fetch(stranger)).problem is ReplicaProblem.SESSION_UNKNOWN
    late = ReplicaFetch(node_id=FOLLOWER, life=LIFE, session_id=1, session_epoch=5)
    assert (await leader.feed.fetch(late)).problem is ReplicaProblem.SESSION_OUT_OF_STEP


async def test_end_of_the_lead_is_told_at_once(leader: LeaderDesk) -> None:
    await leader.fetch(leader.wanted(0))
    waiting = asyncio.ensure_future(leader.fetch(wait_ms=60_000))
    await asyncio.sleep(0)
    leader.group.close()
    (answer,) = await waiting
    assert answer.problem is ReplicaProblem.NOT_LEADER


async def test_barrier_is_reached_when_all_that_was_there_is_committed() -> None:
    desk = PartitionDesk(MemoryFiles())
    desk.shell.take_role(Leading(EPOCH - 1, is_replicated=True))
    desk.append()
    await desk.turn()
    desk.shell.take_role(Leading(EPOCH, is_replicated=True))
    group = ReplicaGroup(desk.shell, {}, Stated(STATE, 7), node_id=LEADER, minimum=2, now_ms=0, listener=Told())
    reached: list[bool] = []
    group.when_barrier(lambda: reached.append(True))
    assert (group.has_barrier, reached) == (False, [])
    group.on_fetch(group.logs[0], follower=FOLLOWER, life=LIFE, offset=1, log_start=0)
    for log in group.logs[1:]:
        group.on_fetch(log, follower=FOLLOWER, life=LIFE, offset=0, log_start=0)
    assert (group.has_barrier, reached) == (True, [True])
    group.close()
    desk.store.close(clean=False)


async def test_who_leaves_the_set_is_asked_to_name_a_log_that_does_not_change(leader: LeaderDesk) -> None:
    """Or a follower that was paused, and holds everything, would stay out until somebody writes."""
    await leader.fetch(*(leader.wanted(0, log=log.name) for log in leader.group.logs))
    progress = leader.group.progress
    progress.on_silence([FOLLOWER])
    proposal = progress.propose(100_000, 1_000, VIEW)
    assert proposal is not None
    assert FOLLOWER not in proposal.state.in_sync
    leader.group.ask_again([FOLLOWER])
    leader.group.on_stored(Stated(proposal.state, 8))
    assert progress.caught_up(VIEW) == []
    answers = await leader.fetch()
    assert {answer.problem for answer in answers} == {ReplicaProblem.TIMED_OUT}
    await leader.fetch(*(leader.wanted(0, log=answer.log) for answer in answers))
    assert progress.caught_up(VIEW) == [FOLLOWER]
