from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.clock import ManualClock
from penstock.cluster.catalog.nodes import NodeRecord
from penstock.cluster.identity import ensure_cluster_id
from penstock.cluster.nodes import NodeIdTaken, NodeRegistry, Registered
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import StoreFullError
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import encode
from penstock.domain.replication.view import Duty

KEYS = KeySpace()


def starting(node_id: int, host: str, port: int, directory_id: str, place: str = "") -> NodeRecord:
    return NodeRecord(node_id, host, port, directory_id=directory_id, place=place, status=Duty.STARTING)


ONE = starting(1, "localhost", 9092, "first")


class World:
    def __init__(self, store: SqliteStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self._registries: list[NodeRegistry] = []

    def registry(self) -> NodeRegistry:
        # A TTL whose third no test lives to see: renewals are called by hand.
        registry = NodeRegistry(self.store, KEYS, ttl_ms=600_000)
        self._registries.append(registry)
        return registry

    async def stop(self) -> None:
        for registry in self._registries:
            await registry.close()
        await self.store.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = ManualClock()
    world = World(await SqliteStore.open(tmp_path / "metadata.sqlite", clock=clock), clock)
    yield world
    await world.stop()


async def test_registered_nodes_are_listed_until_they_leave(world: World) -> None:
    first, tenth = world.registry(), world.registry()
    assert isinstance(await tenth.register(starting(10, "b", 2, "b")), Registered)
    assert isinstance(await first.register(starting(9, "a", 1, "a")), Registered)
    assert [node.node_id for node in await first.nodes()] == [9, 10]
    await tenth.close()
    assert [node.node_id for node in await first.nodes()] == [9]


async def test_a_number_is_held_by_one_node(world: World) -> None:
    assert isinstance(await world.registry().register(ONE), Registered)
    refused = await world.registry().register(starting(1, "elsewhere", 1, "second"))
    assert isinstance(refused, NodeIdTaken)
    assert refused.record == ONE
    assert refused.reason.startswith("node id 1 is held by the node at localhost:9092")


async def test_a_killed_node_takes_its_own_number_back_as_a_new_life(world: World) -> None:
    before = await world.registry().register(ONE)
    after = await world.registry().register(ONE)
    assert isinstance(before, Registered)
    assert isinstance(after, Registered)
    assert after.epoch > before.epoch
    assert await world.registry().nodes() == [ONE]


async def test_the_end_of_a_former_life_does_not_end_the_new_one(world: World) -> None:
    await world.registry().register(ONE)
    world.clock.advance_ms(300_000)
    after = world.registry()
    await after.register(ONE)
    world.clock.advance_ms(300_001)
    assert await after.nodes() == [ONE]


async def test_a_dead_node_is_not_listed_for_longer_than_its_ttl(world: World) -> None:
    await world.registry().register(ONE)
    world.clock.advance_ms(600_001)
    assert await world.registry().nodes() == []
    other = starting(1, "elsewhere", 1, "second")
    assert isinstance(await world.registry().register(other), Registered)


async def test_renewal_keeps_a_node_listed(world: World) -> None:
    registry = world.registry()
    await registry.register(ONE)
    for _ in range(4):
        world.clock.advance_ms(400_000)
        await registry.renew()
    assert await registry.nodes() == [ONE]


async def test_a_node_that_slept_too_long_registers_anew(world: World) -> None:
    registry = world.registry()
    await registry.register(ONE)
    world.clock.advance_ms(900_000)
    assert await registry.nodes() == []
    await registry.renew()
    assert await registry.nodes() == [ONE]


async def test_a_node_that_slept_too_long_does_not_push_its_successor_out(world: World) -> None:
    registry = world.registry()
    await registry.register(ONE)
    world.clock.advance_ms(900_000)
    successor = starting(1, "elsewhere", 1, "second")
    assert isinstance(await world.registry().register(successor), Registered)
    await registry.renew()
    assert await registry.nodes() == [successor]


async def test_a_store_that_fails_does_not_stop_renewals(world: World) -> None:
    registry = world.registry()
    await registry.register(ONE)
    await world.store.close()
    await registry.renew()
    registry._session = None


async def test_the_cluster_id_is_made_once(world: World) -> None:
    numbers = itertools.count(1)

    def new_uuid() -> bytes:
        return next(numbers).to_bytes(16)

    ids = await asyncio.gather(*(ensure_cluster_id(world.store, KEYS, new_uuid) for _ in range(5)))
    assert len(set(ids)) == 1
    assert len(ids[0]) == 22


async def test_a_cluster_id_does_not_look_like_an_option(world: World) -> None:
    uuids = iter([b"\xf8" + bytes(15), b"\x10" + bytes(15)])
    assert await ensure_cluster_id(world.store, KEYS, lambda: next(uuids)) == "EAAAAAAAAAAAAAAAAAAAAA"


class FullStore:
    """The metadata store on a disk without room: what is there is read, nothing is written."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.is_full = True

    def __getattr__(self, name: str) -> object:
        if self.is_full and name in ("txn", "open_session"):
            raise StoreFullError("no room")
        return getattr(self._store, name)


async def test_a_node_registers_when_the_store_has_room_again(world: World) -> None:
    store = FullStore(world.store)
    await world.store.txn(puts={KEYS.cluster_id: encode("known")})
    assert await ensure_cluster_id(store, KEYS, lambda: uuid.uuid4().bytes) == "known"
    registry = NodeRegistry(store, KEYS, ttl_ms=600_000)
    assert await registry.register(ONE) is None
    await registry.renew()
    assert await registry.nodes() == []
    store.is_full = False
    await registry.renew()
    assert await registry.nodes() == [ONE]
    await registry.close()
