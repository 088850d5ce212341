"""Disks that grow old under a schedule: what is damaged is found and never served, what cannot be read for a moment is
read a moment later, and the log tells what files beside it have lost."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from random import Random

import pytest

from penstock.broker.schedule.limits import ScheduleLimits
from penstock.broker.schedule.values import NotScheduled, PendingPage
from penstock.broker.topic.companion import CompanionKind, companion_id
from penstock.storage.files.buckets import CHECKPOINT_FILE
from penstock.storage.files.small import write_small_file
from support.schedule.broker import TOPIC, ScheduleBroker
from support.storage.weak_disk import WeakDisk

# In spans of all sizes.
DELAYS_MS = (300_000, 700_000, 20_000_000, 40_000_000, 90_000_000, 20_000_000_000)
VALUES = [b"%d" % delay_ms for delay_ms in DELAYS_MS]


@pytest.fixture
async def disk() -> WeakDisk:
    return WeakDisk()


@pytest.fixture
async def desk(disk: WeakDisk) -> AsyncIterator[ScheduleBroker]:
    desk = ScheduleBroker(disk, limits=ScheduleLimits(read_again_ms=1))
    await desk.start()
    await desk.topic(TOPIC)
    yield desk
    disk.heal()
    await desk.stop()


async def saved(desk: ScheduleBroker) -> int:
    """Messages of all spans, in files with a checkpoint, and nothing of them in memory; when they were sent."""
    sent_ms = desk.time.now_ms()
    await desk.delay(*zip(DELAYS_MS, VALUES, strict=True))
    await desk.restart()
    await desk.shell()
    return sent_ms


async def release_all(desk: ScheduleBroker, sent_ms: int) -> None:
    """One span after the other, each at its time, and with a new start wherever the files turn out to be bad."""
    for count, delay_ms in enumerate(DELAYS_MS, 1):
        await desk.pass_time(sent_ms + delay_ms - 1 - desk.time.now_ms())
        await at_rest(desk)
        assert await desk.values() == VALUES[: count - 1], "early"
        await desk.pass_time(1)
        await at_rest(desk)
        assert await desk.values() == VALUES[:count]


async def at_rest(desk: ScheduleBroker) -> None:
    shell = await desk.shell()

    def is_at_rest() -> bool:
        now_ms, machine = desk.time.now_ms(), shell.machine
        deadline_ms = machine.next_deadline_ms(now_ms)
        is_idle = (deadline_ms is None or deadline_ms > now_ms) and not shell.files.is_reading
        return is_broken() or (is_idle and machine.pending_move() is None)

    def is_broken() -> bool:
        return shell.is_lost or shell.companion.log.failure is not None

    await desk.until(is_at_rest)
    if is_broken():
        # As the node does by itself, every few seconds.
        await desk.broker._upkeep.recover_offline()
        await desk.schedules.reload_lost()
        await at_rest(desk)


@pytest.mark.parametrize("seed", range(12))
async def test_flipped_bit_in_a_bucket_file_changes_no_time_and_no_message(
    desk: ScheduleBroker, disk: WeakDisk, seed: int
) -> None:
    sent_ms = await saved(desk)
    random = Random(seed)
    path = random.choice(disk.paths("/bucket-"))
    disk.flip_bit(path, random.randrange(disk.open(path).size() * 8))
    await release_all(desk, sent_ms)


@pytest.mark.parametrize("seed", range(4))
async def test_flipped_bit_in_a_checkpoint_costs_only_time(desk: ScheduleBroker, disk: WeakDisk, seed: int) -> None:
    sent_ms = await saved(desk)
    (path,) = disk.paths(CHECKPOINT_FILE)
    disk.flip_bit(path, Random(seed).randrange(disk.open(path).size() * 8))
    await desk.schedules.stop()
    await desk.restart()
    await release_all(desk, sent_ms)


@pytest.mark.parametrize("part", ["/bucket-", CHECKPOINT_FILE])
async def test_sector_that_is_gone_for_good_keeps_nothing_back(desk: ScheduleBroker, disk: WeakDisk, part: str) -> None:
    sent_ms = await saved(desk)
    bad = disk.paths(part)[0]
    disk.fail_reads(bad, errno.EIO)
    if part == CHECKPOINT_FILE:
        await desk.restart()
    await release_all(desk, sent_ms)
    assert disk.failed_count


async def test_no_more_handles_for_a_moment_costs_no_rebuilding(desk: ScheduleBroker, disk: WeakDisk) -> None:
    sent_ms = await saved(desk)
    machine = (await desk.shell()).machine
    disk.fail_reads("/bucket-", errno.EMFILE, count=5)
    await release_all(desk, sent_ms)
    assert disk.failed_count == 5
    assert (await desk.shell()).machine is machine


async def test_checkpoint_from_before_the_checksums_is_made_anew(desk: ScheduleBroker, disk: WeakDisk) -> None:
    sent_ms = await saved(desk)
    (path,) = disk.paths(CHECKPOINT_FILE)
    await desk.schedules.stop()
    write_small_file(disk, path.rpartition("/")[0], CHECKPOINT_FILE, b"PSSCHED1", b"whatever it was")
    await desk.restart()
    await release_all(desk, sent_ms)


async def test_page_with_a_damaged_file_is_refused_and_then_whole(desk: ScheduleBroker, disk: WeakDisk) -> None:
    await saved(desk)
    disk.flip_bit(disk.paths("/bucket-")[1], 77)
    shell = await desk.shell()
    for _ in range(2):
        # Also when the damaged file is gone, and nothing is there in its place yet.
        assert isinstance(await shell.pending.list_due(None, 10), NotScheduled)
    await desk.schedules.reload_lost()
    page = await (await desk.shell()).pending.list_due(None, 10)
    assert isinstance(page, PendingPage)
    assert [message.value for message in page.messages] == VALUES


async def test_page_is_not_silent_about_a_file_that_cannot_be_read_just_now(
    desk: ScheduleBroker, disk: WeakDisk
) -> None:
    await saved(desk)
    shell = await desk.shell()
    disk.fail_reads("/bucket-", errno.EMFILE, count=1)
    assert isinstance(await shell.pending.list_due(None, 10), NotScheduled)
    page = await shell.pending.list_due(None, 10)
    assert isinstance(page, PendingPage)
    assert len(page.messages) == len(VALUES)


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_log_that_cannot_be_read_for_a_moment_is_not_damaged(
    desk: ScheduleBroker, disk: WeakDisk, number: int
) -> None:
    sent_ms = await saved(desk)
    directory = f"{companion_id(desk.served().topic_id, CompanionKind.SCHEDULE).hex()}/0/"
    shell = await desk.shell()
    disk.fail_reads(directory + "0", number, count=4)
    assert isinstance(await shell.pending.show(0), NotScheduled)
    await release_all(desk, sent_ms)
    assert disk.failed_count == 4
    assert shell.companion.log.damage is None


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_schedule_whose_log_cannot_be_read_at_the_start_is_loaded_a_moment_later(
    desk: ScheduleBroker, disk: WeakDisk, number: int
) -> None:
    sent_ms = await saved(desk)
    shell = await desk.shell()
    await shell.unload()
    disk.remove(disk.paths(CHECKPOINT_FILE)[0])
    directory = f"{companion_id(desk.served().topic_id, CompanionKind.SCHEDULE).hex()}/0/"
    disk.fail_reads(directory + "0", number, count=2)
    outcomes = [await desk.schedules.shell_of(desk.served().shells[0]) for _ in range(3)]
    assert isinstance(outcomes[0], NotScheduled)
    assert outcomes[-1] is shell
    assert shell.companion.log.damage is None
    await release_all(desk, sent_ms)


async def test_damaged_row_is_reported_and_nothing_is_released_in_its_place(
    desk: ScheduleBroker, disk: WeakDisk
) -> None:
    sent_ms = await saved(desk)
    directory = f"{companion_id(desk.served().topic_id, CompanionKind.SCHEDULE).hex()}/0/"
    (path,) = (path for path in disk.paths(directory) if path.endswith(".log"))
    disk.flip_bit(path, 100 * 8)
    shell = await desk.shell()
    assert isinstance(await shell.pending.show(0), NotScheduled)
    assert shell.companion.log.damage is not None
    page = await shell.pending.list_due(None, 10)
    assert isinstance(page, NotScheduled), "a page that leaves out what is damaged looks whole"
    await desk.pass_time(sent_ms + DELAYS_MS[-1] - desk.time.now_ms())
    assert await desk.values() == []
