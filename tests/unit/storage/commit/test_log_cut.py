"""A follower cuts off what its leader does not have: while others work on the log, and whenever the machine dies."""

from __future__ import annotations

import asyncio

import pytest

from penstock.storage.commit.log_cut import CutRefused
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogFailedError
from penstock.storage.log.journal_snapshot import JournalSnapshot, read_snapshot, write_snapshot
from penstock.storage.log.replay_start import read_replay_start, write_replay_start
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash
from support.storage.held_disk import HeldDisk
from support.storage.log_desk import LogDesk

SMALL = LogConfig(segment_bytes=200)


async def turn_loop() -> None:
    """Everything that can go on without the disk has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


def filled(desk: LogDesk, count: int = 6, *, readable_end: int = 2) -> list[bytes]:
    """One batch a producer, in two epochs, all of it durable."""
    batches = [
        desk.append(bytes(60), producer_id=place, producer_epoch=0, base_sequence=0, leader_epoch=1 + (place > 3))
        for place in range(count)
    ]
    assert not desk.store.group_commit.sync_now([desk.log])
    desk.log.advance_readable(readable_end)
    return batches


# --- what is cut -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_saved", [True, False])
async def test_log_knows_after_a_cut_what_is_left_and_nothing_more(is_saved: bool) -> None:
    desk = LogDesk(config=SMALL, is_replicated=True)
    batches = filled(desk)
    if is_saved:
        await desk.store.checkpoint()
        desk.store.checkpoint_now(every_log=True)
    assert await desk.store.cut_log(desk.log, 3) is None
    log = desk.log
    assert (log.log_end, log.readable_end, log.durable_end) == (3, 2, 3)
    assert log.epochs.entries() == [(1, 0)]
    assert sorted(log.producers.as_dict()) == [0, 1, 2]
    log.advance_readable(3)
    assert desk.read(2) == batches[2]
    other = desk.append(b"other", leader_epoch=5)
    desk.sync()
    assert desk.read(3) == other
    desk.restart(clean=False)
    assert (desk.log.log_end, desk.log.epochs.entries()) == (4, [(1, 0), (5, 3)])


async def test_cut_inside_a_batch_takes_all_of_it() -> None:
    desk = LogDesk(is_replicated=True)
    desk.append(b"a")
    desk.append(b"b", b"c", b"d")
    assert await desk.store.cut_log(desk.log, 2) is None
    assert desk.log.log_end == 1


async def test_cut_below_what_readers_were_given_is_refused() -> None:
    desk = LogDesk(config=SMALL, is_replicated=True)
    batches = filled(desk, readable_end=4)
    refused = await desk.store.cut_log(desk.log, 3)
    assert isinstance(refused, CutRefused)
    assert "3" in refused.describe()
    assert (desk.log.log_end, desk.log.readable_end, desk.read(3)) == (6, 4, batches[3])


async def test_unclean_election_may_cut_below_what_readers_were_given() -> None:
    desk = LogDesk(config=SMALL, is_replicated=True)
    batches = filled(desk, readable_end=5)
    assert await desk.store.cut_log(desk.log, 3, is_unclean=True) is None
    assert (desk.log.log_end, desk.log.readable_end, desk.read(2)) == (3, 3, batches[2])


async def test_cut_before_the_start_is_refused() -> None:
    desk = LogDesk(config=SMALL, is_replicated=True)
    filled(desk, readable_end=6)
    desk.log.delete_before(4).run()
    assert isinstance(await desk.store.cut_log(desk.log, 3, is_unclean=True), CutRefused)


async def test_epochs_are_cut_where_no_byte_is() -> None:
    desk = LogDesk(is_replicated=True)
    filled(desk, 2)
    desk.log.note_epoch(7)
    desk.store.checkpoint_now(every_log=True)
    assert await desk.store.cut_log(desk.log, 2) is None
    assert desk.log.epochs.entries() == [(1, 0)]
    # A leader of epoch 8 may have batches of epoch 6 there.
    sent = memoryview(desk.batch(b"x", base_offset=2, leader_epoch=6))
    assert desk.log.append_replicated(sent, leader_epoch=8) is None
    desk.sync()
    desk.restart(clean=False)
    assert desk.log.epochs.entries() == [(1, 0), (6, 2)]


async def test_files_that_speak_of_what_is_cut_go_with_it() -> None:
    desk = LogDesk(is_replicated=True)
    filled(desk, readable_end=5)
    files, directory = desk.files, desk.log.home.directory
    write_snapshot(files, directory, JournalSnapshot(5, [b"k"], [b"v"]))
    write_replay_start(files, directory, 5)
    assert await desk.store.cut_log(desk.log, 5) is None
    assert read_snapshot(files, directory) is not None
    assert read_replay_start(files, directory) == 5
    assert await desk.store.cut_log(desk.log, 4, is_unclean=True) is None
    assert read_snapshot(files, directory) is None
    assert read_replay_start(files, directory) is None


# --- beside others ---------------------------------------------------------------------------------------------------


async def test_cut_waits_for_whoever_works_on_the_log_and_keeps_others_out() -> None:
    desk = LogDesk(is_replicated=True)
    filled(desk)
    maintenance = desk.log.maintenance
    assert maintenance.join()
    assert maintenance.join()
    cut = asyncio.create_task(desk.store.cut_log(desk.log, 3))
    await turn_loop()
    assert maintenance.is_wanted
    assert not maintenance.join()
    maintenance.leave()
    await turn_loop()
    assert desk.log.log_end == 6
    maintenance.leave()
    assert await cut is None
    assert desk.log.log_end == 3
    assert maintenance.join()


async def test_cut_waits_for_a_checkpoint_which_then_claims_nothing_past_it() -> None:
    disk = HeldDisk()
    desk = LogDesk(disk, config=SMALL, is_replicated=True)
    filled(desk)
    desk.log.is_save_wanted = True
    disk.hold("leader_epochs")
    checkpoint = asyncio.create_task(desk.store.checkpoint())
    await disk.wait_until_held()
    cut = asyncio.create_task(desk.store.cut_log(desk.log, 3))
    await turn_loop()
    assert desk.log.log_end == 6
    # Nothing is written to a log that is about to be cut.
    with pytest.raises(LogFailedError):
        desk.append(b"late", leader_epoch=2)
    disk.let_go()
    await checkpoint
    assert await cut is None
    desk.restart(clean=False)
    assert (desk.log.log_end, desk.log.damage) == (3, None)


async def test_log_is_read_and_not_written_while_it_is_cut() -> None:
    disk = HeldDisk()
    desk = LogDesk(disk, config=SMALL, is_replicated=True)
    batches = filled(desk)
    disk.hold("leader_epochs")
    cut = asyncio.create_task(desk.store.cut_log(desk.log, 3))
    await disk.wait_until_held()
    with pytest.raises(LogFailedError):
        desk.append(b"late", leader_epoch=2)
    assert desk.read(1) == batches[1]
    desk.log.is_save_wanted = True
    assert desk.store.begin_checkpoint(every_log=True) is None
    disk.let_go()
    assert await cut is None
    assert desk.log.log_end == 3
    desk.append(b"now", leader_epoch=2)


async def test_cut_that_nobody_waits_for_any_more_is_finished() -> None:
    disk = HeldDisk()
    desk = LogDesk(disk, config=SMALL, is_replicated=True)
    filled(desk)
    disk.hold("leader_epochs")
    cut = asyncio.create_task(desk.store.cut_log(desk.log, 3))
    await disk.wait_until_held()
    cut.cancel()
    await turn_loop()
    disk.let_go()
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert (desk.log.log_end, desk.log.failure) == (3, None)
    assert desk.log.maintenance.join()


async def test_disk_that_fails_a_cut_takes_the_log_offline_until_it_is_read_again() -> None:
    disk = HeldDisk()
    desk = LogDesk(disk, config=SMALL, is_replicated=True)
    filled(desk)
    disk.refuse_opens("leader_epochs", 1)
    with pytest.raises(LogFailedError):
        await desk.store.cut_log(desk.log, 3)
    assert desk.log.failure is not None
    desk.log.adopt(desk.store.recover_log(desk.log))
    assert (desk.log.log_end, desk.log.readable_end) == (6, 2)


async def test_topic_that_is_deleted_meanwhile_stays_closed() -> None:
    disk = HeldDisk()
    desk = LogDesk(disk, config=SMALL, is_replicated=True)
    filled(desk)
    disk.hold("leader_epochs")
    cut = asyncio.create_task(desk.store.cut_log(desk.log, 3))
    await disk.wait_until_held()
    desk.log.close()
    disk.let_go()
    await asyncio.gather(cut, return_exceptions=True)
    assert desk.log.failure == "the log is closed"


# --- a machine that dies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(CrashMode))
@pytest.mark.parametrize("is_saved", [True, False])
def test_crash_at_any_moment_of_a_cut_leaves_it_done_or_not(mode: CrashMode, is_saved: bool) -> None:
    ends = set()
    for steps in range(1_000):
        files = FaultyFiles()
        desk = LogDesk(files, config=SMALL, is_replicated=True)
        batches = filled(desk)
        if is_saved:
            desk.store.checkpoint_now(every_log=True)
        files.crash_after(steps)
        try:
            desk.store.truncate_log(desk.log, 3)
            is_over = True
        except SimulatedCrash:
            is_over = False
        files.steps_left = -1
        files.crash(mode)
        desk.restart(clean=False)
        log = desk.log
        ends.add(log.log_end)
        assert (log.damage, log.readable_end) == (None, 2 if is_saved else 0)
        assert sorted(log.producers.as_dict()) == list(range(log.log_end))
        assert log.epochs.entries() == ([(1, 0)] if log.log_end <= 4 else [(1, 0), (2, 4)])
        desk.append(b"other", leader_epoch=9)
        desk.sync()
        assert desk.read(log.log_end - 2)[: len(batches[0])] == batches[log.log_end - 2]
        if is_over:
            assert log.log_end == 4
            break
    assert min(ends) == 3
    assert max(ends) == 6
