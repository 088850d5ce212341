"""Some nodes, the metadata store that they share, the network to their clients: all of it from one seed."""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

import structlog
from structlog.typing import EventDict

from support.sim.clock import SimClock
from support.sim.loop import OWNER
from support.sim.network import NetworkedLoop
from support.sim.node import SimNode
from support.sim.store import SimEngine, StoreFaults

# Of what the nodes have logged, for whoever looks into a story that failed.
EVENTS_KEPT: Final = 60
STORE_LATENCY_SECONDS: Final = (0.000_2, 0.003)


class World:
    def __init__(self, seed: int, *, node_count: int = 1) -> None:
        self.seed = seed
        self.loop = NetworkedLoop(seed)
        self.network = self.loop.network
        # Of the story; what happens on the way is drawn by the loop.
        self.random = Random(f"world {seed}")
        self.engine = SimEngine(SimClock(self.loop, self.random), self.loop.random)
        self.heal_store()
        self.nodes = [SimNode(number + 1, self.loop, self.engine, self.random) for number in range(node_count)]
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        # What the nodes themselves have found impossible.
        self.own_assertions: list[BaseException] = []

    @property
    def trace(self) -> str:
        return self.loop.trace

    def heal_store(self) -> None:
        self.engine.faults = StoreFaults(latency_seconds=STORE_LATENCY_SECONDS, patience_seconds=0.3)

    def run(self, story: Callable[[World], Awaitable[None]]) -> None:
        """Once."""

        async def main() -> None:
            await story(self)

        with self._listening(), _without_collections():
            try:
                self.loop.run_until_complete(main())
            except BaseException as error:
                _let_go(error)
                raise
            finally:
                with _dying_quietly():
                    self.loop.close()
                    self._forget()

    def _forget(self) -> None:
        """Coroutines of nodes that were killed are closed now, when nothing that they clean up matters any more."""
        self.nodes = []
        self.loop.forget()
        gc.collect()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        before = structlog.get_config()
        structlog.configure(
            processors=[self._note_event],
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)

    def _note_event(self, _logger: object, level: str, event: EventDict) -> EventDict:
        error = event.pop("exc_info", None)
        if isinstance(error, AssertionError):
            self.own_assertions.append(error)
        self.events.append(f"{self.loop.time():9.4f} {OWNER.get() or 'world'} {level}: {event}")
        raise structlog.DropEvent


def _let_go(error: BaseException | None) -> None:
    """Of what its frames hold: nodes would be buried after the world has ended, by whoever forgets the error."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@contextmanager
def _without_collections() -> Iterator[None]:
    """A collection that closes a coroutine runs its `finally` at a moment that no seed knows. The one at the end is
    quick: what was there before is left out of it."""
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


@contextmanager
def _dying_quietly() -> Iterator[None]:
    """What the dead say when they are buried is of no interest."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _unraisable: None
    try:
        yield
    finally:
        sys.unraisablehook = hook
