"""Journals that the disk has spoiled: nothing that rests on them is served, everybody is told, and a repair loses what
was spoiled and nothing else."""

from __future__ import annotations

from contextlib import suppress

import pytest

from penstock.broker.machine.portions import JournalDamagedError, _checked
from penstock.broker.partition.outcome import Appended
from penstock.codec.batch.records import Record, build_batch
from penstock.domain.group.commands import (
    ConsumerHeartbeat,
    EndTransaction,
    FetchOffsets,
    Join,
    Joined,
    Refused,
    Sync,
)
from penstock.domain.group.description import GroupDescription
from penstock.domain.group.values import GroupError
from penstock.domain.share.machine import ShareAlive, ShareHeartbeat
from penstock.domain.transaction.commands import InitProducer, TransactionEnded, TransactionProblem
from penstock.domain.transaction.commands import Refused as TransactionRefused
from penstock.storage.log.journal_snapshot import SNAPSHOT_FILE
from penstock.storage.repair import check as log_check
from support.group.shell_world import ShellWorld
from support.storage.faulty_files import CrashMode, FaultyFiles
from support.storage.rotten_log import RottenDisk, batches_in, segments_in, spoil
from support.storage.weak_disk import WeakDisk
from support.transaction.desk import TIMEOUT_MS, DeskProducer, TransactionDesk

COMMITS = 6


def directory_of(world: ShellWorld) -> str:
    return world.partition.log.home.directory


async def committed(files: RottenDisk, **bounds: int) -> ShellWorld:
    """Six groups, each with one position, each in a batch of its own; and the node has stopped."""
    world = ShellWorld(files, **bounds)  # type: ignore[arg-type]
    await world.shell.load()
    for number in range(COMMITS):
        await world.commit(f"group {number}", 0, 100 + number)
    return world


def stop(world: ShellWorld, *, is_clean: bool = True) -> str:
    """The segment."""
    (path,) = segments_in(world.files, directory_of(world))
    world.shell.close()
    world.store.close(clean=is_clean)
    return path


async def positions(world: ShellWorld) -> dict[int, int]:
    return {number: await world.fetch(f"group {number}", 0) for number in range(COMMITS)}


async def assert_refused(world: ShellWorld) -> str:
    """Every question, and what is told of it."""
    with pytest.raises(JournalDamagedError):
        await world.shell.load()
    for reply in (
        await world.shell.submit("group 0", FetchOffsets(None)),
        await world.commit("group 0", 0, 7),
        await world.shell.describe("group 0"),
        await world.shell.list_all(),
    ):
        assert isinstance(reply, Refused)
        assert reply.error is GroupError.UNKNOWN_SERVER_ERROR
        assert "`penstock log repair __consumer_offsets 0 " in reply.detail
    assert isinstance(reply, Refused)
    return reply.detail


@pytest.mark.parametrize(
    ("place", "is_clean"),
    # After a crash a bad last batch is the torn end of a write.
    [*((place, True) for place in range(COMMITS)), *((place, False) for place in range(COMMITS - 1))],
)
async def test_positions_are_refused_wherever_their_log_is_damaged(place: int, is_clean: bool) -> None:
    world = await committed(WeakDisk())
    path = stop(world, is_clean=is_clean)
    spoil(world.files, path, place)  # type: ignore[arg-type]
    world.open()
    assert "checksum is" in await assert_refused(world)
    world.store.close()
    (report,) = log_check.repair("/data", files=world.files)
    assert max(done.problem.offset_end for done in report.repairs) == place + 1
    world.open()
    await world.shell.load()
    lost = {place: -1}
    assert await positions(world) == {number: 100 + number for number in range(COMMITS)} | lost


async def test_positions_are_refused_when_the_segment_is_gone() -> None:
    world = await committed(WeakDisk())
    world.files.remove(stop(world))
    world.open()
    assert "the file is missing" in await assert_refused(world)


async def test_positions_are_refused_when_the_segment_was_cut() -> None:
    world = await committed(WeakDisk())
    path = stop(world)
    position, _ = batches_in(world.files, path)[3]
    world.files.open(path).truncate(position)
    world.open()
    assert "bytes were in it" in await assert_refused(world)


async def test_rot_after_the_first_replay_is_found_by_the_next() -> None:
    """The log stays open, and knows the bytes as checked."""
    world = await committed(WeakDisk())
    await world.restart()
    (path,) = segments_in(world.files, directory_of(world))
    spoil(world.files, path, 2)  # type: ignore[arg-type]
    world.shell.close()
    assert "checksum is" in await assert_refused(world)


async def test_record_that_cannot_be_decoded_is_named_and_can_be_dropped() -> None:
    world = await committed(WeakDisk())
    batch = build_batch([Record(value=b"not a group's", key=b"nor this")])
    outcome = world.partition.append(memoryview(batch))
    assert isinstance(outcome, Appended)
    assert outcome.commitment is not None
    await outcome.commitment.kept()
    stop(world)
    world.open()
    assert f"--drop {COMMITS} --data-dir" in await assert_refused(world)
    world.store.close()
    assert log_check.repair("/data", files=world.files) == []
    log_check.repair("/data", topic="__consumer_offsets", partition=0, drop=COMMITS, files=world.files)
    world.open()
    await world.shell.load()
    assert await positions(world) == {number: 100 + number for number in range(COMMITS)}


