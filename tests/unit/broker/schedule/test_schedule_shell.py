"""The shell of a partition's schedule, on a store in memory and with a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.broker.partition.outcome import Refusal
from penstock.broker.schedule.released import BATCH_BYTES_MAX
from penstock.broker.schedule.values import DelayedMessage, NotScheduled, PendingMessage, Scheduled
from penstock.broker.topic.companion import CompanionKind, companion_id
from penstock.codec.batch.header import BatchHeader
from penstock.domain.queue.receipt import read_scheduled_id
from penstock.domain.schedule.commands import Done, Refused, ScheduleProblem
from penstock.domain.schedule.headers import (
    KEPT_DELAY_HEADER,
    MESSAGE_ID_HEADER,
    SCHEDULED_AT_HEADER,
    WRITTEN_AT_HEADER,
)
from penstock.domain.schedule.records import ProducerBatch
from penstock.domain.transaction.end import TransactionEnd
from penstock.storage.errors import DiskFullError
from penstock.storage.files.buckets import CHECKPOINT_FILE
from support.schedule.broker import TOPIC, ScheduleBroker
from support.storage.gated_disk import GatedDisk

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def ended(producer_id: int, producer_epoch: int, *, is_commit: bool) -> TransactionEnd:
    return TransactionEnd(
        producer_id=producer_id, producer_epoch=producer_epoch, coordinator_epoch=0, is_commit=is_commit
    )


@pytest.fixture
async def desk() -> AsyncIterator[ScheduleBroker]:
    desk = ScheduleBroker()
    await desk.start()
    await desk.topic(TOPIC)
    yield desk
    await desk.stop()


# Release


async def test_message_is_released_when_it_is_due_and_not_before(desk: ScheduleBroker) -> None:
    await desk.delay((1_000, b"later"), (500, b"sooner"))
    await desk.pass_time(499)
    assert await desk.values() == []
    await desk.pass_time(1)
    assert await desk.released(1) == [b"sooner"]
    await desk.pass_time(500)
    assert await desk.released(2) == [b"sooner", b"later"]


async def test_released_message_is_dated_when_it_was_due_and_tells_where_it_comes_from(desk: ScheduleBroker) -> None:
    shell = await desk.shell()
    began_ms = desk.time.now_ms()
    message = DelayedMessage(began_ms + 100, b"key", b"value", (("penstock-delay-ms", b"100"), ("own", None)), 42)
    outcome = await shell.schedule([message])
    assert isinstance(outcome, Scheduled)
    await desk.pass_time(250)
    await desk.released(1)
    (record,) = await desk.records()
    assert (record.key, record.value, record.timestamp_ms) == (b"key", b"value", began_ms + 100)
    assert dict(record.headers) == {
        KEPT_DELAY_HEADER: b"100",
        "own": None,
        SCHEDULED_AT_HEADER: b"%d" % began_ms,
        WRITTEN_AT_HEADER: b"42",
        MESSAGE_ID_HEADER: outcome.message_ids[0].encode(),
    }
    found = read_scheduled_id(outcome.message_ids[0])
    assert found is not None
    assert (found.topic_id, found.offset) == (desk.served().topic_id, outcome.origins[0])


async def test_delay_of_weeks_goes_by_way_of_files(desk: ScheduleBroker) -> None:
    await desk.delay((40 * DAY_MS, b"far"), (3 * HOUR_MS, b"today"), (5 * DAY_MS, b"this week"))
    for day in range(41):
        await desk.pass_time(DAY_MS)
        await desk.settled()
        if day % 3 == 0:
            await desk.restart()
    assert await desk.values() == [b"today", b"this week", b"far"]
    assert (await desk.shell()).pending_count == 0


async def test_queue_delivers_released_message(desk: ScheduleBroker) -> None:
    name = await desk.queue(TOPIC)
    await desk.delay((1_000, b"work"))
    assert await desk.receive(name) == []
    await desk.pass_time(1_000)
    await desk.released(1)
    assert [message.record.value for message in await desk.receive(name)] == [b"work"]


async def test_messages_too_large_for_one_batch_are_released_in_order() -> None:
    desk = ScheduleBroker()
    await desk.start()
    await desk.topic(TOPIC)
    values = [b"%d" % number * (BATCH_BYTES_MAX // 4) for number in range(10)]
    await desk.delay(*((10 + place, value) for place, value in enumerate(values)))
    await desk.pass_time(1_000)
    assert await desk.released(10) == values
    await desk.stop()


async def test_intent_of_which_a_part_is_there_goes_on_where_it_was(desk: ScheduleBroker) -> None:
    log = desk.served().shells[0].log
    append, calls = log.append, 0

    def append_now_and_then(data: memoryview, headers: Sequence[BatchHeader]) -> None:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise DiskFullError("for a moment")
        append(data, headers)

    log.append = append_now_and_then  # type: ignore[method-assign]
    values = [b"%d" % number * (BATCH_BYTES_MAX // 4) for number in range(10)]
    await desk.delay(*((10 + place, value) for place, value in enumerate(values)))
    await desk.pass_time(1_000)
    assert await desk.released(10) == values
    assert calls > 4


async def test_topic_that_has_become_stricter_takes_what_it_had_accepted(desk: ScheduleBroker) -> None:
    await desk.delay((1_000, b"x" * 5_000))
    wanted = {"max.message.bytes": "1000", "message.timestamp.before.max.ms": "10", "cleanup.policy": "compact"}
    await desk.catalog.replace_config(TOPIC, wanted)
    await desk.until(lambda: desk.served().config.max_message_bytes == 1_000)
    await desk.pass_time(HOUR_MS)
    assert await desk.released(1) == [b"x" * 5_000]
    shell = await desk.shell()
    for message in (DelayedMessage(0, b"k", b"x" * 5_000), DelayedMessage(0, None, b"x")):
        assert isinstance(await shell.schedule([message]), NotScheduled)


async def test_removed_topic_takes_its_schedule_along(desk: ScheduleBroker) -> None:
    await desk.delay((1_000, b"never"))
    shell = await desk.shell()
    topic_id = desk.served().topic_id
    await desk.catalog.delete_topic(TOPIC)
    await desk.until(lambda: desk.broker.topic(TOPIC) is None and not shell.is_loaded)
    directory = f"/data/logs/{companion_id(topic_id, CompanionKind.SCHEDULE).hex()}"
    await desk.until(lambda: not desk.files.list_directory(directory))
    assert isinstance(await shell.schedule([DelayedMessage(0, None, b"late")]), NotScheduled)
    assert list(desk.schedules.loaded_shells()) == []


# Clocks


async def test_clock_put_forward_releases_and_put_back_does_not_release_again(desk: ScheduleBroker) -> None:
    await desk.delay((HOUR_MS, b"first"), (2 * HOUR_MS, b"second"))
    desk.time.step_wall_ms(HOUR_MS)
    await desk.schedules.check_clock()
    assert await desk.released(1) == [b"first"]
    desk.time.step_wall_ms(-HOUR_MS)
    await desk.schedules.check_clock()
    await desk.pass_time(HOUR_MS + 10)
    assert await desk.values() == [b"first"]
    await desk.pass_time(HOUR_MS)
    assert await desk.released(2) == [b"first", b"second"]


# Changes


async def test_cancelled_message_is_not_released(desk: ScheduleBroker) -> None:
    kept, gone = await desk.delay((1_000, b"kept"), (1_000, b"gone"))
    shell = await desk.shell()
    assert await shell.pending.cancel(gone) == Done()
    assert await shell.pending.cancel(gone) == Refused(ScheduleProblem.NOT_PENDING)
    assert shell.pending_count == 1
    await desk.pass_time(1_000)
    assert await desk.released(1) == [b"kept"]
    assert await shell.pending.cancel(kept) == Refused(ScheduleProblem.NOT_PENDING)


async def test_message_with_another_time_keeps_its_id(desk: ScheduleBroker) -> None:
    (origin,) = await desk.delay((1_000, b"moved"))
    shell = await desk.shell()
    for delay_ms in (30 * DAY_MS, 2_000):
        assert await shell.pending.reschedule(origin, desk.time.now_ms() + delay_ms) == Done()
    shown = await desk.schedules.show(shell.message_id(origin))
    assert isinstance(shown, PendingMessage)
    assert (shown.due_ms, shown.value, shown.origin) == (desk.time.now_ms() + 2_000, b"moved", origin)
    await desk.restart()
    await desk.pass_time(1_999)
    assert await desk.values() == []
    await desk.pass_time(1)
    await desk.released(1)
    (record,) = await desk.records()
    assert dict(record.headers)[MESSAGE_ID_HEADER] == shell.message_id(origin).encode()
    assert await desk.schedules.show(shell.message_id(origin)) is None
    assert await desk.schedules.cancel("nonsense") == Refused(ScheduleProblem.NOT_PENDING)


# Producers and transactions


async def test_batch_that_comes_again_is_scheduled_once(desk: ScheduleBroker) -> None:
    producer = ProducerBatch(7, 0, 0)
    assert await desk.delay((10, b"a"), (20, b"b"), producer=producer) == [0, 1]
    assert await desk.delay((10, b"a"), (20, b"b"), producer=producer) == [-1, -1]
    await desk.restart()
    assert await desk.delay((10, b"a"), (20, b"b"), producer=producer) == [-1, -1]
    await desk.pass_time(100)
    assert await desk.released(2) == [b"a", b"b"]


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_transaction_decides_about_its_messages(desk: ScheduleBroker, is_commit: bool, is_saved: bool) -> None:
    producer = ProducerBatch(7, 3, 0)
    await desk.delay((10, b"in"), producer=producer, is_transactional=True)
    await desk.delay((10, b"out"))
    await desk.pass_time(100)
    assert await desk.released(1) == [b"out"]
    await desk.restart()
    if not is_saved:
        forget_checkpoint(desk)
        await desk.restart()
    partition = desk.served().shells[0]
    for _ in range(2):
        assert await desk.schedules.end_transaction(partition, ended(7, 3, is_commit=is_commit))
    assert await desk.schedules.end_transaction(partition, ended(8, 0, is_commit=True))
    await desk.restart()
    await desk.delay((10, b"after"))
    await desk.pass_time(100)
    shell = await desk.shell()
    await desk.until(lambda: shell.pending_count == 0)
    assert await desk.released(0) == ([b"out", b"in", b"after"] if is_commit else [b"out", b"after"])


async def test_partition_without_delays_has_no_transaction_to_end(desk: ScheduleBroker) -> None:
    partition = desk.served().shells[0]
    assert await desk.schedules.end_transaction(partition, ended(7, 0, is_commit=True))
    assert desk.schedules.open_shell(partition) is None
    assert await desk.schedules.existing_shell(partition) is None


# Starts


@pytest.mark.parametrize("how", ["checkpoint", "no checkpoint", "short file"])
async def test_start_knows_what_is_pending(desk: ScheduleBroker, how: str) -> None:
    delays = [(1_000 * (1 + number * 7919 % 5000), b"%d" % number) for number in range(2_000)]
    origins = await desk.delay(*delays)
    shell = await desk.shell()
    for origin in origins[::3]:
        assert await shell.pending.cancel(origin) == Done()
    await desk.stop()
    if how == "no checkpoint":
        forget_checkpoint(desk)
    elif how == "short file":
        cut_bucket_file(desk)
    await desk.start()
    expected = [value for _delay_ms, value in sorted(pair for place, pair in enumerate(delays) if place % 3)]
    shell = await desk.shell()
    assert shell.pending_count == len(expected)
    while shell.pending_count:
        await desk.pass_time(600_000)
        await desk.settled()
    assert await desk.values() == expected


async def test_mover_is_remembered_by_its_log_for_ever(desk: ScheduleBroker) -> None:
    await desk.delay((10, b"one"))
    await desk.pass_time(10)
    await desk.released(1)
    log = desk.served().shells[0].log
    assert len(log.producers) == 1
    for _ in range(3):
        await desk.pass_time(30 * DAY_MS)
        log.expire_producers(desk.time.now_ms(), expiration_ms=DAY_MS)
    assert len(log.producers) == 1


# Disks


async def test_full_disk_refuses_and_releases_when_there_is_room(desk: ScheduleBroker) -> None:
    await desk.delay((10, b"waits"))
    desk.store.context.is_full = True
    shell = await desk.shell()
    outcome = await shell.schedule([DelayedMessage(0, None, b"no")])
    assert isinstance(outcome, NotScheduled)
    assert outcome.refusal is Refusal.DISK_FULL
    assert isinstance(await shell.pending.cancel(0), NotScheduled)
    await desk.pass_time(100)
    assert await desk.values() == []
    desk.store.context.is_full = False
    assert await desk.released(1) == [b"waits"]


async def test_failed_sync_refuses_and_the_schedule_is_read_again() -> None:
    disk = GatedDisk()
    desk = ScheduleBroker(disk)
    await desk.start()
    await desk.topic(TOPIC)
    await desk.delay((1_000, b"before"))
    shell = await desk.shell()
    machine = shell.machine
    disk.fail(companion_id(desk.served().topic_id, CompanionKind.SCHEDULE), 0)
    outcome = await shell.schedule([DelayedMessage(desk.time.now_ms() + 1_000, None, b"doubtful")])
    assert isinstance(outcome, NotScheduled)
    assert outcome.refusal is Refusal.OFFLINE
    disk.heal()
    await desk.broker._upkeep.recover_offline()
    await desk.schedules.reload_lost()
    assert shell.machine is not machine
    await desk.delay((1_000, b"after"))
    await desk.pass_time(1_000)
    await desk.until(lambda: shell.pending_count == 0 and shell.machine.pending_move() is None)
    # Nobody was told whether it is there: it may be.
    assert [value for value in await desk.values() if value != b"doubtful"] == [b"before", b"after"]
    await desk.stop()


def forget_checkpoint(desk: ScheduleBroker) -> None:
    directory = schedule_directory(desk)
    assert CHECKPOINT_FILE in desk.files.list_directory(directory)
    desk.files.remove(f"{directory}/{CHECKPOINT_FILE}")


def cut_bucket_file(desk: ScheduleBroker) -> None:
    directory = schedule_directory(desk)
    names = [name for name in desk.files.list_directory(directory) if name.startswith("bucket-")]
    file = desk.files.open(f"{directory}/{names[0]}")
    file.truncate(file.size() - 1)


def schedule_directory(desk: ScheduleBroker) -> str:
    return f"/data/logs/{companion_id(desk.served().topic_id, CompanionKind.SCHEDULE).hex()}/0"
