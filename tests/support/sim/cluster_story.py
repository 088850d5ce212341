"""Three nodes, sometimes five, that replicate, under load while things go wrong: see `story` for one node.

    start ─► the clients of some loads ─┬─► stop ─► heal, start again ─► everybody in sync, all replicas equal
                              faults ───┤                             ─► read everything, check it
                           an onlooker ─┘

`tell(seed)` raises `InvariantError` if something does not hold; the same seed tells the same story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.client.kafka.cluster_client import ClusterClient
from support.sim import cluster_faults, faults
from support.sim.client import OPTIONS
from support.sim.cluster_faults import restart
from support.sim.invariants import WELL_AFTER_QUIET, InvariantError, check
from support.sim.loads.load import Load, until
from support.sim.loads.ring import RingLoad
from support.sim.replicas import Onlooker, check_replicas
from support.sim.story import LOADS, LOADS_AT_ONCE, Crowd, check_loads, explain
from support.sim.world import World

REPEAT: Final = "PYTHONPATH=tests:src python -m support.sim cluster"
CLUSTER_LOADS: Final[dict[str, Callable[[World], Load]]] = {**LOADS, "ring": RingLoad}
NODES: Final = 3
NODES_OF_MANY: Final = 5
MANY_CHANCE: Final = 0.1
FAULTS_MAX: Final = 5
BETWEEN_FAULTS_SECONDS: Final = (0.05, 1.5)


def tell(seed: int, *, loads: Sequence[str] = (), weighted: Sequence[str] = ()) -> World:
    """The world as it was in the end. Without names of `loads` it draws some; `weighted`: faults that it is about."""
    node_count = NODES_OF_MANY if seed % round(1 / MANY_CHANCE) == round(1 / MANY_CHANCE) - 1 else NODES
    world = World(seed, node_count=node_count, is_cluster=True)
    try:
        world.run(partial(_story, loads=loads, weighted=weighted))
    except InvariantError as broken:
        named = "".join([*(f" --load {name}" for name in loads), *(f" --fault {name}" for name in weighted)])
        explain(broken, world, again=f"{REPEAT} {world.seed}{named}")
        raise
    return world


async def _story(world: World, *, loads: Sequence[str], weighted: Sequence[str]) -> None:
    await _start(world)
    at_work = [CLUSTER_LOADS[name](world) for name in loads or world.random.sample(list(CLUSTER_LOADS), LOADS_AT_ONCE)]
    async with ClusterClient(world.addresses, OPTIONS) as client:
        for load in at_work:
            await load.prepare(client)
    looking = asyncio.ensure_future(Onlooker(world).look_on())
    try:
        await _go_through(world, at_work, weighted)
    finally:
        # What it has found came first, and mostly explains the rest.
        if looking.done():
            looking.result()
        looking.cancel()


async def _go_through(world: World, at_work: Sequence[Load], weighted: Sequence[str]) -> None:
    crowd = Crowd([client for load in at_work for client in load.clients()])
    await _go_wrong(world, weighted)
    await crowd.stop()
    world.tell("all is well again")
    faults.heal(world)
    await asyncio.gather(*(restart(world, node) for node in world.nodes))
    for node in world.nodes:
        check(WELL_AFTER_QUIET, holds=node.is_running, what=f"{node.host} does not start: {node.failure!r}")
    await check_replicas(world)
    await check_loads(world, at_work)
    await check_replicas(world)


async def _start(world: World) -> None:
    """All of them, and everything that a cluster makes for itself."""
    started = await asyncio.gather(*(node.start() for node in world.nodes))
    check(WELL_AFTER_QUIET, holds=all(started), what=f"the first start failed: {[n.failure for n in world.nodes]}")
    await until(world, partial(_is_formed, world), "the nodes do not know each other")
    await check_replicas(world)


async def _is_formed(world: World) -> bool:
    return all(node.parts is not None and len(node.parts.nodes.serving()) == len(world.nodes) for node in world.nodes)


async def _go_wrong(world: World, weighted: Sequence[str]) -> None:
    under_way: list[asyncio.Future[None]] = []
    for _ in range(world.random.randint(1, FAULTS_MAX)):
        await asyncio.sleep(world.random.uniform(*BETWEEN_FAULTS_SECONDS))
        node = world.random.choice(world.nodes)
        fault = cluster_faults.draw(world, weighted)
        world.tell(f"{fault.__name__} of {node.host}")
        under_way.append(asyncio.ensure_future(fault(world, node)))
    await asyncio.gather(*under_way)
