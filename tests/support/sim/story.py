"""One node under load while things go wrong, from its first start to the last reader.

    start ─► producers, a group, a reader ─┬─► stop ─► heal, start again ─► quiet ─► read everything, check it
                                 faults ───┘

`tell(seed)` raises `InvariantError` if something does not hold; the same seed tells the same story.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.client.kafka.admin import create_topic
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import committed_offsets
from penstock.client.kafka.offsets import offset_ranges
from penstock.client.patience import ask_patiently
from penstock.net.errors import ClientError
from support.sim import faults
from support.sim.clients import (
    GROUP,
    OPTIONS,
    PARTITIONS,
    TOPIC,
    SimClient,
    SimCommitter,
    SimProducer,
    SimReader,
    read_everything,
)
from support.sim.invariants import (
    NO_DAMAGE,
    OWN_ASSERTION,
    WELL_AFTER_QUIET,
    InvariantError,
    check,
    check_commits,
    check_durable,
    check_log,
)
from support.sim.ledger import Ledger, Place
from support.sim.node import SimNode
from support.sim.world import World

REPEAT: Final = "PYTHONPATH=tests:src python -m support.sim"
FAULTS_MAX: Final = 6
BETWEEN_FAULTS_SECONDS: Final = (0.02, 0.5)
# For clients to come to an end, for a node to serve again: all that they wait for is shorter.
PATIENCE_SECONDS: Final = 120.0
# Segments of a few batches, so that stories roll them.
TOPIC_SETTINGS: Final = {"segment.bytes": "16384"}


def tell(seed: int) -> World:
    """The world as it was in the end."""
    world = World(seed)
    try:
        world.run(_one_node)
    except InvariantError as broken:
        _explain(broken, world)
        raise
    return world


def _explain(broken: BaseException, world: World) -> None:
    broken.add_note(f"seed {world.seed}, after {world.loop.time():.3f} s; again: {REPEAT} {world.seed}")
    broken.add_note("\n".join(["what the nodes logged last:", *world.events]))


async def _one_node(world: World) -> None:
    (node,) = world.nodes
    ledger = Ledger()
    check(WELL_AFTER_QUIET, holds=await node.start(), what=f"the first start failed: {node.failure!r}")
    async with ClusterClient([node.address], OPTIONS) as client:
        await create_topic(client, TOPIC, partitions=PARTITIONS, configs=TOPIC_SETTINGS)
    load = Load(_clients(world, node, ledger))
    await _go_wrong(world, node)
    await load.stop()
    faults.heal(world)
    await _serve_again(node)
    await _check_all(world, node, ledger)


def _clients(world: World, node: SimNode, ledger: Ledger) -> list[SimClient]:
    def on_acknowledged(value: bytes) -> None:
        check_durable(node.files, value)

    producers = [
        SimProducer(
            f"{'sure' if is_idempotent else 'plain'}-{number}",
            node.address,
            ledger,
            world.random,
            is_idempotent=is_idempotent,
            on_acknowledged=on_acknowledged,
        )
        for number, is_idempotent in enumerate((True, False, world.random.random() < 0.5))
    ]
    committer = SimCommitter("committer", node.address, ledger, world.random)
    reader = SimReader("reader", node.address, ledger, world.random)
    return [*producers, committer, reader]


class Load:
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


async def _go_wrong(world: World, node: SimNode) -> None:
    under_way: list[asyncio.Future[None]] = []
    for _ in range(world.random.randint(1, FAULTS_MAX)):
        await asyncio.sleep(world.random.uniform(*BETWEEN_FAULTS_SECONDS))
        under_way.append(asyncio.ensure_future(faults.draw(world)(world, node)))
    await asyncio.gather(*under_way)


async def _serve_again(node: SimNode) -> None:
    if not node.is_running:
        await node.start()
    check(WELL_AFTER_QUIET, holds=node.is_running, what=f"no start although all is well: {node.failure!r}")


async def _check_all(world: World, node: SimNode, ledger: Ledger) -> None:
    check(OWN_ASSERTION, holds=not world.own_assertions, what=repr(world.own_assertions[:1]))
    patience_ms = int(PATIENCE_SECONDS * 1000)
    found: dict[Place, bytes] = {}
    damaged: list[int] = []
    try:
        async with ClusterClient([node.address], OPTIONS) as client:
            places = range(PARTITIONS)
            ranges = await ask_patiently(lambda: offset_ranges(client, TOPIC, places), patience_ms=patience_ms)
            for partition in places:
                values, bad = await read_everything(client, partition, end=ranges[partition].end)
                found |= values
                damaged += bad
            committed = await ask_patiently(lambda: committed_offsets(client, GROUP), patience_ms=patience_ms)
    except ClientError as error:
        raise InvariantError(WELL_AFTER_QUIET, f"no answer although all is well: {error}") from error
    check(NO_DAMAGE, holds=not damaged or node.may_look_damaged, what=f"offsets {damaged} on a disk that kept them")
    check_log(ledger, found)
    check_commits(ledger, {partition: offset for (_topic, partition), offset in committed.items()})
