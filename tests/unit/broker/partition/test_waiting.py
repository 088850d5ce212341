from __future__ import annotations

import asyncio

from penstock.broker.partition.waiting import Waiter, WaitingRoom


async def test_a_waiter_wakes_when_any_of_its_rooms_calls() -> None:
    rooms = [WaitingRoom(), WaitingRoom()]
    waiter = Waiter()
    waiter.watch(rooms)
    asyncio.get_running_loop().call_soon(rooms[1].wake_all)
    await asyncio.wait_for(waiter.wait(60_000), 1)


async def test_a_waiter_gives_up_when_its_time_is_up() -> None:
    waiter = Waiter()
    waiter.watch([WaitingRoom()])
    await asyncio.wait_for(waiter.wait(1), 1)


async def test_who_left_is_not_kept_by_the_room() -> None:
    room = WaitingRoom()
    waiter = Waiter()
    waiter.watch([room])
    waiter.leave()
    assert not room._waiters
