"""A schedule when the lead of its partition goes, and when it comes: released once, by whoever leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.partition.outcome import Refusal
from penstock.broker.partition.role import Leading
from penstock.broker.schedule.values import DelayedMessage, NotScheduled, Scheduled
from support.cluster.leaderships import Gate, Leaderships
from support.schedule.broker import TOPIC, ScheduleBroker


@pytest.fixture
async def world() -> AsyncIterator[ScheduleBroker]:
    made = ScheduleBroker()
    await made.start()
    await made.topic(TOPIC)
    yield made
    await made.stop()


def lead_of(world: ScheduleBroker) -> Leaderships:
    return Leaderships(world.catalog, TOPIC)


async def test_a_schedule_goes_with_the_lead_and_releases_what_is_due_when_it_comes_back(world: ScheduleBroker) -> None:
    await world.delay((1_000, b"a"))
    old = await world.shell()
    await lead_of(world).go()
    refused = await world.schedules.shell_of(world.served().shells[0])
    assert isinstance(refused, NotScheduled)
    assert refused.refusal is Refusal.NOT_LEADER
    world.time.advance_ms(2_000)
    old.mover.wake()
    await asyncio.sleep(0)
    assert world.served().shells[0].log.log_end == 0, "nothing is released by who does not lead"
    await lead_of(world).come()
    assert await world.released(1) == [b"a"]
    assert await world.shell() is not old


async def test_nothing_is_released_or_taken_before_the_barrier(world: ScheduleBroker) -> None:
    await world.delay((1_000, b"a"))
    await lead_of(world).go()
    gate = world.broker.barrier = Gate()
    world.time.advance_ms(2_000)
    await lead_of(world).come()
    held = await world.schedules.shell_of(world.served().shells[0])
    assert isinstance(held, NotScheduled)
    assert held.refusal is Refusal.OFFLINE
    assert world.served().shells[0].log.log_end == 0
    gate.open()
    assert await world.released(1) == [b"a"]


async def test_a_schedule_that_has_resigned_takes_nothing_and_writes_nothing(world: ScheduleBroker) -> None:
    await world.delay((1_000, b"a"))
    shell = await world.shell()
    end = shell.companion.log.log_end
    under_way = asyncio.ensure_future(shell.schedule([DelayedMessage(world.time.now_ms() + 5_000, None, b"b")]))
    await asyncio.sleep(0)
    shell.resign()
    shell.companion.take_role(Leading(5))
    told = await under_way
    assert not isinstance(told, Scheduled)
    assert told.refusal is Refusal.NOT_LEADER
    assert isinstance(await shell.schedule([DelayedMessage(world.time.now_ms(), None, b"c")]), NotScheduled)
    assert shell.companion.log.log_end == end
