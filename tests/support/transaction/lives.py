"""A producer's life at the desk, the death of its node after so many turns of the loop, and what must hold then."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from random import Random
from typing import Final

from penstock.domain.transaction.commands import TransactionEnded
from support.storage.faulty_files import CrashMode
from support.transaction.desk import TIMEOUT_MS, DeskProducer, TransactionDesk

TRANSACTIONS: Final = 6


class Life:
    """What a producer wrote and what it was told, in one life of the node."""

    def __init__(self, desk: TransactionDesk, version: int) -> None:
        self._desk = desk
        self._version = version
        self.told: dict[bytes, bool] = {}
        self.is_over = False

    async def live(self) -> None:
        producer = await DeskProducer(self._desk, version=self._version).begin()
        for number in range(TRANSACTIONS):
            value, is_commit = b"%d" % number, number % 3 != 1
            await producer.send(value, *((0, 1) if number % 2 == 0 else (1,)))
            if isinstance(await producer.end(is_commit=is_commit), TransactionEnded):
                self.told[value] = is_commit
        self.is_over = True


async def check(desk: TransactionDesk, life: Life, version: int) -> None:
    # Nothing is left open but what its producer had not ended; the next one takes its place.
    desk.clock.advance_ms(TIMEOUT_MS // 2)
    producer = await DeskProducer(desk, version=version).begin()
    await desk.until(desk.is_stable)
    seen = [desk.values(0), desk.values(1)]
    for value, is_commit in life.told.items():
        assert (value in seen[1]) is is_commit, f"{value!r}: told {is_commit}, seen {seen}"
    for number in range(0, TRANSACTIONS, 2):
        value = b"%d" % number
        assert (value in seen[0]) is (value in seen[1]), f"{value!r} is half there: {seen}"
    await producer.send(b"more", 0, 1)
    assert isinstance(await producer.end(is_commit=True), TransactionEnded)
    await desk.until(desk.is_stable)
    assert [desk.values(0), desk.values(1)] == [[*seen[0], b"more"], [*seen[1], b"more"]]


async def die_after(steps: int, version: int, mode: CrashMode) -> bool:
    """Whether the producer was still busy when its node died."""
    desk = TransactionDesk()
    desk.waits_for_clocks = False
    desk.files.random = Random(steps)
    await desk.start()
    life = Life(desk, version)
    task = asyncio.ensure_future(life.live())
    for _ in range(steps):
        await asyncio.sleep(0)
    was_busy = not life.is_over
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await desk.restart(mode)
    # A second death, while the first one is being made good.
    for _ in range(steps % 5):
        await asyncio.sleep(0)
    await desk.restart(mode)
    await check(desk, life, version)
    await desk.close()
    return was_busy


async def fail_after(steps: int, version: int) -> bool:
    """The next sync fails, what it hit is read again, and life goes on. Whether anything was hit."""
    desk = TransactionDesk()
    # One failure is one failure: a sync of the whole disk would hear of it again, later.
    desk.files.can_sync_all = False
    await desk.start()
    life = Life(desk, version)
    task = asyncio.ensure_future(life.live())
    for _ in range(steps):
        await asyncio.sleep(0)
    desk.files.fail_next("sync", errno.EIO)
    was_hit = False
    # The producer stops at the first answer that it does not expect, or when it is through.
    while not task.done():
        await asyncio.wait([task], timeout=0.002)
        if any(shell.is_offline for shell in desk.shells()):
            was_hit = True
            desk.recover_offline()
        if desk.shell.is_lost:
            desk.shell.close()
            await desk.shell.load()
    task.exception()
    desk.files.forget_failures()
    await check(desk, life, version)
    await desk.close()
    return was_hit
