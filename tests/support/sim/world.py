"""Some nodes, the metadata store that they share, the network to their clients: all of it from one seed."""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final, TypeVar

import structlog
from structlog.typing import EventDict

from penstock.broker.partition.shell import PartitionShell
from penstock.broker.parts import Parts
from penstock.net.address import Address
from penstock.net.errors import BrokerUnreachableError
from support.sim.back_door import ask
from support.sim.clock import SimClock
from support.sim.loop import OWNER
from support.sim.network import NetworkedLoop
from support.sim.node import SimNode
from support.sim.store import SimEngine, StoreFaults

Result = TypeVar("Result")

# Of what the nodes have logged, for whoever looks into a story that failed.
EVENTS_KEPT: Final = 60
# Of three replicas, where the topic does not say otherwise.
MINIMUM_IN_SYNC: Final = 2
# A reply takes no longer to arrive.
JUST_NOW_SECONDS: Final = 5.0
STORE_LATENCY_SECONDS: Final = (0.000_2, 0.003)


class World:
    def __init__(self, seed: int, *, node_count: int = 1, is_cluster: bool = False) -> None:
        """`is_cluster`: the nodes have internal doors, and replicate."""
        self.seed = seed
        self.is_cluster = is_cluster
        self.loop = NetworkedLoop(seed)
        self.network = self.loop.network
        # Of the story; what happens on the way is drawn by the loop.
        self.random = Random(f"world {seed}")
        self.engine = SimEngine(SimClock(self.loop, self.random), self.loop.random)
        self.heal_store()
        self.nodes = [
            SimNode(number + 1, self.loop, self.engine, self.random, has_internal_door=is_cluster)
            for number in range(node_count)
        ]
        self.events: deque[str] = deque(maxlen=EVENTS_KEPT)
        # Of one node: nothing promised outlives a second one.
        self.has_lost_disk = False
        # What the nodes themselves have found impossible.
        self.own_assertions: list[BaseException] = []

    @property
    def trace(self) -> str:
        return self.loop.trace

    # For clients, who know addresses and no more

    @property
    def addresses(self) -> list[Address]:
        """In any order, so that not everybody goes to the first."""
        found = [node.address for node in self.nodes]
        return found if len(found) == 1 else self.random.sample(found, len(found))

    async def ask(
        self, work: Callable[[Parts], Coroutine[Any, Any, Result]], *, led: tuple[str, int] | None = None
    ) -> Result:
        """Of any node that has a door open; of one that takes itself for the leader of `led`, if there is any."""
        nodes = [node for node in self.nodes if node.is_open]
        if not nodes:
            raise BrokerUnreachableError("no node has an open door")
        leaders = [] if led is None else [node for node in nodes if _leads(node, *led)]
        return await ask(self.network, self.random.choice(leaders or nodes), work)

    # For those who look on

    def holds_durably(self, value: bytes, suffix: str) -> bool:
        """On one disk, or on as many as must be in sync. One that was lost a moment ago may have had it."""
        wanted = MINIMUM_IN_SYNC if self.is_cluster else 1
        lately = self.loop.time() - JUST_NOW_SECONDS
        lost = sum(node.disk_lost_at > lately for node in self.nodes)
        return lost + sum(node.files.holds_durably(value, suffix) for node in self.nodes) >= wanted

    def may_be_damaged(self, log: str, offset: int) -> bool:
        return any(node.excuses.may_be_damaged(log, offset) for node in self.nodes)

    def is_rotten(self, log: str, offset: int) -> bool:
        return any(node.excuses.is_rotten(log, offset) for node in self.nodes)

    def damaged_topics(self) -> set[str]:
        """What somebody has to repair before it is answered again."""
        return {topic for node in self.nodes for topic in node.damaged_topics()}

    def lowest_ms(self, since_seconds: float) -> int:
        """By any node's clock."""
        return min(node.clock.lowest_ms(since_seconds) for node in self.nodes)

    def highest_ms(self, since_seconds: float = 0.0) -> int:
        return max(node.clock.highest_ms(since_seconds) for node in self.nodes)

    @property
    def has_set_clock(self) -> bool:
        return any(node.clock.is_set for node in self.nodes)

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
        self.network.forget()
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

    def tell(self, what: str) -> None:
        """What the story does, among what the nodes say."""
        self.events.append(f"{self.loop.time():9.4f} story: {what}")

    def _note_event(self, _logger: object, level: str, event: EventDict) -> EventDict:
        error = event.pop("exc_info", None)
        if isinstance(error, AssertionError):
            self.own_assertions.append(error)
        self.events.append(f"{self.loop.time():9.4f} {OWNER.get() or 'world'} {level}: {event}")
        raise structlog.DropEvent


def _leads(node: SimNode, topic: str, partition: int) -> bool:
    return node.parts is not None and isinstance(node.parts.broker.find(topic, partition), PartitionShell)


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
