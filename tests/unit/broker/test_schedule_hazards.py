"""What a schedule must live through beside a death: disks that fail for a moment, and others that change the log."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.broker import schedule_reader
from penstock.broker.companion import CompanionKind, companion_id
from penstock.broker.schedule_journal import WRITE_BYTES_MAX
from penstock.broker.schedule_shell import LISTED_BYTES_MAX
from penstock.broker.schedule_values import DelayedMessage, NotScheduled, PendingMessage, PendingPage
from penstock.codec.record_batch import BatchHeader
from penstock.domain.schedule_commands import Done
from penstock.domain.schedule_headers import SCHEDULED_AT_HEADER
from penstock.domain.schedule_records import ProducerBatch
from penstock.storage.batch_lookup import BatchLookup, plan_lookups
from penstock.storage.file_protocols import File
from penstock.storage.handle_cache import FileOwner
from penstock.storage.partition_log import PartitionLog
from penstock.storage.storage_errors import DiskFullError
from support.gated_disk import GatedDisk
from support.schedule_broker import TOPIC, ScheduleBroker


@pytest.fixture
async def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
async def desk(disk: GatedDisk) -> AsyncIterator[ScheduleBroker]:
    desk = ScheduleBroker(disk)
    await desk.start()
    await desk.topic(TOPIC)
    yield desk
    await desk.stop()


async def test_what_recovery_did_not_find_in_the_log_is_written_again(desk: ScheduleBroker, disk: GatedDisk) -> None:
    """The log comes back, without what the disk did not take, just after the mover has looked what is there."""
    await desk.delay(*((10, b"%d" % number) for number in range(5)))
    shell = await desk.shell()
    log = desk.served().partitions[0].log
    until_durable = shell.journal.until_durable

    async def until_the_log_is_back() -> bool:
        is_durable = await until_durable()
        if log.failure is not None:
            disk.heal()
            desk.files.open(log.segments[0].path).truncate(0)
            await desk.broker._upkeep.recover_offline()
            assert log.failure is None
            assert log.log_end == 0
        return is_durable

    shell.journal.until_durable = until_the_log_is_back  # type: ignore[method-assign]
    disk.fail(desk.served().topic_id, 0)
    await desk.pass_time(10)
    await desk.until(lambda: shell.pending_count == 0)
    assert await desk.values() == [b"%d" % number for number in range(5)]


async def test_sequence_of_an_aborted_transaction_may_come_again(desk: ScheduleBroker) -> None:
    """A node dies between schedule and topic; kafkajs gives up, aborts, and goes on with the sequence that it had."""
    producer = ProducerBatch(7, 0, 5)
    await desk.delay((10, b"aborted"), producer=producer, is_transactional=True)
    partition = desk.served().partitions[0]
    assert await desk.schedules.end_transaction(partition, producer_id=7, producer_epoch=0, is_commit=False)
    await desk.restart()
    partition = desk.served().partitions[0]
    assert await desk.delay((10, b"kept"), producer=producer, is_transactional=True) != [-1]
    assert await desk.schedules.end_transaction(partition, producer_id=7, producer_epoch=0, is_commit=True)
    await desk.pass_time(100)
    assert await desk.released(1) == [b"kept"]


async def test_schedule_comes_back_when_the_disk_took_half_of_its_rows(desk: ScheduleBroker) -> None:
    await desk.delay((10, b"before"))
    shell = await desk.shell()
    log = shell.companion.log
    append, calls = log.append, 0

    def append_once(data: memoryview, headers: Sequence[BatchHeader]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise DiskFullError("for a moment")
        append(data, headers)

    log.append = append_once  # type: ignore[method-assign]
    large = [DelayedMessage(desk.time.now_ms() + 20, None, b"x" * (WRITE_BYTES_MAX // 2)) for _ in range(6)]
    assert isinstance(await shell.schedule(large), NotScheduled)
    assert shell.is_lost
    await desk.until(lambda: shell.companion.readable_end == log.log_end)
    await desk.schedules.reload_lost()
    assert shell.is_loaded
    await desk.delay((10, b"after"))
    await desk.pass_time(10)
    await desk.until(lambda: shell.machine.next_deadline_ms(desk.time.now_ms()) != desk.time.now_ms())
    assert [value for value in await desk.released(2) if len(value) < 10] == [b"before", b"after"]


async def test_message_whose_row_cannot_be_read_for_a_moment_is_not_released_without_it(
    desk: ScheduleBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.delay((1_000, b"whole"))
    shell = await desk.shell()
    shell.reader.forget()
    log, handles = shell.companion.log, desk.store.context.handles
    open_file, failures = handles.open, 0

    def no_more_files(owner: FileOwner, *, create: bool = False) -> File:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), owner.path)

    def plan_without_files(_log: PartitionLog, offsets: Sequence[int]) -> list[BatchLookup]:
        nonlocal failures
        failures += 1
        for segment in log.segments:
            handles.forget(segment)
        handles.open = no_more_files if failures <= 3 else open_file  # type: ignore[method-assign]
        try:
            return plan_lookups(log, offsets)
        finally:
            handles.open = open_file  # type: ignore[method-assign]

    monkeypatch.setattr(schedule_reader, "plan_lookups", plan_without_files)
    await desk.pass_time(1_000)
    assert await desk.released(1) == [b"whole"]
    assert failures > 3


async def test_row_that_cannot_be_read_is_no_answer_about_its_message(desk: ScheduleBroker, disk: GatedDisk) -> None:
    (origin,) = await desk.delay((1_000, b"x"))
    shell = await desk.shell()
    shell.reader.forget()
    disk.fail(companion_id(desk.served().topic_id, CompanionKind.SCHEDULE), 0)
    shell.companion.log.fail("for a moment")
    assert isinstance(await shell.show(origin), NotScheduled)
    assert isinstance(await shell.cancel(origin), NotScheduled)
    assert isinstance(await shell.list_due(None, 10), NotScheduled)


async def test_message_that_is_released_very_late_is_not_too_old_for_its_topic(desk: ScheduleBroker) -> None:
    """A node that was down for longer than its topic keeps anything."""
    await desk.topic("brief", retention_ms="60000")
    shell = await desk.shell("brief")
    now_ms = desk.time.now_ms()
    messages = [DelayedMessage(now_ms + delay_ms, None, b"%d" % delay_ms) for delay_ms in (10, 3_600_000, 3_610_000)]
    await shell.schedule(messages)
    await desk.pass_time(3_610_000)
    await desk.until(lambda: shell.pending_count == 0 and shell.machine.pending_move() is None)
    records = await desk.records("brief")
    assert [record.timestamp_ms - now_ms for record in records] == [3_610_000, 3_600_000, 3_610_000]
    assert sum(shell.mover.counts.by_lateness[:-1]) == 2


async def test_late_message_alone_outlives_the_next_round_of_retention(desk: ScheduleBroker) -> None:
    await desk.topic("brief", retention_ms="60000")
    shell = await desk.shell("brief")
    await shell.schedule([DelayedMessage(desk.time.now_ms() + 10, None, b"late")])
    await desk.pass_time(3_600_000)
    await desk.until(lambda: shell.pending_count == 0 and shell.machine.pending_move() is None)
    await desk.broker._upkeep.apply_retention()
    await desk.store.checkpoint()
    await desk.broker._upkeep.apply_retention()
    assert await desk.values("brief") == [b"late"]


async def test_page_of_large_messages_ends_early_and_goes_on(desk: ScheduleBroker) -> None:
    await desk.topic("large", 2)
    now_ms, served = desk.time.now_ms(), desk.served("large")
    size_bytes = LISTED_BYTES_MAX // 40
    messages = [DelayedMessage(now_ms + 1_000 + number, None, b"x" * size_bytes) for number in range(100)]
    await desk.schedules.schedule(served, messages, [number % 2 for number in range(100)])
    dues_ms: list[int] = []
    after = None
    for _page in range(20):
        page = await desk.schedules.list_due(served, after, 1_000)
        assert isinstance(page, PendingPage)
        assert sum(len(message.value or b"") for message in page.messages) < 2 * LISTED_BYTES_MAX
        dues_ms += [message.due_ms for message in page.messages]
        after = page.next
        if after is None:
            break
    assert dues_ms == [message.due_ms for message in messages]


async def test_message_with_another_time_tells_when_it_came_first(desk: ScheduleBroker) -> None:
    came_ms = desk.time.now_ms()
    (origin,) = await desk.delay((60_000, b"x"))
    shell = await desk.shell()
    for delay_ms in (50_000, 30_000):
        await desk.pass_time(1_000)
        assert await shell.reschedule(origin, desk.time.now_ms() + delay_ms) == Done()
    shown = await shell.show(origin)
    assert isinstance(shown, PendingMessage)
    assert shown.arrived_ms == came_ms
    await desk.pass_time(30_000)
    await desk.released(1)
    (record,) = await desk.records()
    assert dict(record.headers)[SCHEDULED_AT_HEADER] == b"%d" % came_ms
