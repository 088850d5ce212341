"""A named schedule is in one partition of its topic, whatever comes between its old place and its new one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.schedule.topic_crons import HELD_MS_MAX
from penstock.broker.schedule.values import ChangeOutcome, CronMessage, NotScheduled
from penstock.cluster.store.keys import KeySpace
from penstock.domain.partitioner import partition_for_key
from penstock.domain.schedule.commands import Done, Refused
from support.schedule.broker import TOPIC, ScheduleBroker
from support.schedule.hindered import ALWAYS, Hindrance

MINUTE_MS = 60_000
PARTITIONS = 2
EVERY_MINUTE = "* * * * *"
# One of each partition.
KEYS = [next(b"%d" % n for n in range(99) if partition_for_key(b"%d" % n, PARTITIONS) == place) for place in (0, 1)]


@pytest.fixture
async def hindrance() -> Hindrance:
    return Hindrance()


@pytest.fixture
async def desk(hindrance: Hindrance) -> AsyncIterator[ScheduleBroker]:
    desk = ScheduleBroker(shell=hindrance.shell_type())
    await desk.start()
    await desk.topic(TOPIC, PARTITIONS)
    yield desk
    await desk.stop()


async def define(desk: ScheduleBroker, partition: int, value: bytes = b"") -> ChangeOutcome:
    message = CronMessage(KEYS[partition], value or b"%d" % partition)
    return await desk.schedules.define_cron(desk.served(), "tick", message, expression=EVERY_MINUTE)


async def places(desk: ScheduleBroker) -> list[int]:
    return [cron.partition for cron in await desk.schedules.crons()]


async def fired(desk: ScheduleBroker) -> list[bytes]:
    for partition in range(PARTITIONS):
        await desk.settled(partition)
    return [value for partition in range(PARTITIONS) for value in await desk.values(partition=partition)]


async def die_between(desk: ScheduleBroker, hindrance: Hindrance) -> None:
    """The node dies when the new one is written, and the old one is not deleted."""
    hindrance.deletions_refused = ALWAYS
    assert await define(desk, 1) == Done()
    assert len(await places(desk)) == 2
    await desk.stop()
    hindrance.deletions_refused = 0
    await desk.start()


@pytest.mark.parametrize("downtime_ms", [0, 10 * MINUTE_MS])
async def test_the_newer_definition_wins_when_a_death_has_left_both(
    desk: ScheduleBroker, hindrance: Hindrance, downtime_ms: int
) -> None:
    assert await define(desk, 0) == Done()
    await die_between(desk, hindrance)
    desk.time.advance_ms(downtime_ms)
    for partition in range(PARTITIONS):
        await desk.shell(partition=partition)
    await desk.until(lambda: len((desk.schedules.open_shell(desk.served().shells[0])).machine.crons()) == 0)  # type: ignore[union-attr]
    assert await places(desk) == [1]
    await desk.pass_time(MINUTE_MS)
    assert set(await fired(desk)) == {b"1"}
    await desk.restart()
    assert await places(desk) == [1]


async def test_nobody_fires_before_it_is_known_who_may(desk: ScheduleBroker, hindrance: Hindrance) -> None:
    """The partition with the old definition is there at once, that with the new one takes its time."""
    assert await define(desk, 0) == Done()
    await desk.shell(partition=1)
    await die_between(desk, hindrance)
    hindrance.waiting = {1}
    await desk.restart()
    desk.time.advance_ms(MINUTE_MS)
    old = await desk.shell(partition=0)
    await desk.delay((0, b"message"))
    await desk.until(lambda: old.mover.counts.released == 1)
    assert await desk.values() == [b"message"], "messages do not wait for that"
    hindrance.may_load.set()
    new = await desk.shell(partition=1)
    await desk.until(lambda: new.may_fire and old.may_fire)
    assert await fired(desk) == [b"message", b"1"]


async def forget_names(desk: ScheduleBroker) -> None:
    """As a data directory has it that is from before the store named partitions. The node stands still meanwhile."""
    assert desk.metadata is not None
    found = await desk.metadata.range(KeySpace().crons)
    await desk.metadata.txn(deletes=[entry.key for entry in found.entries])


async def test_who_is_named_waits_for_no_other_partition(desk: ScheduleBroker, hindrance: Hindrance) -> None:
    assert await define(desk, 0) == Done()
    await desk.delay((MINUTE_MS * 100, b"x"), partition=1)
    hindrance.unreadable = {1}
    await desk.restart()
    shell = await desk.shell(partition=0)
    assert shell.may_fire


async def test_names_from_before_there_were_keys_are_adopted(desk: ScheduleBroker) -> None:
    assert await define(desk, 1) == Done()
    await desk.stop()
    await forget_names(desk)
    await desk.start()
    shell = await desk.shell(partition=1)
    await desk.until(lambda: shell.may_fire)
    assert desk.catalog.crons.of_topic(desk.served().topic_id)["tick"].partition == 1
    await desk.pass_time(MINUTE_MS)
    assert await fired(desk) == [b"1"]


async def test_of_two_from_before_there_were_keys_the_newer_is_named(
    desk: ScheduleBroker, hindrance: Hindrance
) -> None:
    assert await define(desk, 0) == Done()
    hindrance.deletions_refused = ALWAYS
    assert await define(desk, 1) == Done()
    await desk.stop()
    await forget_names(desk)
    hindrance.deletions_refused = 0
    await desk.start()
    for partition in range(PARTITIONS):
        await desk.shell(partition=partition)
    await desk.until(lambda: desk.schedules._crons.is_settled(desk.served()))
    assert await places(desk) == [1]
    await desk.pass_time(MINUTE_MS)
    assert await fired(desk) == [b"1"]


async def test_name_goes_with_its_schedule(desk: ScheduleBroker) -> None:
    assert await define(desk, 0) == Done()
    assert await desk.schedules.delete_cron(desk.served(), "tick") == Done()
    assert desk.catalog.crons.of_topic(desk.served().topic_id) == {}
    assert isinstance(await desk.schedules.delete_cron(desk.served(), "tick"), Refused)


async def test_time_that_was_fired_before_a_move_is_not_fired_after_it(
    desk: ScheduleBroker, hindrance: Hindrance
) -> None:
    """The old partition has not heard of its successor yet, and fires on."""
    assert await define(desk, 0) == Done()
    new = await desk.shell(partition=1)
    message = CronMessage(KEYS[1], b"1")
    # As a node does that dies before the key says so.
    assert (
        await new.define_cron("tick", message, expression=EVERY_MINUTE, version=desk.time.now_ms() + 10 * MINUTE_MS)
        == Done()
    )
    await desk.pass_time(MINUTE_MS)
    await desk.until(lambda: desk.served().shells[0].readable_end == 1)
    assert await desk.values(partition=1) == [], "it is not named"
    await desk.schedules._settle_crons()
    await desk.until(lambda: desk.schedules._crons.is_settled(desk.served()))
    assert await places(desk) == [1]
    assert await fired(desk) == [b"0"], "the same time by two partitions"
    await desk.pass_time(MINUTE_MS)
    assert await fired(desk) == [b"0", b"1"]


async def test_partition_that_never_comes_keeps_the_others_from_nothing(
    desk: ScheduleBroker, hindrance: Hindrance
) -> None:
    """Of a directory in which no partition is named yet."""
    assert await define(desk, 0) == Done()
    await desk.delay((MINUTE_MS * 100, b"x"), partition=1)
    await desk.stop()
    await forget_names(desk)
    hindrance.unreadable = {1}
    await desk.start()
    shell = await desk.shell(partition=0)
    await desk.schedules._settle_crons()
    assert not shell.may_fire
    desk.time.advance_ms(HELD_MS_MAX)
    await desk.schedules._settle_crons()
    assert shell.may_fire


async def test_of_two_definitions_at_the_same_time_one_is_left(desk: ScheduleBroker) -> None:
    for _ in range(3):
        outcomes = await asyncio.gather(define(desk, 0), define(desk, 1))
        assert list(outcomes) == [Done(), Done()]
        assert len(await places(desk)) == 1


async def test_old_definition_that_cannot_be_deleted_does_not_fire(desk: ScheduleBroker, hindrance: Hindrance) -> None:
    assert await define(desk, 0) == Done()
    hindrance.deletions_refused = 2
    assert await define(desk, 1) == Done()
    await desk.pass_time(MINUTE_MS)
    await desk.until(lambda: desk.served().partition_count == 2 and hindrance.deletions_refused <= 1)
    await desk.settled(1)
    assert await desk.values(partition=0) == []
    await desk.schedules._settle_crons()
    await desk.schedules._settle_crons()
    assert await places(desk) == [1]
    assert await fired(desk) == [b"1"]


async def test_a_clock_that_was_put_back_makes_no_definition_an_older_one(
    desk: ScheduleBroker, hindrance: Hindrance
) -> None:
    assert await define(desk, 0) == Done()
    desk.time.step_wall_ms(-100 * MINUTE_MS)
    await die_between(desk, hindrance)
    for partition in range(PARTITIONS):
        await desk.shell(partition=partition)
    await desk.schedules._settle_crons()
    assert await places(desk) == [1]


async def test_name_in_a_partition_that_cannot_be_looked_at_is_not_unknown(
    desk: ScheduleBroker, hindrance: Hindrance
) -> None:
    assert await define(desk, 0) == Done()
    hindrance.unreadable = {0}
    await desk.restart()
    assert isinstance(await desk.schedules.delete_cron(desk.served(), "tick"), NotScheduled)
