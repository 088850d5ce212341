"""Lists in the order of due times, named schedules, what a node tells of them all, and compaction of their logs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import pytest

from penstock.base.metrics import CollectorRegistry
from penstock.broker.partition.outcome import Refusal
from penstock.broker.schedule.metrics import ScheduleCollector
from penstock.broker.schedule.node import Delayed
from penstock.broker.schedule.values import (
    CronMessage,
    DelayedMessage,
    DueCursor,
    NotScheduled,
    PendingMessage,
    PendingPage,
    read_cursor,
    write_cursor,
)
from penstock.domain.schedule.commands import Done, Refused, ScheduleProblem
from penstock.domain.schedule.records import Missed
from support.schedule.broker import TOPIC, ScheduleBroker

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
PARTITIONS = 3


@pytest.fixture
async def desk() -> AsyncIterator[ScheduleBroker]:
    desk = ScheduleBroker()
    await desk.start()
    await desk.topic(TOPIC, PARTITIONS)
    yield desk
    await desk.stop()


# Lists


async def pages(desk: ScheduleBroker, limit: int) -> list[PendingMessage]:
    found: list[PendingMessage] = []
    cursor: DueCursor | None = None
    while True:
        page = await desk.schedules.list_due(desk.served(), cursor, limit)
        assert isinstance(page, PendingPage), page
        assert len(page.messages) <= limit
        found += page.messages
        if page.next is None:
            return found
        cursor = read_cursor(write_cursor(page.next))


@pytest.mark.parametrize("limit", [7, 1_000])
async def test_list_is_in_the_order_of_due_times_over_memory_files_and_partitions(
    desk: ScheduleBroker, limit: int
) -> None:
    chance = Random(limit)
    expected: list[tuple[int, int, int]] = []
    for round_number in range(6):
        for partition in range(PARTITIONS):
            delays = [int(10 ** chance.uniform(3, 10)) for _ in range(20)]
            origins = await desk.delay(*((delay, b"%d" % delay) for delay in delays), partition=partition)
            now_ms = desk.time.now_ms()
            expected += [(now_ms + delay, partition, origin) for delay, origin in zip(delays, origins, strict=True)]
        if round_number % 2:
            await desk.checkpoint()
        if round_number == 3:
            await desk.restart()
            await desk.pass_time(10 * MINUTE_MS)
            for partition in range(PARTITIONS):
                await desk.settled(partition)
    for _due_ms, partition, origin in expected[::5]:
        shell = await desk.shell(partition=partition)
        await shell.pending.cancel(origin)
    left = [each for place, each in enumerate(expected) if place % 5 and each[0] > desk.time.now_ms()]
    found = await pages(desk, limit)
    assert [(each.due_ms, each.partition, each.origin) for each in found] == sorted(left)
    assert desk.schedules.pending_count(desk.served()) == len(left)


async def test_cursor_of_somebody_else_is_none() -> None:
    assert read_cursor("nonsense") is None
    assert read_cursor("*" * 28) is None


async def test_each_message_of_a_door_has_its_own_outcome(desk: ScheduleBroker) -> None:
    due_ms = desk.time.now_ms() + 1_000
    messages = [DelayedMessage(due_ms, None, b"a"), DelayedMessage(due_ms, None, b"x" * 2_000_000)]
    first, second = await desk.schedules.schedule(desk.served(), messages, [2, 0])
    assert isinstance(first, Delayed)
    assert first.partition == 2
    assert isinstance(second, NotScheduled)
    assert second.refusal is Refusal.TOO_LARGE
    shown = await desk.schedules.show(first.message_id)
    assert isinstance(shown, PendingMessage)
    assert (shown.value, shown.partition, shown.due_ms) == (b"a", 2, due_ms)


# Named schedules


async def define(desk: ScheduleBroker, name: str, expression: str, **options: object) -> object:
    message = CronMessage(b"key", b"body of " + name.encode(), (("h", b"1"),))
    return await desk.schedules.define_cron(desk.served(), name, message, expression=expression, **options)  # type: ignore[arg-type]


async def test_named_schedule_sends_its_message_at_each_of_its_times(desk: ScheduleBroker) -> None:
    assert await define(desk, "tick", "* * * * *") == Done()
    (cron,) = await desk.schedules.crons()
    assert cron.next_ms is not None
    assert (cron.name, cron.topic, cron.zone) == ("tick", TOPIC, "UTC")
    first_ms = cron.next_ms
    assert await desk.schedules.cron_message(desk.served(), "tick") == CronMessage(
        b"key", b"body of tick", (("h", b"1"),)
    )
    for number in range(3):
        await desk.pass_time(first_ms - desk.time.now_ms() if number == 0 else MINUTE_MS)
        await desk.settled(cron.partition)
        if number == 1:
            await desk.restart()
    records = await desk.records(partition=cron.partition)
    assert [record.timestamp_ms for record in records] == [first_ms, first_ms + MINUTE_MS, first_ms + 2 * MINUTE_MS]
    assert {(record.key, record.value) for record in records} == {(b"key", b"body of tick")}
    assert await desk.schedules.delete_cron(desk.served(), "tick") == Done()
    assert await desk.schedules.delete_cron(desk.served(), "tick") == Refused(ScheduleProblem.NO_SUCH_CRON)
    await desk.pass_time(10 * MINUTE_MS)
    await desk.settled(cron.partition)
    assert len(await desk.records(partition=cron.partition)) == 3
    assert await desk.schedules.crons() == []


@pytest.mark.parametrize(("missed", "count"), [(Missed.SKIP, 0), (Missed.ONCE, 1), (Missed.ALL, 9)])
async def test_times_that_nobody_was_there_for(desk: ScheduleBroker, missed: Missed, count: int) -> None:
    assert await define(desk, "hourly", "0 * * * *", missed=missed, zone="Europe/Berlin") == Done()
    (cron,) = await desk.schedules.crons()
    assert cron.next_ms is not None
    await desk.stop()
    desk.time.advance_ms(cron.next_ms - desk.time.now_ms() + 8 * 60 * MINUTE_MS + 10 * MINUTE_MS)
    await desk.start()
    await desk.settled(cron.partition)
    assert len(await desk.records(partition=cron.partition)) == count


async def test_named_schedule_is_replaced_also_in_another_partition(desk: ScheduleBroker) -> None:
    for key in (b"a", b"b", b"c", b"d", b"e"):
        message = CronMessage(key, key)
        outcome = await desk.schedules.define_cron(desk.served(), "one", message, expression="0 0 * * *")
        assert outcome == Done()
    assert len(await desk.schedules.crons(desk.served())) == 1
    assert await desk.schedules.cron_message(desk.served(), "one") == CronMessage(b"e", b"e")


async def test_bad_definitions_are_refused(desk: ScheduleBroker) -> None:
    refusals = [
        await define(desk, "x", "* * *"),
        await define(desk, "x", "* * * * *", zone="Mars/Olympus"),
    ]
    problems = [each.problem for each in refusals if isinstance(each, Refused)]
    assert problems == [ScheduleProblem.BAD_EXPRESSION, ScheduleProblem.UNKNOWN_ZONE]


# The node


async def test_metrics_tell_what_waits_and_how_late_it_was(desk: ScheduleBroker) -> None:
    registry = CollectorRegistry()
    registry.register(ScheduleCollector(desk.schedules))
    await desk.delay((1_000, b"a"), (DAY_MS, b"b"))
    await desk.pass_time(1_030)
    await desk.released(1)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"penstock_schedule_{name}", {"topic": TOPIC, **labels})

    assert value("pending") == 1
    assert value("released_total") == 1
    assert value("lateness_seconds_bucket", le="0.02") == 0
    assert value("lateness_seconds_bucket", le="0.05") == 1
    assert value("lateness_seconds_count") == 1
    assert value("throttled_total") == 0
    soonest = value("next_seconds")
    assert soonest is not None
    assert desk.time.now_ms() / 1000 < soonest <= (desk.time.now_ms() + DAY_MS) / 1000


async def test_compacted_log_tells_the_same(desk: ScheduleBroker) -> None:
    shell = await desk.shell()
    await define(desk, "tick", "0 0 1 1 *")
    origins: list[int] = []
    for number in range(30):
        origins += await desk.delay((1_000, b"short"), ((number + 3) * DAY_MS, b"%d" % number))
        shell.companion.log.roll()
    for origin in origins[1::4]:
        await shell.pending.cancel(origin)
    await shell.pending.reschedule(origins[3], desk.time.now_ms() + 50 * DAY_MS)
    shell.companion.log.roll()
    await desk.pass_time(1_000)
    await desk.released(30)
    shell.companion.log.roll()
    before = [(each.due_ms, each.value, each.message_id) for each in await pages(desk, 100)]
    size_before = shell.companion.size_bytes
    await desk.pass_time(2 * DAY_MS)
    for _ in range(2):
        # What is to be cleaned is saved first.
        await desk.broker._upkeep.clean_logs()
        await desk.store.checkpoint()
    await desk.broker._upkeep.clean_logs()
    assert shell.companion.size_bytes < size_before
    for checkpoint_file in ("kept", "gone"):
        if checkpoint_file == "gone":
            desk.files.remove(f"{shell.companion.log.home.directory}/schedule-checkpoint")
        await desk.restart()
        assert [(each.due_ms, each.value, each.message_id) for each in await pages(desk, 100)] == before
        assert len(await desk.schedules.crons()) == 1
    await desk.pass_time(100 * DAY_MS)
    await desk.settled()
    left = [value for _due_ms, value, _message_id in before]
    assert (await desk.values())[30:] == left
