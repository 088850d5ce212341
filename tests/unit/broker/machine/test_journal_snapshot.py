"""A journal's snapshot: a start that reads it comes to what a start that reads everything comes to."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from random import Random

import pytest

from penstock.broker.machine.journal import Journal
from penstock.broker.machine.portions import JournalDamagedError
from penstock.domain.group.commands import DeleteGroup, EndTransaction, Refused
from penstock.domain.group.values import GroupError
from penstock.storage.cleaner.log_cleaner import LogCleaner
from penstock.storage.log.journal_snapshot import (
    SNAPSHOT_FILE,
    JournalSnapshot,
    merge,
    read_snapshot,
    remove_snapshot,
    write_snapshot,
)
from support.group.shell_world import ShellWorld
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash

HOME = "/data/home"
OLD = JournalSnapshot(3, [b"a", b"b"], [b"1", b"2"])
NEW = JournalSnapshot(9, [b"b", b"c"], [b"20", b"3"])


def disk_with(snapshot: JournalSnapshot, seed: int = 0) -> FaultyFiles:
    files = FaultyFiles(Random(seed))
    files.make_root(HOME)
    write_snapshot(files, HOME, snapshot)
    return files


def directory_of(world: ShellWorld) -> str:
    return world.partition.log.home.directory


def saved(world: ShellWorld) -> JournalSnapshot | None:
    return read_snapshot(world.files, directory_of(world))


# The file


def test_snapshot_comes_back_as_it_was() -> None:
    assert read_snapshot(disk_with(OLD), HOME) == OLD


def test_there_is_none_before_the_first() -> None:
    assert read_snapshot(FaultyFiles(), HOME) is None


@pytest.mark.parametrize("mode", list(CrashMode))
def test_crash_at_any_step_leaves_the_old_one_or_the_new_one(mode: CrashMode) -> None:
    found: list[JournalSnapshot | None] = []
    for seed in range(6):
        for steps in range(20):
            files = disk_with(OLD, seed)
            files.crash_after(steps)
            try:
                write_snapshot(files, HOME, NEW)
            except SimulatedCrash:
                pass
            else:
                assert steps > 4, "a write takes some steps"
            is_over = files.steps_left > 0
            files.crash(mode)
            found.append(read_snapshot(files, HOME))
            assert found[-1] in (OLD, NEW)
            if is_over:
                assert found[-1] == NEW, "it is durable when it returns"
    assert OLD in found
    assert NEW in found


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "sync_directory"])
def test_disk_that_fails_leaves_the_old_one_or_the_new_one(kind: str) -> None:
    files = disk_with(OLD)
    files.fail_next(kind, errno.EIO)
    with pytest.raises(OSError, match="error"):
        write_snapshot(files, HOME, NEW)
    assert read_snapshot(files, HOME) in (OLD, NEW)


def test_damage_anywhere_is_seen() -> None:
    path = f"{HOME}/{SNAPSHOT_FILE}"
    for bit in range(0, 8 * len(disk_with(OLD).content(path)), 5):
        files = disk_with(OLD)
        files.flip_bit(path, bit)
        assert read_snapshot(files, HOME) is None, f"bit {bit}"


def test_removed_snapshot_does_not_come_back() -> None:
    files = disk_with(OLD)
    remove_snapshot(files, HOME)
    files.crash(CrashMode.LOST)
    assert read_snapshot(files, HOME) is None


def test_the_last_value_counts_in_the_order_of_the_last_write() -> None:
    rows = {b"a": b"1", b"b": b"2", b"c": b"3"}
    merge(rows, [(b"a", b"10"), (b"b", None), (b"never", None), (b"d", b"4"), (b"a", b"11")])
    assert list(rows.items()) == [(b"c", b"3"), (b"d", b"4"), (b"a", b"11")]


def test_large_snapshot_is_handed_on_in_portions() -> None:
    keys = [b"%d" % number for number in range(25_000)]
    portions = list(JournalSnapshot(1, keys, keys).entries())
    assert [key for portion in portions for key, _ in portion] == keys
    assert len(portions) == 3


# The journal


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld(FaultyFiles(), snapshot_records_min=1)
    yield made
    made.shell.close()


async def test_start_reads_the_snapshot_and_what_came_after_it(world: ShellWorld) -> None:
    await world.shell.load()
    for offset in range(50):
        await world.commit("billing", offset % 2, offset)
    await world.shell.save_snapshot_if_due()
    assert (snapshot := saved(world)) is not None
    assert (snapshot.offset, len(snapshot.keys)) == (50, 2)
    await world.commit("shipping", 0, 7)
    await world.restart()
    assert world.shell.replayed_records == 3
    assert [await world.fetch("billing", partition) for partition in (0, 1)] == [48, 49]
    assert await world.fetch("shipping", 0) == 7


async def test_next_snapshot_is_made_of_the_one_before_and_the_log_since(world: ShellWorld) -> None:
    await world.shell.load()
    for offset in range(6):
        await world.commit("billing", 0, offset)
        await world.commit(f"group-{offset}", 0, offset)
        await world.shell.save_snapshot_if_due()
    await world.shell.submit("group-1", DeleteGroup())
    for offset in range(6, 16):
        await world.commit("billing", 0, offset)
    await world.shell.save_snapshot_if_due()
    assert (snapshot := saved(world)) is not None
    assert (snapshot.offset, len(snapshot.keys)) == (world.partition.log.log_end, 6)
    await world.restart()
    assert world.shell.replayed_records == 6
    assert await world.fetch("billing", 0) == 15
    assert "group-1" not in world.shell.group_ids()


async def test_snapshot_is_due_when_more_was_written_than_it_holds(world: ShellWorld) -> None:
    journal = Journal(world.partition, world.clock, snapshot_records_min=1)
    due: list[bool] = [journal.is_snapshot_due]
    for entries in ([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], [(b"a", b"1"), (b"b", b"2")], [(b"a", b"1")]):
        journal.append(entries)
        await durable(journal)
        due.append(journal.is_snapshot_due)
        if len(due) == 2:
            await journal.save_snapshot()
    assert due == [False, True, False, True]


async def durable(journal: Journal) -> None:
    done = asyncio.get_running_loop().create_future()
    journal.when_durable(done.set_result)
    assert await asyncio.wait_for(done, 5)


async def test_snapshot_holds_nothing_that_is_not_durable(world: ShellWorld) -> None:
    journal = Journal(world.partition, world.clock, snapshot_records_min=1)
    journal.append([(b"a", b"1")])
    await durable(journal)
    journal.append([(b"b", b"2")])
    journal.flush()
    await journal.save_snapshot()
    assert (snapshot := saved(world)) is not None
    assert (snapshot.offset, snapshot.keys) == (1, [b"a"])


async def test_log_that_ends_before_its_snapshot_has_lost_its_end_and_is_not_served(world: ShellWorld) -> None:
    """The snapshot was made of what was durable, and may be all that is left of it: it stays."""
    await world.shell.load()
    await world.commit("billing", 0, 1)
    write_snapshot(world.files, directory_of(world), JournalSnapshot(2, [b"nothing"], [b"of ours"]))
    with pytest.raises(JournalDamagedError, match=r"ends at offset 1, and journal-snapshot .* reached offset 2"):
        await world.restart()
    assert saved(world) is not None
    assert isinstance(reply := await world.commit("billing", 0, 1), Refused)
    assert reply.error is GroupError.UNKNOWN_SERVER_ERROR


async def test_snapshot_that_compaction_has_come_past_is_not_believed(world: ShellWorld) -> None:
    """Tombstones after it may be gone: the group would come back."""
    await world.shell.load()
    await world.commit("billing", 0, 1)
    await world.shell.save_snapshot_if_due()
    await world.shell.submit("billing", DeleteGroup())
    await world.commit("other", 0, 1)
    world.partition.log.clean_end = 2
    await world.restart()
    assert saved(world) is None
    assert world.shell.group_ids() == ["other"]
    await world.shell.save_snapshot_if_due()
    assert saved(world) is not None
    world.partition.log.clean_end = 3
    await world.restart()
    assert saved(world) is not None


async def test_damaged_snapshot_costs_a_longer_start_and_nothing_else(world: ShellWorld) -> None:
    assert isinstance(world.files, FaultyFiles)
    await world.shell.load()
    for offset in range(9):
        await world.commit("billing", 0, offset)
    await world.shell.save_snapshot_if_due()
    world.files.flip_bit(f"{directory_of(world)}/{SNAPSHOT_FILE}", 200)
    await world.restart()
    assert world.shell.replayed_records == 9
    assert await world.fetch("billing", 0) == 8


async def test_full_disk_gets_no_snapshot_and_a_failing_one_keeps_the_last(world: ShellWorld) -> None:
    assert isinstance(world.files, FaultyFiles)
    await world.shell.load()
    await world.commit("billing", 0, 1)
    world.store.context.is_full = True
    await world.shell.save_snapshot_if_due()
    assert saved(world) is None
    world.store.context.is_full = False
    await world.shell.save_snapshot_if_due()
    before = saved(world)
    await world.commit("billing", 0, 2)
    world.files.fail_next("rename", errno.EIO)
    await world.shell.save_snapshot_if_due()
    assert saved(world) == before
    assert await world.fetch("billing", 0) == 2


@pytest.mark.parametrize("seed", range(8))
async def test_starts_with_and_without_a_snapshot_come_to_the_same(seed: int) -> None:
    """Whatever was done, whenever a snapshot was made, and whether the machine died before everything was synced."""
    random = Random(seed)
    files = FaultyFiles(Random(seed))
    world = ShellWorld(files, snapshot_records_min=1)
    await world.shell.load()
    for step in range(60):
        await do_something(world, random, step)
        if random.random() < 0.1:
            await world.shell.save_snapshot_if_due()
        if random.random() < 0.05:
            world.shell.close()
            files.crash(random.choice(list(CrashMode)))
            world.open()
            await world.shell.load()
    await world.shell.flush()
    await world.restart()
    with_snapshot = await positions(world)
    remove_snapshot(files, directory_of(world))
    await world.restart()
    assert await positions(world) == with_snapshot
    world.shell.close()


@pytest.mark.parametrize("seed", range(4))
async def test_compaction_at_any_moment_changes_nothing(seed: int) -> None:
    """Tombstones go almost at once here: a snapshot that was believed too long would bring back what they removed."""
    random = Random(seed)
    settings = {"segment.bytes": "1024", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1"}
    world = ShellWorld(FaultyFiles(Random(seed)), topic_settings=settings, snapshot_records_min=1)
    cleaner = LogCleaner(world.store, world.clock, seeds=(1, 2), sleep=lambda _: None)
    await world.shell.load()
    cleaned = 0
    for step in range(150):
        await do_something(world, random, step)
        world.clock.advance_ms(1)
        if random.random() < 0.1:
            await world.shell.save_snapshot_if_due()
        if random.random() < 0.2:
            await world.store.checkpoint()
            cleaned += await cleaner.run() is not None
        if random.random() < 0.1:
            before = kept(world)
            await world.restart()
            assert kept(world) == before
    assert cleaned > 5
    assert world.partition.log.clean_end > 0
    world.shell.close()


def kept(world: ShellWorld) -> dict[str, object]:
    """Everything, what waits for transactions too."""
    return {group_id: world.shell.snapshot_of(group_id) for group_id in world.shell.group_ids()}


async def do_something(world: ShellWorld, random: Random, step: int) -> None:
    group, partition, producer_id = f"group-{random.randrange(3)}", random.randrange(2), random.randrange(2)
    match random.randrange(6):
        case 0:
            await world.shell.submit(group, DeleteGroup())
        case 1:
            await world.commit_in_transaction(group, partition, step, producer_id)
        case 2:
            await world.shell.end_transaction(EndTransaction(producer_id, 0, is_commit=random.random() < 0.7))
        case _:
            await world.commit(group, partition, step)


async def positions(world: ShellWorld) -> list[object]:
    """With what still waits, committed: whether the order of things was kept shows then."""
    for producer_id in range(2):
        await world.shell.end_transaction(EndTransaction(producer_id, 0, is_commit=True))
    places = [(group_id, partition) for group_id in world.shell.group_ids() for partition in range(2)]
    return [(place, await world.fetch(*place)) for place in places]
