"""Logs of queues and of schedules that the disk has spoiled: refused, repaired, and served with what is left."""

from __future__ import annotations

import pytest

from penstock.base.clock import SystemClock
from penstock.broker.machine.portions import JournalDamagedError
from penstock.broker.partition.outcome import Refusal
from penstock.broker.queue.delivery import QueueDelivery, ReceiptSettlement
from penstock.broker.queue.node import OPENED_MS_MAX
from penstock.broker.queue.shell import QueueUnavailable
from penstock.broker.schedule.values import CronMessage, DelayedMessage, NotScheduled, PendingPage
from penstock.broker.topic.companion import CompanionKind, companion_id
from penstock.domain.queue.commands import Act, Outcome
from penstock.domain.queue.definition import QueueName, QueueOptions, Start
from penstock.domain.schedule.commands import Done
from penstock.storage.log.replay_start import FILE_NAME, write_replay_start
from penstock.storage.repair import check as log_check
from support.queue.broker import QueueBroker
from support.schedule.broker import TOPIC, ScheduleBroker
from support.storage.rotten_log import batches_in, segments_in, spoil
from support.storage.weak_disk import WeakDisk


class MuchLater(SystemClock):
    """When a queue is older than the moment in which it is opened."""

    def now_ms(self) -> int:
        return super().now_ms() + 2 * OPENED_MS_MAX


MESSAGES = [b"%d" % number for number in range(12)]
HOUR_MS = 3_600_000


def log_beside(desk: QueueBroker, kind: CompanionKind) -> str:
    """The directory of the log that belongs to the topic's partition."""
    served = desk.broker.topic(TOPIC)
    assert served is not None
    return f"/data/logs/{companion_id(served.topic_id, kind).hex()}/0"


# Queues


async def half_acknowledged(disk: WeakDisk, start: Start = Start.EARLIEST) -> tuple[QueueBroker, QueueName, str]:
    """Twelve messages, of which six are received and acknowledged one by one; the node has stopped. The segment."""
    desk = QueueBroker(disk)
    await desk.start()
    await desk.topic(TOPIC)
    name = await desk.queue(TOPIC, options=QueueOptions(start=start))
    await desk.send(TOPIC, MESSAGES)
    for _ in range(6):
        (message,) = await desk.receive(name, 1)
        assert await acknowledge(desk, name, message.receipt) == [Outcome.DONE]
    (path,) = segments_in(disk, log_beside(desk, CompanionKind.QUEUES))
    await desk.stop()
    return desk, name, path


async def acknowledge(desk: QueueBroker, name: QueueName, *receipts: object) -> object:
    items = [ReceiptSettlement(receipt, Act.ACCEPT) for receipt in receipts]  # type: ignore[arg-type]
    return await desk.delivery.settle(name, items)


async def received(desk: QueueBroker, name: QueueName) -> list[bytes]:
    values: list[bytes] = []
    while messages := await desk.receive(name, 5):
        values += [message.record.value or b"" for message in messages]
        await acknowledge(desk, name, *(message.receipt for message in messages))
    return values


@pytest.mark.parametrize("place", range(13))
async def test_queue_is_refused_wherever_its_journal_is_damaged_and_loses_nothing_in_the_repair(place: int) -> None:
    disk = WeakDisk()
    desk, name, path = await half_acknowledged(disk)
    assert len(batches_in(disk, path)) == 13
    spoil(disk, path, place)
    await desk.start()
    delivery: QueueDelivery = desk.delivery
    for reply in (
        await delivery.receive(name, consumer="c", count_max=5, wait_ms=60_000),
        await delivery.peek(name, 5),
        await delivery.totals(name),
        await delivery.purge(name),
        await delivery.pause(name, is_paused=True),
    ):
        assert isinstance(reply, QueueUnavailable)
        assert reply.is_damaged
        assert f"The log {TOPIC}.queues-0 is damaged" in reply.reason
        assert f"`penstock log repair {TOPIC}.queues 0 " in reply.reason
    with pytest.raises(JournalDamagedError):
        await desk.queues.delete(name)
    assert [each.topic for each in desk.broker.damaged_journals()] == [f"{TOPIC}.queues"]
    assert f"`penstock log repair {TOPIC}.queues 0 " in desk.broker.told_damages()[0]
    await desk.stop()
    log_check.repair("/data", topic=f"{TOPIC}.queues", files=disk)
    await desk.start()
    assert desk.broker.told_damages() == []
    again = await received(desk, name)
    assert set(again) >= set(MESSAGES[6:])
    await desk.stop()


async def test_queue_that_began_at_the_end_goes_back_to_where_it_began_and_not_to_the_end_of_today() -> None:
    disk = WeakDisk()
    desk, name, path = await half_acknowledged(disk, Start.LATEST)
    for place in range(13):
        spoil(disk, path, place)
    log_check.repair("/data", topic=f"{TOPIC}.queues", files=disk)
    desk.clock = MuchLater()
    await desk.start()
    assert await received(desk, name) == MESSAGES
    await desk.stop()


