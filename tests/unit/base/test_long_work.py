"""Long work leaves the loop to others between its slices, and takes turns with other long work."""

from __future__ import annotations

import asyncio

from penstock.base.long_work import UNFINISHED, LongWork, Steps, all_at_once

SLICE_STEPS = 10


class StepClock:
    """A second passes with each look at it: what a slice holds is counted in steps."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1
        return self._now


def long_work() -> LongWork:
    return LongWork(StepClock(), slice_seconds=SLICE_STEPS)


def count_to(number: int, seen: list[str], name: str = "") -> Steps[int]:
    for _ in range(number):
        seen.append(name)
        yield
    return number


def test_short_work_is_done_at_once() -> None:
    assert long_work().begin(count_to(SLICE_STEPS - 1, [])) == SLICE_STEPS - 1


def test_long_work_stops_when_its_slice_is_over() -> None:
    seen: list[str] = []
    work, steps = long_work(), count_to(1_000, seen)
    assert work.begin(steps) is UNFINISHED
    assert len(seen) == SLICE_STEPS


def test_all_at_once_does_not_stop() -> None:
    assert all_at_once(count_to(1_000, [])) == 1_000


async def test_others_run_between_two_slices() -> None:
    seen: list[str] = []

    async def bystander() -> None:
        for _ in range(5):
            seen.append("bystander")
            await asyncio.sleep(0)

    work = long_work()
    task = asyncio.ensure_future(bystander())
    assert await work.run(count_to(1_000, seen, "work")) == 1_000
    await task
    last_of_bystander = len(seen) - 1 - seen[::-1].index("bystander")
    assert seen[:last_of_bystander].count("work") <= 10 * SLICE_STEPS


async def test_one_slice_is_done_in_a_turn_of_the_loop_however_much_work_there_is() -> None:
    seen: list[str] = []
    work = long_work()
    turns: list[int] = []

    async def bystander() -> None:
        while True:
            before = len(seen)
            await asyncio.sleep(0)
            turns.append(len(seen) - before)

    watching = asyncio.ensure_future(bystander())
    pieces = [count_to(200, seen, str(number)) for number in range(8)]
    for piece in pieces:
        work.begin(piece)
    await asyncio.gather(*(work.finish(piece) for piece in pieces))
    watching.cancel()
    assert max(turns) <= SLICE_STEPS
    assert len(seen) == 8 * 200


async def test_all_work_makes_progress_in_turn() -> None:
    seen: list[str] = []
    work = long_work()
    pieces = [count_to(100, seen, name) for name in "ab"]
    await asyncio.gather(*(work.run(piece) for piece in pieces))
    assert "b" in seen[: 3 * SLICE_STEPS]


async def test_who_gives_up_his_place_does_not_stop_the_line() -> None:
    work = long_work()
    first, second = asyncio.ensure_future(work.turn()), asyncio.ensure_future(work.turn())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait_for(second, timeout=5)


async def test_a_pace_rests_only_when_its_slice_is_over() -> None:
    turns = 0

    class Counted(LongWork):
        async def turn(self) -> None:
            nonlocal turns
            turns += 1

    pace = Counted(StepClock(), slice_seconds=SLICE_STEPS).pace()
    for _ in range(SLICE_STEPS - 1):
        await pace.rest_if_due()
    assert turns == 0
    await pace.rest_if_due()
    assert turns == 1
