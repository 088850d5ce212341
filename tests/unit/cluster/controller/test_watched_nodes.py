"""Who is connected to whom, so that every death is seen by the node that has to tell it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.base.log_events import get_logger
from penstock.base.tasks import TaskSupervisor
from penstock.cluster.controller.watched import WatchedNodes
from penstock.net.errors import PeerRefusedError
from support.cluster.members import MemberWorld


@pytest.fixture
async def world() -> AsyncIterator[MemberWorld]:
    world = await MemberWorld.open()
    yield world
    await world.close()


class Connections:
    """To whom a node is connected; each ends when its node does."""

    def __init__(self) -> None:
        self.ends: dict[int, asyncio.Event] = {}
        self.refused: set[int] = set()
        self.on_refused: Callable[[int], None] = lambda _: None

    async def until_lost(self, node_id: int) -> None:
        if node_id in self.refused:
            self.on_refused(node_id)
            raise PeerRefusedError(f"node {node_id} refuses connections")
        try:
            await self.ends.setdefault(node_id, asyncio.Event()).wait()
        finally:
            self.ends.pop(node_id, None)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_death_is_seen_by_who_has_to_tell_it(world: MemberWorld) -> None:
    nodes = await world.form(1, 2, 3)
    tasks = TaskSupervisor(get_logger("test"))
    views: dict[int, Connections] = {}
    for node in nodes:
        view = views[node.node_id] = Connections()
        WatchedNodes(node.nodes, node.refusals, view.until_lost, node_id=node.node_id, tasks=tasks).start()
    await turns()
    assert {node_id: sorted(view.ends) for node_id, view in views.items()} == {1: [2, 3], 2: [1], 3: []}
    # The controller dies: the lowest of the others hears of it, is refused, and sees to it.
    second = views[2]
    reported: list[int] = []
    second.refused, second.on_refused = {1}, reported.append
    second.ends[1].set()
    await turns()
    assert reported == [1]
    nodes[1].refused = {"host-1:9093"}
    assert await nodes[1].refusals.report_refused(1)
    await world.kill(1)
    await world.settle()
    await turns()
    assert {node_id: sorted(views[node_id].ends) for node_id in (2, 3)} == {2: [3], 3: [2]}
    # Nobody is taken for dead because its door is closed while it stops.
    await nodes[2].drain()
    await world.hear()
    nodes[1].refused = {"host-3:9093"}
    await turns()
    assert sorted(second.ends) == []
    assert not await nodes[1].refusals.report_refused(3)
    await tasks.stop()
