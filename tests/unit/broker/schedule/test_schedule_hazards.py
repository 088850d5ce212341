"""What a schedule must live through beside a death: disks that fail for a moment, and others that change the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.broker.config import BrokerConfig
from penstock.broker.schedule.due_list import LISTED_BYTES_MAX
from penstock.broker.schedule.journal import WRITE_BYTES_MAX
from penstock.broker.schedule.reader import RowCache
from penstock.broker.schedule.values import DelayedMessage, NotScheduled, PendingMessage, PendingPage
from penstock.broker.topic.companion import CompanionKind, companion_id, companion_settings
from penstock.codec.batch.header import BatchHeader
from penstock.domain.config.topic import make_topic_config
from penstock.domain.schedule.commands import Done
from penstock.domain.schedule.headers import SCHEDULED_AT_HEADER
from penstock.domain.schedule.records import ProducerBatch
from penstock.domain.schedule.rows import Row
from penstock.domain.transaction.end import TransactionEnd
from penstock.storage.errors import DiskFullError
from penstock.storage.files.buckets import CHECKPOINT_FILE
from support.schedule.broker import PATIENCE_SECONDS, TOPIC, ScheduleBroker
from support.schedule.hindered import Hindrance
from support.storage.held_disk import HeldDisk


def ended(producer_id: int, producer_epoch: int, *, is_commit: bool) -> TransactionEnd:
    return TransactionEnd(
        producer_id=producer_id, producer_epoch=producer_epoch, coordinator_epoch=0, is_commit=is_commit
    )


@pytest.fixture
async def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
async def hindrance() -> Hindrance:
    return Hindrance()


@pytest.fixture
async def desk(disk: HeldDisk, hindrance: Hindrance) -> AsyncIterator[ScheduleBroker]:
    desk = ScheduleBroker(disk, shell=hindrance.shell_type())
    await desk.start()
    await desk.topic(TOPIC)
    yield desk
    await desk.stop()


async def test_what_recovery_did_not_find_in_the_log_is_written_again(desk: ScheduleBroker, disk: HeldDisk) -> None:
    """The log comes back, without what the disk did not take, just after the mover has looked what is there."""
    await desk.delay(*((10, b"%d" % number) for number in range(5)))
    shell = await desk.shell()
    log = desk.served().shells[0].log
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
    partition = desk.served().shells[0]
    assert await desk.schedules.end_transaction(partition, ended(7, 0, is_commit=False))
    await desk.restart()
    partition = desk.served().shells[0]
    assert await desk.delay((10, b"kept"), producer=producer, is_transactional=True) != [-1]
    assert await desk.schedules.end_transaction(partition, ended(7, 0, is_commit=True))
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
    desk: ScheduleBroker, disk: HeldDisk
) -> None:
    await desk.delay((1_000, b"whole"))
    shell = await desk.shell()
    log = shell.companion.log
    # What is written from now on needs another file.
    log.roll()
    await desk.delay((1_000_000, b"later"))
    shell.reader.forget()
    desk.store.context.handles.forget(log.segments[0])
    disk.refuse_opens(log.segments[0].path, 3)
    await desk.pass_time(1_000)
    assert await desk.released(1) == [b"whole"]
    assert disk.refusals_left == 0


async def test_row_that_cannot_be_read_is_no_answer_about_its_message(desk: ScheduleBroker, disk: HeldDisk) -> None:
    (origin,) = await desk.delay((1_000, b"x"))
    shell = await desk.shell()
    shell.reader.forget()
    disk.fail(companion_id(desk.served().topic_id, CompanionKind.SCHEDULE), 0)
    shell.companion.log.fail("for a moment")
    assert isinstance(await shell.pending.show(origin), NotScheduled)
    assert isinstance(await shell.pending.cancel(origin), NotScheduled)
    assert isinstance(await shell.pending.list_due(None, 10), NotScheduled)


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
        assert await shell.pending.reschedule(origin, desk.time.now_ms() + delay_ms) == Done()
    shown = await shell.pending.show(origin)
    assert isinstance(shown, PendingMessage)
    assert shown.arrived_ms == came_ms
    await desk.pass_time(30_000)
    await desk.released(1)
    (record,) = await desk.records()
    assert dict(record.headers)[SCHEDULED_AT_HEADER] == b"%d" % came_ms


async def test_load_waits_for_what_the_files_before_are_writing(desk: ScheduleBroker, disk: HeldDisk) -> None:
    """Two that write the same files: one would take a checkpoint for its own that the other is just writing."""
    await desk.delay((400_000, b"x"))
    shell = await desk.shell()
    disk.follow(CHECKPOINT_FILE)
    disk.close_gate()
    saving = asyncio.ensure_future(desk.checkpoint())
    await disk.wait_until_syncing()
    unloading = asyncio.ensure_future(shell.unload())
    loading = asyncio.ensure_future(desk.schedules.shell_of(desk.served().shells[0]))
    for _ in range(100):
        await asyncio.to_thread(bool)
    disk.open_gate()
    await asyncio.gather(saving, unloading, loading)
    assert disk.events == ["saved", "read"]
    assert shell.is_loaded


async def test_topic_that_is_removed_while_its_schedule_is_opened_leaves_nothing(
    desk: ScheduleBroker, disk: HeldDisk
) -> None:
    served = desk.served()
    disk.hold(companion_id(served.topic_id, CompanionKind.SCHEDULE).hex())
    opening = asyncio.ensure_future(desk.schedules.shell_of(served.shells[0]))
    await disk.wait_until_held()
    await desk.catalog.delete_topic(TOPIC)
    disk.let_go()
    assert isinstance(await opening, NotScheduled)
    await desk.until(lambda: not desk.broker.has_companion(served.shells[0], CompanionKind.SCHEDULE))
    assert [shell for shell in desk.broker.all_shells() if shell.topic.startswith(TOPIC)] == []


async def test_companion_is_opened_once_for_all_who_want_it_at_the_same_moment(desk: ScheduleBroker) -> None:
    partition = desk.served().shells[0]
    wanted = [asyncio.ensure_future(desk.broker.companion(partition, CompanionKind.SCHEDULE)) for _ in range(3)]
    await asyncio.sleep(0)
    # Who goes away must not leave behind a log that is open and nobody's.
    for each in wanted[:2]:
        each.cancel()
    opened = await wanted[2]
    assert await desk.broker.companion(partition, CompanionKind.SCHEDULE) is opened
    assert (await desk.shell()).companion is opened


@pytest.mark.parametrize("is_opened", [False, True])
async def test_mover_of_the_life_before_is_remembered_until_its_schedule_is_loaded(
    desk: ScheduleBroker, disk: HeldDisk, hindrance: Hindrance, is_opened: bool
) -> None:
    """What it has written of an intent is known by its sequence alone, and a sweep may come before anybody looks."""
    await desk.delay((10, b"x"))
    await desk.pass_time(10)
    assert await desk.released(1) == [b"x"]
    move = (await desk.shell()).machine.last_move()
    assert move is not None
    desk.served().shells[0].log.known_producers.expire(desk.time.now_ms(), expiration_ms=1_000_000)
    await desk.stop()
    if is_opened:
        hindrance.waiting = {0}
    else:
        disk.hold(companion_id(desk.served().topic_id, CompanionKind.SCHEDULE).hex())
    await desk.start()
    await (asyncio.wait_for(hindrance.is_waiting.wait(), PATIENCE_SECONDS) if is_opened else disk.wait_until_held())
    log = desk.served().shells[0].log
    log.known_producers.expire(desk.time.now_ms() + 10_000_000, expiration_ms=1_000_000)
    assert log.producers.state_of(move.producer_id) is not None
    hindrance.may_load.set()
    disk.let_go()


async def test_companion_is_kept_as_long_as_the_node_is_told_to_trace() -> None:
    for traced_ms, segment_ms in ((0, 3_600_000), (7_200_000, 7_200_000), (7 * 86_400_000, 86_400_000)):
        config = make_topic_config(companion_settings(CompanionKind.SCHEDULE, traced_ms=traced_ms), {})
        assert (config.min_compaction_lag_ms, config.delete_retention_ms) == (traced_ms, traced_ms)
        assert config.segment_ms == segment_ms


async def test_companion_takes_the_horizon_from_the_configuration(desk: ScheduleBroker) -> None:
    desk.broker.config = BrokerConfig(trace_horizon_ms=5_000_000)
    assert (await desk.shell()).companion.config.min_compaction_lag_ms == 5_000_000


def test_cache_counts_a_row_that_comes_again_once() -> None:
    cache = RowCache(bytes_max=10_000)
    cache.put((1, 7), Row(b"other", b"x"))
    for _ in range(1_000):
        cache.put((1, 1), Row(b"key", b"x" * 1_000))
    assert cache.get((1, 7)) is not None
