from __future__ import annotations

import asyncio

from penstock.broker.schedule.pace import (
    HEAVY_AT_ONCE_MAX,
    HEAVY_COUNT,
    INTENT_MS_MAX,
    INTENT_MS_MIN,
    LATENESS_BOUNDS_MS,
    PACE_WINDOW_MS,
    MoverPace,
    ReleaseCounts,
)


async def test_a_mover_alone_goes_at_the_highest_pace() -> None:
    pace = MoverPace()
    assert [pace.interval_ms(1, now_ms) for now_ms in range(0, 1_000, 10)] == [INTENT_MS_MIN] * 100


async def test_many_movers_wait_longer_and_never_too_long() -> None:
    pace = MoverPace()
    intervals = [pace.interval_ms(mover, 0) for mover in range(100)]
    assert intervals == sorted(intervals)
    assert (intervals[0], intervals[-1]) == (INTENT_MS_MIN, INTENT_MS_MAX)
    # Still so in the window after it, and forgotten behind that.
    assert pace.interval_ms(1, PACE_WINDOW_MS) == INTENT_MS_MAX
    assert pace.interval_ms(1, 4 * PACE_WINDOW_MS) == INTENT_MS_MIN


async def test_a_pace_without_a_limit_makes_nobody_wait() -> None:
    assert MoverPace(intent_ms_max=0).interval_ms(1, 0) == 0


async def test_heavy_intents_take_turns_and_light_ones_do_not_wait_for_them() -> None:
    pace = MoverPace()
    may_end = asyncio.Event()
    moving: list[int] = []

    async def move(count: int) -> None:
        async with pace.turn(count):
            moving.append(count)
            await may_end.wait()

    tasks = [asyncio.ensure_future(move(HEAVY_COUNT)) for _ in range(HEAVY_AT_ONCE_MAX + 3)]
    tasks.append(asyncio.ensure_future(move(HEAVY_COUNT - 1)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert sorted(moving) == [HEAVY_COUNT - 1, *[HEAVY_COUNT] * HEAVY_AT_ONCE_MAX]
    may_end.set()
    await asyncio.gather(*tasks)


def test_lateness_is_counted_by_its_bound() -> None:
    counts = ReleaseCounts()
    counts.note([100, 99, 95], now_ms=100)
    counts.note([0], now_ms=LATENESS_BOUNDS_MS[-1] + 1)
    by_bound = dict(zip((*LATENESS_BOUNDS_MS, None), counts.by_lateness, strict=True))
    assert {bound: count for bound, count in by_bound.items() if count} == {1: 2, 5: 1, None: 1}
    assert (counts.released, counts.lateness_ms) == (4, 0 + 1 + 5 + LATENESS_BOUNDS_MS[-1] + 1)