async def test_journal_that_ends_before_its_replay_would_begin_has_lost_its_end() -> None:
    disk = WeakDisk()
    desk, name, path = await half_acknowledged(disk)
    directory = path.rpartition("/")[0]
    write_replay_start(disk, directory, 50)
    await desk.start()
    reply = await desk.delivery.receive(name, consumer="c", count_max=5)
    assert isinstance(reply, QueueUnavailable)
    assert f"ends at offset 13, and {FILE_NAME} beside it was made when it reached offset 50" in reply.reason
    await desk.stop()
    log_check.repair("/data", topic=f"{TOPIC}.queues", files=disk)
    await desk.start()
    assert set(await received(desk, name)) >= set(MESSAGES[6:])
    await desk.stop()


async def test_rot_in_a_journal_is_found_when_its_machines_are_dropped() -> None:
    disk = WeakDisk()
    desk, name, path = await half_acknowledged(disk)
    await desk.start()
    (shell,) = desk.queues.loaded_shells()
    spoil(disk, path, 4)
    # As if the disk had refused a write.
    shell._journal.is_lost = True
    await desk.queues._reload_lost()
    reply = await desk.delivery.receive(name, consumer="c", count_max=5)
    assert isinstance(reply, QueueUnavailable)
    assert reply.is_damaged
    await desk.stop()


# Schedules


async def delayed(disk: WeakDisk, *, is_saved: bool) -> tuple[ScheduleBroker, str]:
    """Eight messages that wait for an hour, each in a batch of its own; the node has stopped. The segment."""
    desk = ScheduleBroker(disk)
    await desk.start()
    await desk.topic(TOPIC)
    for number in range(8):
        await desk.delay((HOUR_MS + number, MESSAGES[number]))
    (path,) = segments_in(disk, log_beside(desk, CompanionKind.SCHEDULE))
    if not is_saved:
        for shell in desk.schedules.loaded_shells():
            shell._is_lost = True  # no checkpoint is written
    await desk.stop()
    return desk, path


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("place", range(8))
async def test_schedule_is_refused_wherever_its_log_is_damaged_and_releases_the_others_after_a_repair(
    place: int, is_saved: bool
) -> None:
    disk = WeakDisk()
    desk, path = await delayed(disk, is_saved=is_saved)
    spoil(disk, path, place)
    await desk.start()
    if is_saved:
        # Damage behind the checkpoint is met by whoever reads there.
        page = await desk.schedules.list_due(desk.served(), None, 100)
        assert isinstance(page, NotScheduled)
    served = desk.served()
    message = DelayedMessage(desk.time.now_ms() + 1, None, b"new")
    replies = [
        await desk.schedules.list_due(served, None, 100),
        (await desk.schedules.schedule(served, [message], [0]))[0],
        await desk.schedules.purge_marker(served) if not is_saved else None,
        await desk.schedules.define_cron(served, "daily", CronMessage(None, b"c", ()), expression="0 0 * * *"),
    ]
    for reply in replies:
        if reply is not None:
            assert isinstance(reply, NotScheduled)
            assert reply.refusal is Refusal.DAMAGED
            assert f"`penstock log repair {TOPIC}.schedule 0 " in reply.reason
    assert desk.schedules.damage_of(served) is not None
    await desk.pass_time(2 * HOUR_MS)
    assert await desk.values() == [], "nothing is released of what nobody knows"
    await desk.stop()
    log_check.repair("/data", topic=f"{TOPIC}.schedule", files=disk)
    await desk.start()
    await desk.settled()
    # For one that is known to be due and is not there any more an empty message comes, which says so.
    found = [value for value in await desk.values() if value]
    assert found == [value for number, value in enumerate(MESSAGES[:8]) if number != place]
    await desk.stop()


async def test_cron_whose_message_is_lost_holds_up_no_other() -> None:
    disk = WeakDisk()
    desk = ScheduleBroker(disk)
    await desk.start()
    await desk.topic(TOPIC)
    for name in ("broken", "whole"):
        message = CronMessage(None, name.encode(), ())
        assert await desk.schedules.define_cron(desk.served(), name, message, expression="* * * * *") == Done()
    (path,) = segments_in(disk, log_beside(desk, CompanionKind.SCHEDULE))
    await desk.stop()
    spoil(disk, path, 0)
    log_check.repair("/data", topic=f"{TOPIC}.schedule", files=disk)
    await desk.start()
    await desk.shell()
    await desk.schedules._settle_crons()
    await desk.pass_time(61_000)
    await desk.until(lambda: desk.served().shells[0].readable_end > 0)
    await desk.settled()
    assert set(await desk.values()) == {b"whole"}
    page = await desk.schedules.list_due(desk.served(), None, 10)
    assert isinstance(page, PendingPage)
    await desk.stop()
