"""A group's shell between the pure table and a real log: what is acknowledged is kept, and found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.base.long_work import LongWork
from penstock.domain.group.commands import (
    CommitTransactionOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    Done,
    EndTransaction,
    ExpireOffsets,
    GroupReply,
    Join,
    Joined,
    OffsetsWritten,
    OffsetToCommit,
    Refused,
    Sync,
    Synced,
)
from penstock.domain.group.description import GroupDescription
from penstock.domain.group.values import GroupConfig, GroupError
from support.group.shell_world import ShellWorld
from support.loop_turns import LoopTurns
from support.storage.gated_disk import GatedDisk

# Offsets of one transaction: as many as took a tenth of a second in one step.
MANY = 5_000
# A slice of 2 ms, and the batch that it becomes.
TURN_SECONDS_MAX = 0.015

UNAVAILABLE = Refused(GroupError.COORDINATOR_NOT_AVAILABLE)


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    await made.shell.load()
    yield made
    made.shell.close()


async def test_a_commit_is_found_again_after_a_restart(world: ShellWorld) -> None:
    assert isinstance(await world.commit("billing", 2, 40), OffsetsWritten)
    assert isinstance(await world.commit("billing", 2, 41), OffsetsWritten)
    await world.restart()
    assert await world.fetch("billing", 2) == 41
    assert await world.fetch("billing", 3) == -1


async def test_commits_of_one_turn_share_one_batch(world: ShellWorld) -> None:
    await asyncio.gather(*(world.commit(f"group-{number}", 0, number) for number in range(500)))
    log = world.partition.log
    assert log.record_count == 500
    assert log.unsaved_batches == 1
    await world.restart()
    assert world.shell.replayed_records == 500
    assert [await world.fetch(f"group-{number}", 0) for number in (0, 1, 499)] == [0, 1, 499]


async def test_a_deleted_group_stays_deleted(world: ShellWorld) -> None:
    await world.commit("billing", 0, 7)
    assert isinstance(await world.shell.submit("billing", DeleteGroup()), Done)
    await world.restart()
    assert await world.fetch("billing", 0) == -1
    assert world.shell.group_ids() == []


async def test_a_member_and_its_generation_survive_a_restart(world: ShellWorld) -> None:
    join = Join(1, "", "m-1", "consumer", (("range", b"meta"),), 10_000, 10_000, requires_known_id=False)
    joined = await asyncio.wait_for(world.shell.submit("billing", join), 5)
    assert isinstance(joined, Joined)
    sync = Sync(2, "m-1", joined.generation, assignments=(("m-1", b"all"),))
    synced = await asyncio.wait_for(world.shell.submit("billing", sync), 5)
    assert isinstance(synced, Synced)
    assert synced.assignment == b"all"
    await world.restart()
    description = await world.shell.describe("billing")
    assert isinstance(description, GroupDescription)
    assert [member.member_id for member in description.members] == ["m-1"]
    assert description.epoch == joined.generation


async def test_a_full_disk_refuses_the_commit_and_forgets_it(world: ShellWorld) -> None:
    await world.commit("billing", 0, 1)
    commit = asyncio.create_task(world.commit("billing", 0, 2))
    await asyncio.sleep(0)
    # Decided, and not written yet.
    world.store.context.is_full = True
    assert await commit == UNAVAILABLE
    assert world.shell.is_lost
    world.store.context.is_full = False
    await world.restart()
    assert await world.fetch("billing", 0) == 1


async def test_lost_journal_describes_nothing_from_memory(world: ShellWorld) -> None:
    await world.commit("billing", 0, 1)
    commit = asyncio.create_task(world.commit("shipping", 0, 2))
    await asyncio.sleep(0)
    world.store.context.is_full = True
    # The table knows of the group, the disk never will.
    assert await world.shell.describe("shipping") == UNAVAILABLE
    assert await world.shell.list_all() == UNAVAILABLE
    assert await commit == UNAVAILABLE
    assert await world.shell.describe("billing") == UNAVAILABLE
    world.store.context.is_full = False
    await world.restart()
    assert isinstance(listed := await world.shell.list_all(), list)
    assert [group_id for group_id, _ in listed] == ["billing"]


async def test_very_many_groups_are_listed_in_slices(world: ShellWorld) -> None:
    await asyncio.gather(*(world.commit(f"group {number}", 0, number) for number in range(MANY)))
    async with LoopTurns() as turns:
        listed = await world.shell.list_all(LongWork().pace())
    assert isinstance(listed, list)
    assert sorted(group_id for group_id, _ in listed) == sorted(f"group {number}" for number in range(MANY))
    assert turns.longest_s < TURN_SECONDS_MAX


async def test_full_disk_refuses_what_must_be_stored_and_serves_what_was(world: ShellWorld) -> None:
    await world.commit("billing", 0, 1)
    await world.commit_in_transaction("billing", 1, 9)
    world.store.context.is_full = True
    assert await world.commit("billing", 0, 2) == UNAVAILABLE
    assert not await world.shell.end_transaction(EndTransaction(7, 0, is_commit=True))
    world.clock.advance_ms(2 * world.config.offsets_retention_ms)
    await world.shell.sweep(ExpireOffsets())
    assert await world.fetch("billing", 0) == 1
    assert isinstance(await world.shell.describe("billing"), GroupDescription)
    # Nothing is lost, and nothing would be won by a replay; not before there is room. Heartbeats were refused until
    # then, so that sessions must begin anew.
    asks_for_replay: list[bool] = [world.shell.is_lost]
    world.store.context.is_full = False
    asks_for_replay.append(world.shell.is_lost)
    assert await world.commit("billing", 0, 2) == UNAVAILABLE
    await world.shell.load()
    asks_for_replay.append(world.shell.is_lost)
    assert asks_for_replay == [False, True, False]
    assert isinstance(await world.commit("billing", 0, 2), OffsetsWritten)


async def test_member_that_is_gone_is_missed_after_a_replay_too() -> None:
    world = ShellWorld(config=GroupConfig(consumer_session_timeout_ms=30))
    await world.shell.load()
    await world.shell.submit(
        "billing", ConsumerHeartbeat("m", 0, rebalance_timeout_ms=1_000, topic_names=("orders",), owned=())
    )
    world.clock.advance_ms(10)
    world.shell.close()
    await world.shell.load()
    async with asyncio.timeout(5):
        while (found := await world.shell.describe("billing")) and isinstance(found, GroupDescription):
            if not found.members:
                break
            world.clock.advance_ms(10)
            await asyncio.sleep(0.005)
    world.shell.close()


# Transactions


async def test_offsets_of_a_transaction_count_when_it_has_committed_and_after_a_restart(world: ShellWorld) -> None:
    await world.commit("billing", 0, 5)
    assert isinstance(await world.commit_in_transaction("billing", 0, 9), OffsetsWritten)
    await world.restart()
    assert await world.fetch("billing", 0) == 5
    unstable = await world.fetch_one("billing", 0, requires_stable=True)
    assert unstable.error is GroupError.UNSTABLE_OFFSET_COMMIT
    assert await world.shell.end_transaction(EndTransaction(7, 0, is_commit=True))
    assert (await world.fetch_one("billing", 0, requires_stable=True)).offset == 9
    await world.restart()
    assert (await world.fetch_one("billing", 0, requires_stable=True)).offset == 9


async def test_aborted_transaction_leaves_nothing_and_its_end_may_be_said_twice(world: ShellWorld) -> None:
    await world.commit_in_transaction("billing", 0, 9)
    for _ in range(2):
        assert await world.shell.end_transaction(EndTransaction(7, 0, is_commit=False))
    assert world.shell.group_ids() == []
    await world.restart()
    assert world.shell.group_ids() == []


async def test_end_of_a_transaction_follows_commits_that_are_not_written_yet(world: ShellWorld) -> None:
    """All in one turn of the loop: the order in the journal is the order in which they came."""
    replies = await asyncio.gather(
        world.commit_in_transaction("billing", 0, 9),
        world.shell.end_transaction(EndTransaction(7, 0, is_commit=True)),
        world.commit_in_transaction("billing", 0, 11),
    )
    assert replies[1] is True
    await world.restart()
    assert await world.fetch("billing", 0) == 9
    assert (await world.fetch_one("billing", 0, requires_stable=True)).error is GroupError.UNSTABLE_OFFSET_COMMIT


async def test_end_of_a_transaction_is_not_confirmed_before_it_is_durable() -> None:
    disk = GatedDisk()
    world = ShellWorld(disk)
    await world.shell.load()
    await world.commit_in_transaction("billing", 0, 9)
    disk.close_gate()
    ended = asyncio.create_task(world.shell.end_transaction(EndTransaction(7, 0, is_commit=True)))
    await disk.wait_until_syncing()
    assert not ended.done()
    disk.open_gate()
    assert await asyncio.wait_for(ended, 5)
    world.shell.close()


async def test_lost_journal_asks_for_the_end_to_be_said_again(world: ShellWorld) -> None:
    await world.commit_in_transaction("billing", 0, 9)
    end = EndTransaction(7, 0, is_commit=True)
    ended = asyncio.create_task(world.shell.end_transaction(end))
    await asyncio.sleep(0)
    world.store.context.is_full = True
    assert not await ended
    assert world.shell.is_lost
    world.store.context.is_full = False
    await world.restart()
    assert (await world.fetch_one("billing", 0, requires_stable=True)).error is GroupError.UNSTABLE_OFFSET_COMMIT
    assert await world.shell.end_transaction(end)
    assert await world.fetch("billing", 0) == 9


async def begin_large_transaction(world: ShellWorld) -> None:
    for first in range(0, MANY, 500):
        offsets = tuple(OffsetToCommit("orders", number, number + 1) for number in range(first, first + 500))
        with world.shell.guard(7) as guard:
            await world.shell.submit("billing", CommitTransactionOffsets(7, 0, offsets, guard=guard))


async def test_no_turn_of_the_loop_is_long_while_a_transaction_with_thousands_of_offsets_ends(
    world: ShellWorld,
) -> None:
    await begin_large_transaction(world)
    # By the machine's own clock: the world's stands still.
    pace = LongWork().pace()
    async with LoopTurns() as turns:
        assert await world.shell.end_transaction(EndTransaction(7, 0, is_commit=True), pace)
    assert turns.longest_s < TURN_SECONDS_MAX
    await world.restart()
    assert (await world.fetch_one("billing", MANY - 1, requires_stable=True)).offset == MANY


async def test_others_are_served_while_a_large_transaction_ends_and_hear_of_no_half_of_it(world: ShellWorld) -> None:
    await begin_large_transaction(world)
    pace = LongWork(slice_seconds=0).pace()
    ended = asyncio.create_task(world.shell.end_transaction(EndTransaction(7, 0, is_commit=True), pace))
    await asyncio.sleep(0)
    last = await world.fetch_one("billing", MANY - 1, requires_stable=True)
    assert last.error is GroupError.UNSTABLE_OFFSET_COMMIT
    assert not ended.done()
    assert await asyncio.wait_for(ended, 10)
    assert (await world.fetch_one("billing", MANY - 1, requires_stable=True)).offset == MANY


async def test_large_transaction_whose_end_was_interrupted_ends_when_it_is_said_again(world: ShellWorld) -> None:
    await begin_large_transaction(world)
    pace = LongWork(slice_seconds=0).pace()
    end = EndTransaction(7, 0, is_commit=True)
    ended = asyncio.create_task(world.shell.end_transaction(end, pace))
    await asyncio.sleep(0)
    await world.restart()
    assert not await asyncio.wait_for(ended, 10)
    unstable = await world.fetch_one("billing", MANY - 1, requires_stable=True)
    assert unstable.error is GroupError.UNSTABLE_OFFSET_COMMIT
    assert await world.shell.end_transaction(end)
    for partition in (0, MANY // 2, MANY - 1):
        assert (await world.fetch_one("billing", partition, requires_stable=True)).offset == partition + 1


async def test_offsets_that_come_after_the_end_are_refused(world: ShellWorld) -> None:
    with world.shell.guard(7) as guard:
        await world.shell.end_transaction(EndTransaction(7, 0, is_commit=True))
        reply = await world.commit_with_guard("billing", guard)
    assert reply == Refused(GroupError.INVALID_TXN_STATE)
    assert world.shell.group_ids() == []


async def test_table_that_was_rebuilt_meanwhile_takes_no_old_guard(world: ShellWorld) -> None:
    with world.shell.guard(7) as guard:
        await world.shell.load()
        assert await world.commit_with_guard("billing", guard) == Refused(GroupError.INVALID_TXN_STATE)


# When commits are written


async def test_commits_wait_for_company_and_are_answered_when_durable() -> None:
    world = ShellWorld(config=GroupConfig(offsets_flush_ms=3_600_000))
    await world.shell.load()
    commits = [asyncio.create_task(world.commit(f"group-{number}", 0, number)) for number in range(10)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert world.partition.log.log_end == 0
    assert not any(commit.done() for commit in commits)
    # A reader waits for what it has seen, and for no longer than the disk takes.
    assert await asyncio.wait_for(world.fetch("group-3", 0), 5) == 3
    assert world.partition.log.unsaved_batches == 1
    assert all(isinstance(reply, OffsetsWritten) for reply in await asyncio.gather(*commits))
    world.shell.close()


async def test_commits_are_written_by_themselves_when_the_time_has_come() -> None:
    world = ShellWorld(config=GroupConfig(offsets_flush_ms=1))
    await world.shell.load()
    assert isinstance(await asyncio.wait_for(world.commit("billing", 0, 4), 5), OffsetsWritten)
    world.shell.close()


async def test_nothing_that_was_accepted_is_dropped_at_the_stop() -> None:
    world = ShellWorld(config=GroupConfig(offsets_flush_ms=3_600_000))
    await world.shell.load()
    commits: list[asyncio.Task[GroupReply]] = []
    commits += [asyncio.create_task(world.commit(f"group-{number}", 0, number)) for number in range(10)]
    await asyncio.sleep(0)
    world.shell.close()
    await world.shell.flush()
    assert all(isinstance(reply, OffsetsWritten) for reply in await asyncio.gather(*commits))
    assert await world.commit("late", 0, 1) == UNAVAILABLE
    await world.restart()
    assert world.shell.group_ids() == [f"group-{number}" for number in range(10)]


# Expiry


async def test_offsets_expire_across_a_restart(world: ShellWorld) -> None:
    retention_ms = world.config.offsets_retention_ms
    await world.commit("old", 0, 1)
    world.clock.advance_ms(retention_ms - 1)
    await world.commit("young", 0, 1)
    await world.restart()
    await world.shell.sweep(ExpireOffsets())
    assert world.shell.group_ids() == ["old", "young"]
    world.clock.advance_ms(1)
    await world.shell.sweep(ExpireOffsets())
    await world.shell.flush()
    await world.restart()
    assert world.shell.group_ids() == ["young"]
    assert await world.fetch("old", 0) == -1
