"""What a follower does with an answer: nothing that was not asked by the log as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.role import Following, Idle, Leading
from penstock.broker.replication.followed import Failure, FollowedLog, Open, Refused, Stale, Taken
from penstock.broker.topic.companion import CompanionKind
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.replication.exchange import EpochEnd, LogFetched, LogName, ReplicaProblem
from penstock.domain.replication.truncation import BeginAnew, Cut
from penstock.storage.files import MemoryFiles
from support.partition import TOPIC_ID, PartitionDesk

NAME = LogName(TOPIC_ID, 0)
EPOCH = 5


def batch(offset: int, *, epoch: int = EPOCH, value: bytes = b"v") -> bytes:
    return bytes(build_batch([Record(value=value, timestamp_ms=1)], base_offset=offset, leader_epoch=epoch))


def told(records: bytes = b"", **fields: int) -> LogFetched:
    return LogFetched(log=NAME, records=records, high_watermark=fields.pop("watermark", 0), log_start=0, **fields)


class FollowerDesk:
    def __init__(self) -> None:
        self.desk = PartitionDesk(MemoryFiles())
        self.shell = self.desk.shell
        self.follow(Following(EPOCH, 2))

    def follow(self, role: Following) -> None:
        self.shell.take_role(role)
        self.log = FollowedLog(NAME, self.shell, role, kind=None, shell=self.shell)

    async def take(self, answer: LogFetched) -> object:
        """Asked now, and answered; the disk has it then."""
        outcome = self.log.take(answer, self.log.asked())
        await self.desk.turn()
        return outcome


@pytest.fixture
async def follower() -> AsyncIterator[FollowerDesk]:
    made = FollowerDesk()
    yield made
    await made.desk.turn()
    made.desk.store.close(clean=False)


async def test_batches_stand_as_the_leader_has_them(follower: FollowerDesk) -> None:
    outcome = await follower.take(told(batch(0) + batch(1), watermark=1))
    assert isinstance(outcome, Taken)
    log = follower.shell.log
    assert (log.log_end, log.readable_end, log.epochs.entries()) == (2, 1, [(EPOCH, 0)])


async def test_next_fetch_waits_for_the_disk(follower: FollowerDesk) -> None:
    outcome = follower.log.take(told(batch(0)), follower.log.asked())
    assert isinstance(outcome, Taken)
    assert outcome.commitment is not None
    assert not follower.log.is_ready
    with pytest.raises(AssertionError):
        follower.log.wanted(follower.log.asked())
    assert await outcome.commitment.kept()
    assert follower.log.is_ready
    assert follower.log.wanted(follower.log.asked()).offset == follower.shell.log.durable_end == 1


async def test_watermark_goes_no_further_than_the_log(follower: FollowerDesk) -> None:
    await follower.take(told(batch(0), watermark=100))
    assert follower.shell.readable_end == 1


async def test_late_answer_is_not_used_under_another_role(follower: FollowerDesk) -> None:
    asked = follower.log.asked()
    # Equal, and not the same: nobody knows what was between the two.
    follower.shell.take_role(Idle("nobody leads"))
    follower.shell.take_role(Following(EPOCH, 2))
    assert isinstance(follower.log.take(told(batch(0)), asked), Stale)
    assert follower.shell.log.log_end == 0


async def test_late_answer_is_not_used_when_the_log_has_moved(follower: FollowerDesk) -> None:
    asked = follower.log.asked()
    await follower.take(told(batch(0)))
    assert isinstance(follower.log.take(told(batch(0)), asked), Stale)
    assert isinstance(follower.log.take(LogFetched(log=NAME, diverging=EpochEnd(0, 0)), asked), Stale)
    assert follower.shell.log.log_end == 1


async def test_what_the_leader_does_not_have_is_cut_off(follower: FollowerDesk) -> None:
    await follower.take(told(batch(0, epoch=3) + batch(1, epoch=4) + batch(2, epoch=4), watermark=1))
    plan = follower.log.take(LogFetched(log=NAME, diverging=EpochEnd(3, 1)), follower.log.asked())
    assert plan == Cut(1)


async def test_nothing_below_the_watermark_is_cut_off(follower: FollowerDesk) -> None:
    await follower.take(told(batch(0, epoch=3) + batch(1, epoch=4), watermark=2))
    answer = LogFetched(log=NAME, diverging=EpochEnd(3, 1))
    assert follower.log.take(answer, follower.log.asked()) is Failure.DIVERGED
    # Unless somebody has chosen to lose it.
    follower.log.unclean_epoch = EPOCH
    assert follower.log.take(answer, follower.log.asked()) == Cut(1)


async def test_log_begins_where_the_leaders_does(follower: FollowerDesk) -> None:
    answer = LogFetched(log=NAME, problem=ReplicaProblem.OFFSET_OUT_OF_RANGE, log_start=10)
    assert follower.log.take(answer, follower.log.asked()) == BeginAnew(10)


async def test_log_that_missed_tombstones_begins_anew(follower: FollowerDesk) -> None:
    await follower.take(told(batch(0)))
    answer = told(batch(1), tombstone_horizon=5)
    assert follower.log.take(answer, follower.log.asked()) == BeginAnew(0)
    assert follower.shell.log.log_end == 1


@pytest.mark.parametrize(
    "records",
    [
        batch(1),
        batch(0, epoch=EPOCH + 1),
        batch(0)[:-1] + b"\1",
        batch(0, epoch=4) + batch(1, epoch=3),
    ],
    ids=["gap", "epoch ahead", "broken", "epoch fell"],
)
async def test_what_is_no_batch_of_this_log_is_not_written(follower: FollowerDesk, records: bytes) -> None:
    assert follower.log.take(told(records), follower.log.asked()) is Failure.DAMAGED
    assert follower.shell.log.log_end == 0


async def test_leader_without_an_answer_is_asked_later(follower: FollowerDesk) -> None:
    answer = LogFetched(log=NAME, problem=ReplicaProblem.UNKNOWN_EPOCH)
    assert follower.log.take(answer, follower.log.asked()) == Refused(ReplicaProblem.UNKNOWN_EPOCH)


async def test_companion_is_opened_when_the_leader_has_something_in_it(follower: FollowerDesk) -> None:
    role = follower.shell.role
    assert isinstance(role, Following)
    log = FollowedLog(NAME, follower.shell, role, kind=CompanionKind.QUEUES, shell=None)
    assert log.is_synced
    assert isinstance(log.take(told(), log.asked()), Taken)
    assert isinstance(log.take(told(batch(0)), log.asked()), Open)


async def test_replica_is_whole_when_it_holds_all_that_it_has_told_of(follower: FollowerDesk) -> None:
    await follower.take(told(batch(0) + batch(1)))
    follower.log.wanted(follower.log.asked())
    assert follower.log.is_whole
    await follower.desk.store.cut_log(follower.shell.log, 1)
    assert not follower.log.is_whole, "the leader counts on what was cut off"
    await follower.take(told(batch(1)))
    assert follower.log.is_whole


async def test_cut_that_is_due_no_longer_is_not_made(follower: FollowerDesk) -> None:
    await follower.take(told(batch(0)))
    store, log = follower.desk.store, follower.shell.log
    await store.cut_log(log, 0, is_due=lambda: False)
    await store.begin_log_at(log, 7, is_due=lambda: False)
    assert (log.log_start, log.log_end) == (0, 1)


async def test_what_an_earlier_role_left_unsynced_is_owed_first(follower: FollowerDesk) -> None:
    follower.shell.take_role(Leading(EPOCH + 1, is_replicated=True))
    follower.desk.append()
    follower.follow(Following(EPOCH + 2, 2))
    assert not follower.log.is_ready
    owed = follower.log.owes()
    assert owed is not None
    assert await owed.kept()
    assert follower.log.is_ready
