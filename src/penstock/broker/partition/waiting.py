"""Readers that wait for more to read.

A Fetch that found too little is parked here until one of its partitions has more, or its deadline comes. A waiter may
watch many partitions; it is woken once, and reads again itself: what woke it may not be what it wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Waiter:
    __slots__ = ("_future", "_is_woken", "_rooms")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        # A call between `watch` and `wait` must not be lost.
        self._is_woken = False
        self._rooms: list[WaitingRoom] = []

    def watch(self, rooms: Iterable[WaitingRoom]) -> None:
        for room in rooms:
            room.enter(self)
            self._rooms.append(room)

    def wake(self) -> None:
        self._is_woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout_ms: int) -> None:
        """Until woken or until the time is up, whichever comes first."""
        if self._is_woken:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        alarm = loop.call_later(timeout_ms / 1000, self.wake)
        try:
            await self._future
        finally:
            alarm.cancel()
            self._future = None

    def rest(self) -> None:
        """What woke it was not for it: it stays where it is, and can be woken again."""
        self._is_woken = False

    def leave(self) -> None:
        for room in self._rooms:
            room.leave(self)
        self._rooms.clear()
        self._is_woken = False


class WaitingRoom:
    """The readers that wait for one partition."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # A dict keeps the order of arrival: who waited longest is woken first.
        self._waiters: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def enter(self, waiter: Waiter) -> None:
        self._waiters[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    def wake_all(self) -> None:
        if self._waiters:
            for waiter in list(self._waiters):
                waiter.wake()
