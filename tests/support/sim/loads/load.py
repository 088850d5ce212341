"""What a story's clients do together, and what has to be true of it: one load of several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.errors import ClientError
from support.sim.client import SimClient
from support.sim.invariants import WELL_AFTER_QUIET, InvariantError
from support.sim.world import World

# Segments of a few batches, so that stories roll them.
TOPIC_SETTINGS: Final = {"segment.bytes": "4096"}
# For what has to come to an end by itself: all that a node waits for is shorter.
QUIET_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.5


class Load(Protocol):
    # Logs of the node's own: what the load is about cannot be told when one of them is damaged, and nobody tells it.
    rests_on: frozenset[str]

    async def prepare(self, client: ClusterClient) -> None:
        """Topics and what else there has to be, before anything goes wrong."""

    def clients(self) -> Sequence[SimClient]: ...

    async def check(self, client: ClusterClient) -> None:
        """When all is well again, and clients have stopped: raises `InvariantError`."""


async def until(world: World, is_so: Callable[[], Awaitable[bool]], problem: str) -> None:
    """Looks again and again, with what a node cannot answer yet taken for a no."""
    deadline = world.loop.time() + QUIET_SECONDS
    last: ClientError | None = None
    while world.loop.time() < deadline:
        try:
            if await is_so():
                return
        except ClientError as error:
            last = error
        await asyncio.sleep(LOOK_SECONDS)
    raise InvariantError(WELL_AFTER_QUIET, f"{problem} after {QUIET_SECONDS:g} quiet seconds ({last})")
