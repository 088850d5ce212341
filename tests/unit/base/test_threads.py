from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.base.threads import finish_in_thread

PATIENCE_SECONDS = 30


async def test_what_it_comes_to_is_handed_on() -> None:
    assert await finish_in_thread(lambda: 7) == 7
    with pytest.raises(OSError, match="full"):
        await finish_in_thread(_fail)


def _fail() -> None:
    raise OSError("full")


async def test_the_executor_that_was_given_does_it() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="own") as executor:
        assert await finish_in_thread(lambda: threading.current_thread().name, executor) == "own_0"


@pytest.mark.parametrize("fails", [False, True])
async def test_who_is_cancelled_waits_for_the_thread(fails: bool) -> None:
    loop = asyncio.get_running_loop()
    begun, may_end = asyncio.Event(), threading.Event()
    events: list[str] = []

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        may_end.wait(PATIENCE_SECONDS)
        events.append("thread ended")
        if fails:
            raise OSError("full")

    async def wait_for_it() -> None:
        try:
            await finish_in_thread(work)
        finally:
            events.append("waiter ended")

    async with asyncio.timeout(PATIENCE_SECONDS):
        task = loop.create_task(wait_for_it())
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert events == []
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert events == ["thread ended", "waiter ended"]
