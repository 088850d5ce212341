"""The shell of a partition's schedule, on a store in memory and with a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.schedule_broker import TOPIC, ScheduleBroker


@pytest.fixture
async def desk() -> AsyncIterator[ScheduleBroker]:
    desk = ScheduleBroker()
    await desk.start()
    await desk.topic(TOPIC)
    yield desk
    await desk.stop()


async def test_message_is_released_when_it_is_due_and_not_before(desk: ScheduleBroker) -> None:
    await desk.delay((1_000, b"later"), (500, b"sooner"))
    await desk.pass_time(499)
    assert await desk.values() == []
    await desk.pass_time(1)
    assert await desk.released(1) == [b"sooner"]
    await desk.pass_time(500)
    assert await desk.released(2) == [b"sooner", b"later"]
