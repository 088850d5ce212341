"""A replica that begins anew where its leader begins, and logs that are put out of use without being lost."""

from __future__ import annotations

import asyncio

import pytest

from penstock.storage.commit.log_anew import LogAnew
from penstock.storage.config import LogConfig
from penstock.storage.errors import LogFailedError
from penstock.storage.log.set_aside import Aside
from penstock.storage.store import STRAY_KEPT_MS
from support.storage.faulty_files import CrashMode, FaultyFiles, SimulatedCrash
from support.storage.held_disk import HeldDisk
from support.storage.log_desk import TOPIC_ID, LogDesk

SMALL = LogConfig(segment_bytes=200)


def filled(desk: LogDesk, count: int = 4) -> None:
    for place in range(count):
        desk.append(bytes(60), producer_id=place, producer_epoch=0, base_sequence=0)
    desk.sync()


def facts(desk: LogDesk) -> tuple[int, int, int]:
    return desk.log.log_start, desk.log.readable_end, desk.log.log_end


async def test_empty_log_begins_where_its_leader_does() -> None:
    desk = LogDesk(is_replicated=True)
    await desk.store.begin_log_at(desk.log, 1_000)
    assert facts(desk) == (1_000, 1_000, 1_000)
    sent = desk.batch(b"a", base_offset=1_000, leader_epoch=2)
    assert desk.log.append_replicated(memoryview(sent), leader_epoch=2) is None
    desk.sync()
    assert desk.read(1_000) == bytes(sent)
    desk.restart(clean=False)
    assert (desk.log.log_start, desk.log.log_end, desk.log.damage) == (1_000, 1_001, None)


@pytest.mark.parametrize("clean", [True, False])
async def test_log_that_begins_anew_does_so_after_every_restart(clean: bool) -> None:
    desk = LogDesk(is_replicated=True)
    await desk.store.begin_log_at(desk.log, 7)
    desk.restart(clean=clean)
    assert facts(desk) == (7, 7, 7)


@pytest.mark.parametrize("offset", [0, 2, 9])
async def test_what_a_log_held_is_gone_when_it_begins_anew(offset: int) -> None:
    files = FaultyFiles()
    desk = LogDesk(files, config=SMALL, is_replicated=True)
    filled(desk)
    desk.store.checkpoint_now(every_log=True)
    await desk.store.begin_log_at(desk.log, offset)
    assert facts(desk) == (offset, offset, offset)
    assert (desk.log.producers.as_dict(), desk.log.epochs.entries(), desk.log.size_bytes) == ({}, [], 0)
    assert desk.store.logs_set_aside() == []
    files.crash(CrashMode.LOST)
    desk.restart(clean=False)
    assert facts(desk) == (offset, offset, offset)
    assert desk.log.damage is None


async def test_checkpoint_after_a_beginning_speaks_of_the_new_log() -> None:
    desk = LogDesk(config=SMALL, is_replicated=True)
    filled(desk)
    desk.store.checkpoint_now(every_log=True)
    await desk.store.begin_log_at(desk.log, 2)
    desk.append(b"x")
    desk.sync()
    await desk.store.checkpoint()
    desk.restart(clean=True)
    assert facts(desk) == (2, 3, 3)


async def test_damaged_replica_is_kept_beside_the_one_that_begins_in_its_place() -> None:
    desk = LogDesk(config=SMALL, is_replicated=True)
    filled(desk)
    desk.log.fail("the disk failed it")
    path = await desk.store.put_aside(desk.log, 3)
    assert path == f"{desk.log.home.directory}.{desk.clock.now_ms()}.damaged"
    assert facts(desk) == (3, 3, 3)
    assert desk.log.is_healthy
    assert any(name.endswith(".log") for name in desk.files.list_directory(path))
    filled(desk, 1)
    assert await desk.store.put_aside(desk.log, 3) != path
    assert [log.kind for log in desk.store.logs_set_aside()] == [Aside.DAMAGED, Aside.DAMAGED]
    desk.clock.advance_ms(100 * STRAY_KEPT_MS)
    assert desk.store.remove_strays() == []


async def test_nothing_is_put_aside_of_a_log_that_has_nothing() -> None:
    desk = LogDesk(is_replicated=True)
    assert await desk.store.put_aside(desk.log, 5) is None
    assert facts(desk) == (5, 5, 5)


async def test_log_takes_and_serves_nothing_while_it_begins_anew() -> None:
    disk = HeldDisk()
    desk = LogDesk(disk, is_replicated=True)
    filled(desk)
    disk.hold("log_start")
    begins = asyncio.create_task(desk.store.begin_log_at(desk.log, 9))
    await disk.wait_until_held()
    with pytest.raises(LogFailedError):
        desk.append(b"late")
    assert desk.log.plan_read(0, bytes_max=100) is None
    disk.let_go()
    await begins
    assert facts(desk) == (9, 9, 9)


@pytest.mark.parametrize("mode", list(CrashMode))
def test_crash_leaves_the_log_as_it_was_or_empty(mode: CrashMode) -> None:
    found = set()
    for steps in range(1_000):
        files = FaultyFiles()
        desk = LogDesk(files, config=SMALL, is_replicated=True)
        filled(desk)
        desk.store.checkpoint_now(every_log=True)
        anew = LogAnew(desk.store.context, desk.store.checkpoints, desk.log, 9, Aside.DROPPED)
        anew.begin()
        files.crash_after(steps)
        try:
            anew.save()
            anew.run()
            is_over = True
        except SimulatedCrash:
            is_over = False
        files.steps_left = -1
        files.crash(mode)
        desk.restart(clean=False)
        assert desk.log.damage is None
        found.add((desk.log.log_start, desk.log.log_end))
        desk.store.remove_strays()
        assert desk.store.logs_set_aside() == []
        if is_over:
            assert facts(desk) == (9, 9, 9)
            break
    assert found <= {(0, 4), (0, 0), (9, 9)}
    assert {(0, 4), (9, 9)} <= found


# --- strays ----------------------------------------------------------------------------------------------------------


async def test_stray_is_kept_for_a_day() -> None:
    desk = LogDesk()
    filled(desk)
    desk.store.checkpoint_now(every_log=True)
    since_ms = desk.clock.now_ms()
    await desk.store.set_strays([(TOPIC_ID, 0)])
    assert desk.log.is_closed
    assert desk.store.logs == []
    assert not desk.store.has_log(TOPIC_ID, 0)
    assert [(log.topic_id, log.partition, log.since_ms, log.kind) for log in desk.store.logs_set_aside()] == [
        (TOPIC_ID, 0, since_ms, Aside.STRAY)
    ]
    desk.clock.advance_ms(STRAY_KEPT_MS - 1)
    assert desk.store.remove_strays() == []
    desk.clock.advance_ms(1)
    assert len(desk.store.remove_strays()) == 1
    assert desk.store.logs_set_aside() == []


@pytest.mark.parametrize("clean", [True, False])
async def test_log_that_is_assigned_again_does_not_miss_what_was_a_stray(clean: bool) -> None:
    desk = LogDesk()
    filled(desk)
    desk.store.checkpoint_now(every_log=True)
    await desk.store.set_strays([(TOPIC_ID, 0), (TOPIC_ID, 1)])
    desk.log = desk.open_log()
    assert (desk.log.log_end, desk.log.damage) == (0, None)
    desk.restart(clean=clean)
    assert (desk.log.log_end, desk.log.damage) == (0, None)