def test_gap_between_two_batches_is_damage() -> None:
    world_batches = build_batch([Record(value=b"a")], base_offset=0) + build_batch([Record(value=b"b")], base_offset=2)

    class Shell:
        topic, index = "orders.queues", 0

    with pytest.raises(JournalDamagedError, match="begins at offset 2, expected 1"):
        _checked(Shell(), memoryview(world_batches), 0)  # type: ignore[arg-type]


# The snapshot


async def test_damage_below_a_snapshot_costs_nothing_after_the_repair() -> None:
    files = FaultyFiles()
    world = await committed(files, snapshot_records_min=1)
    await world.shell.save_snapshot_if_due()
    await world.commit("group 0", 0, 500)
    path = stop(world)
    spoil(files, path, 2)
    files.crash(CrashMode.KILL)
    # The store's checkpoint is gone with the machine: every batch is read again.
    files.remove("/data/checkpoint")
    world.open()
    # Refused, or right: whether the log can be read past the place is the store's matter.
    with suppress(JournalDamagedError):
        await world.shell.load()
        assert await positions(world) == {number: 100 + number for number in range(COMMITS)} | {0: 500}
    assert files.exists(f"{directory_of(world)}/{SNAPSHOT_FILE}")
    stop(world)
    log_check.repair("/data", files=files)
    world.open()
    await world.shell.load()
    assert await positions(world) == {number: 100 + number for number in range(COMMITS)} | {0: 500}


async def test_log_without_its_end_is_as_long_as_its_snapshot_after_the_repair() -> None:
    files = FaultyFiles()
    world = await committed(files, snapshot_records_min=1)
    await world.shell.save_snapshot_if_due()
    files.remove(stop(world))
    files.crash(CrashMode.KILL)
    files.remove("/data/checkpoint")
    world.open()
    assert f"ends at offset 0, and {SNAPSHOT_FILE} beside it" in await assert_refused(world)
    world.store.close()
    log_check.repair("/data", files=files)
    world.open()
    await world.shell.load()
    assert await positions(world) == {number: 100 + number for number in range(COMMITS)}
    assert world.partition.log.log_end >= COMMITS


# Transactions


async def transact(desk: TransactionDesk, value: bytes) -> None:
    producer = await DeskProducer(desk).begin()
    for _ in range(2):
        await producer.send(value)
        assert isinstance(await producer.end(is_commit=True), TransactionEnded)
    await desk.until(desk.is_stable)


async def test_transactions_are_refused_wherever_their_log_is_damaged_and_go_on_after_a_repair() -> None:
    place = 0
    while True:
        desk = TransactionDesk()
        for _life in range(3):
            await desk.start()
            await transact(desk, b"a")
            await desk.crash()
        (path,) = segments_in(desk.files, desk.journal.log.home.directory)
        if place >= len(batches_in(desk.files, path)) - 1:
            break  # the last one would be a torn end
        spoil(desk.files, path, place)
        desk.begin()
        with pytest.raises(JournalDamagedError, match="`penstock log repair __transaction_state 0 "):
            await desk.shell.load()
        refused = await desk.shell.submit(InitProducer("payments", TIMEOUT_MS))
        assert refused == TransactionRefused(TransactionProblem.UNKNOWN_SERVER_ERROR)
        await desk.crash()
        log_check.repair("/data", files=desk.files)
        desk.files.locked.clear()
        await desk.start()
        await transact(desk, b"after")
        assert desk.values(0) == [b"a"] * 6 + [b"after"] * 2
        await desk.close()
        place += 1
    assert place > 6


# Groups of every kind


async def busy(world: ShellWorld) -> None:
    """A classic group, one of the consumer protocol and a share group, with members that come and go, and positions of
    transactions."""
    await world.shell.load()
    shell = world.shell
    joined = await shell.submit(
        "classic",
        Join(1, "", "m", "consumer", (("range", b"x"),), 10_000, 10_000, requires_known_id=False),
    )
    assert isinstance(joined, Joined), joined
    await shell.submit("classic", Sync(2, "m", joined.generation, None, None, None, (("m", b"all"),)))
    for name in ("ann", "bob", "cid"):
        await shell.submit(
            "modern", ConsumerHeartbeat(name, 0, rebalance_timeout_ms=9_000, topic_names=("orders",), owned=())
        )
        await shell.shares.submit("shared", ShareHeartbeat(name, 0, topic_names=("orders",)))
    await shell.submit("modern", ConsumerHeartbeat("bob", -1))
    await shell.shares.submit("shared", ShareHeartbeat("bob", -1))
    await world.commit_in_transaction("plain", 0, 5)
    await shell.end_transaction(EndTransaction(7, 0, True, 1))
    await world.commit("plain", 1, 9)


async def test_groups_of_every_kind_load_and_go_on_whatever_a_repair_took() -> None:
    place = 0
    while True:
        world = ShellWorld(WeakDisk())
        await busy(world)
        path = stop(world)
        if place >= len(batches_in(world.files, path)):
            break
        spoil(world.files, path, place)  # type: ignore[arg-type]
        log_check.repair("/data", files=world.files)
        world.open()
        await world.shell.load()
        for group in ("classic", "modern", "plain"):
            assert isinstance(await world.shell.describe(group), GroupDescription)
        assert not isinstance(await world.commit("plain", 1, 10), Refused)
        beat = ConsumerHeartbeat("dan", 0, rebalance_timeout_ms=9_000, topic_names=("orders",), owned=())
        assert not isinstance(await world.shell.submit("modern", beat), Refused)
        share_beat = ShareHeartbeat("dan", 0, topic_names=("orders",))
        assert isinstance(await world.shell.shares.submit("shared", share_beat), ShareAlive)
        stop(world)
        place += 1
    assert place > 8
