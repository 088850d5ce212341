from __future__ import annotations

import asyncio

from penstock.base.clock import ManualClock, SystemClock
from penstock.broker.machine.alarm import DELAY_MS_MAX, Alarm

PATIENCE_SECONDS = 30


class Rings:
    """Counts them, and tells whoever waits for one."""

    def __init__(self) -> None:
        self.count = 0
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self.count += 1
        self._rung.set()

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._rung.wait()
        self._rung.clear()


async def test_it_rings_once_at_the_earliest_time_it_was_set_to() -> None:
    clock, rings = ManualClock(), Rings()
    alarm = Alarm(clock, rings.ring)
    now_ms = clock.now_ms()
    for due_ms in (now_ms + 3_000_000, now_ms + 1, now_ms + 2_000_000):
        alarm.set(due_ms)
    await rings.wait()
    assert (rings.count, alarm.is_set) == (1, False)


async def test_what_is_overdue_rings_at_once_and_never_inside_set() -> None:
    """Whoever sets it is in the middle of a decision."""
    clock, rings = ManualClock(), Rings()
    alarm = Alarm(clock, rings.ring)
    alarm.set(clock.now_ms() - 5_000)
    assert rings.count == 0
    await rings.wait()
    assert rings.count == 1


async def test_no_deadline_leaves_it_as_it_is() -> None:
    clock, rings = ManualClock(), Rings()
    alarm = Alarm(clock, rings.ring)
    alarm.set(None)
    assert not alarm.is_set
    alarm.set(clock.now_ms() + 1)
    alarm.set(None)
    await rings.wait()


async def test_one_that_is_cancelled_does_not_ring_and_can_be_set_again() -> None:
    clock, rings = ManualClock(), Rings()
    alarm = Alarm(clock, rings.ring)
    alarm.set(clock.now_ms())
    alarm.cancel()
    alarm.cancel()
    # A timer that is later than the cancelled one, on the same loop: it would have rung before.
    alarm.set(clock.now_ms() + 5)
    await rings.wait()
    assert rings.count == 1


async def test_whoever_is_rung_can_set_the_next_even_later_one() -> None:
    clock = ManualClock()
    rung: list[int] = []
    done = asyncio.Event()

    def ring() -> None:
        rung.append(len(rung))
        if len(rung) < 3:
            alarm.set(clock.now_ms() + len(rung))
        else:
            done.set()

    alarm = Alarm(clock, ring)
    alarm.set(clock.now_ms())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await done.wait()
    assert (rung, alarm.is_set) == ([0, 1, 2], False)


async def test_a_deadline_in_years_is_looked_at_in_between() -> None:
    """No loop takes a timer of any length; and a wall clock that was put is noticed."""
    alarm = Alarm(SystemClock(), Rings().ring)
    alarm.set(SystemClock().now_ms() + 100 * 365 * 86_400_000)
    timer = alarm._timer
    assert timer is not None
    assert timer.when() - asyncio.get_running_loop().time() <= DELAY_MS_MAX / 1000
    alarm.cancel()
