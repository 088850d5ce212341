"""Nodes under load while things go wrong, from their first start to the last reader.

    start ─► the clients of some loads ─┬─► stop ─► heal, start again ─► quiet ─► read everything, check it
                              faults ───┘

`tell(seed)` raises `InvariantError` if something does not hold; the same seed tells the same story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.net.errors import ClientError
from support.sim import faults
from support.sim.client import OPTIONS, SimClient
from support.sim.invariants import OWN_ASSERTION, WELL_AFTER_QUIET, InvariantError, check
from support.sim.loads.delays import DelayLoad
from support.sim.loads.load import Load
from support.sim.loads.log import LogLoad
from support.sim.loads.positions import PositionLoad
from support.sim.loads.queue import QueueLoad
from support.sim.loads.transactions import TransactionLoad
from support.sim.world import World

REPEAT: Final = "PYTHONPATH=tests:src python -m support.sim"
# So many of them share a story, so that each has room in it.
LOADS_AT_ONCE: Final = 2
LOADS: Final[dict[str, Callable[[World], Load]]] = {
    "log": LogLoad,
    "positions": PositionLoad,
    "transactions": TransactionLoad,
    "queue": QueueLoad,
    "delays": DelayLoad,
}
FAULTS_MAX: Final = 6
BETWEEN_FAULTS_SECONDS: Final = (0.02, 0.5)
# For clients to come to an end, for a node to serve again: all that they wait for is shorter.
PATIENCE_SECONDS: Final = 120.0


def tell(seed: int, *, loads: Sequence[str] = ()) -> World:
    """The world as it was in the end. Without names of `loads` it draws some."""
    world = World(seed)
    try:
        world.run(partial(_story, loads=loads))
    except InvariantError as broken:
        explain(broken, world, again=f"{REPEAT} {world.seed}")
        raise
    return world


def explain(broken: BaseException, world: World, *, again: str) -> None:
    broken.add_note(f"seed {world.seed}, after {world.loop.time():.3f} s; again: {again}")
    broken.add_note("\n".join(["what the nodes logged last:", *world.events]))


async def _story(world: World, *, loads: Sequence[str]) -> None:
    for node in world.nodes:
        check(WELL_AFTER_QUIET, holds=await node.start(), what=f"the first start failed: {node.failure!r}")
    at_work = [LOADS[name](world) for name in loads or world.random.sample(list(LOADS), LOADS_AT_ONCE)]
    async with ClusterClient(world.addresses, OPTIONS) as client:
        for load in at_work:
            await load.prepare(client)
    crowd = Crowd([client for load in at_work for client in load.clients()])
    await _go_wrong(world)
    await crowd.stop()
    faults.heal(world)
    await serve_again(world)
    await check_loads(world, at_work)


class Crowd:
    """Clients at work. What one of them finds broken is raised by `stop`."""

    def __init__(self, clients: list[SimClient]) -> None:
        self._clients = clients
        self._tasks = [asyncio.ensure_future(client.run()) for client in clients]

    async def stop(self) -> None:
        for client in self._clients:
            client.is_stopping = True
        done, late = await asyncio.wait(self._tasks, timeout=PATIENCE_SECONDS)
        # Every one is looked at, and the first that found something is raised.
        for error in [task.exception() for task in self._tasks if task in done]:
            if error is not None:
                raise error
        check(WELL_AFTER_QUIET, holds=not late, what=f"{len(late)} clients have been waiting for {PATIENCE_SECONDS} s")


async def _go_wrong(world: World) -> None:
    under_way: list[asyncio.Future[None]] = []
    for _ in range(world.random.randint(1, FAULTS_MAX)):
        await asyncio.sleep(world.random.uniform(*BETWEEN_FAULTS_SECONDS))
        node = world.random.choice(world.nodes)
        under_way.append(asyncio.ensure_future(faults.draw(world)(world, node)))
    await asyncio.gather(*under_way)


async def serve_again(world: World) -> None:
    for node in world.nodes:
        if not node.is_running:
            await node.start()
        check(WELL_AFTER_QUIET, holds=node.is_running, what=f"no start although all is well: {node.failure!r}")


async def check_loads(world: World, loads: Sequence[Load]) -> None:
    check(OWN_ASSERTION, holds=not world.own_assertions, what=repr(world.own_assertions[:1]))
    try:
        async with ClusterClient(world.addresses, OPTIONS) as client:
            for load in loads:
                if not load.rests_on & world.damaged_topics():
                    await load.check(client)
    except ClientError as error:
        raise InvariantError(WELL_AFTER_QUIET, f"no answer although all is well: {error}") from error
