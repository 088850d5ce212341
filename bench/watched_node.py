"""A node whose event loop is watched: how late does it come to what is due?

    WATCH_OUT=delays.json python -m bench.watched_node serve --data-dir …

A thread asks the loop for a sign once in a millisecond, and waits for it before it asks again. What the loop takes to
give it is what a request would have waited that arrived at that moment. The node itself is the one that users run, from
whichever checkout is on the path, so that two commits can be compared.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from pathlib import Path
from typing import Final

import msgspec
import uvloop

LOOK_SECONDS: Final = 0.001
SIGN_SECONDS_MAX: Final = 60.0
OUT: Final = "WATCH_OUT"


class LoopWatch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._given = threading.Event()
        self.delays_us: list[int] = []

    def watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            self._given.clear()
            asked = time.perf_counter()
            try:
                self._loop.call_soon_threadsafe(self._given.set)
            except RuntimeError:
                return  # the loop is closed: the node has stopped
            if not self._given.wait(SIGN_SECONDS_MAX):
                return
            self.delays_us.append(int((time.perf_counter() - asked) * 1_000_000))


def main() -> None:
    new_event_loop = uvloop.new_event_loop

    def watched_loop() -> uvloop.Loop:
        loop = new_event_loop()
        watch = LoopWatch(loop)
        threading.Thread(target=watch.watch, name="loop-watch", daemon=True).start()
        atexit.register(lambda: Path(os.environ[OUT]).write_bytes(msgspec.json.encode(watch.delays_us)))
        return loop

    uvloop.new_event_loop = watched_loop
    from penstock.main import main as penstock

    penstock()


if __name__ == "__main__":
    main()
