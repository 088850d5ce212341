from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.base.clock import ManualClock
from penstock.cluster.catalog.nodes import ControllerRecord, NodeRecord
from penstock.cluster.identity import ensure_cluster_id, ensure_cluster_secret
from penstock.cluster.node_ids import claim_node_id, known_nodes
from penstock.cluster.nodes import Directory, NodeIdTaken, NodeRegistry, Registered
from penstock.cluster.session import SessionKeeper
from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore, StoreFullError
from penstock.cluster.store.sqlite import SqliteStore
from penstock.cluster.store.values import decode, encode
from penstock.domain.replication.membership import DirectoryRecord, MemberRecord
from penstock.domain.replication.view import Duty
from support.cluster.members import by_hand

KEYS = KeySpace()


def starting(node_id: int, host: str, port: int, directory_id: str, place: str = "") -> NodeRecord:
    return NodeRecord(node_id, host, port, directory_id=directory_id, place=place, status=Duty.STARTING)


ONE = starting(1, "localhost", 9092, "first")


class World:
    def __init__(self, store: SqliteStore, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self._registries: list[NodeRegistry] = []

    async def told(self, node_id: int) -> NodeRecord | None:
        entry = await self.store.get(KEYS.node(node_id))
        return None if entry is None else decode(entry.key, entry.value, NodeRecord)

    def registry(self, directory: Directory | None = None) -> NodeRegistry:
        registry = self.registry_on(self.store, directory)
        self._registries.append(registry)
        return registry

    def registry_on(self, store: MetadataStore, directory: Directory | None = None) -> NodeRegistry:
        # A TTL whose third no test lives to see: sessions are renewed and looked at by hand.
        return NodeRegistry(store, KEYS, clock=self.clock, ttl_ms=600_000, directory=directory, begin_renewals=by_hand)

    async def pass_time(self, milliseconds: int) -> None:
        """In steps: a store that has not looked for half a TTL ends nobody."""
        for _ in range(10):
            self.clock.advance_ms(milliseconds // 10)
            await self.store.poll()

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


async def test_node_killed_as_an_older_version_takes_its_number_back(world: World) -> None:
    """It told the place of its directory as the directory's id, and is still listed when the new version starts."""
    await world.registry().register(starting(1, "localhost", 9092, "machine:/data"))
    renewed = starting(1, "localhost", 9092, "drawn by chance", "machine:/data")
    assert isinstance(await world.registry().register(renewed), Registered)
    elsewhere = starting(1, "localhost", 9092, "another", "machine:/other")
    assert isinstance(await world.registry().register(elsewhere), NodeIdTaken)


async def test_the_end_of_a_former_life_does_not_end_the_new_one(world: World) -> None:
    await world.registry().register(ONE)
    await world.pass_time(300_000)
    after = world.registry()
    await after.register(ONE)
    await world.pass_time(301_000)
    assert await after.nodes() == [ONE]


async def test_a_dead_node_is_not_listed_for_longer_than_its_ttl(world: World) -> None:
    await world.registry().register(ONE)
    await world.pass_time(601_000)
    assert await world.registry().nodes() == []
    other = starting(1, "elsewhere", 1, "second")
    assert isinstance(await world.registry().register(other), Registered)


async def test_renewal_keeps_a_node_listed(world: World) -> None:
    registry = world.registry()
    await registry.register(ONE)
    for _ in range(4):
        world.clock.advance_ms(400_000)
        assert registry.session is not None
        await registry.session.keep_alive()
        await registry.look()
    assert await registry.nodes() == [ONE]


async def test_a_node_that_slept_too_long_registers_anew(world: World) -> None:
    registry = world.registry()
    await registry.register(ONE)
    await world.pass_time(900_000)
    assert await registry.nodes() == []
    await registry.look()
    assert await registry.nodes() == [ONE]


async def test_a_node_that_slept_too_long_does_not_push_its_successor_out(world: World) -> None:
    registry = world.registry()
    await registry.register(ONE)
    await world.pass_time(900_000)
    successor = starting(1, "elsewhere", 1, "second")
    assert isinstance(await world.registry().register(successor), Registered)
    await registry.look()
    assert await registry.nodes() == [successor]


async def test_a_store_that_fails_does_not_stop_looks(world: World) -> None:
    registry = world.registry()
    await registry.register(ONE)
    await world.store.close()
    await registry.look()
    registry._keeper = None


async def test_the_cluster_id_is_made_once(world: World) -> None:
    numbers = itertools.count(1)

    def new_uuid() -> bytes:
        return next(numbers).to_bytes(16)

    ids = await asyncio.gather(*(ensure_cluster_id(world.store, KEYS, new_uuid) for _ in range(5)))
    assert len(set(ids)) == 1
    assert len(ids[0]) == 22


async def test_the_cluster_secret_is_made_once(world: World) -> None:
    made = [bytes([number]) * 32 for number in range(5)]
    found = await asyncio.gather(*(ensure_cluster_secret(world.store, KEYS, lambda each=each: each) for each in made))
    assert len(set(found)) == 1
    assert found[0] in made
    assert KEYS.is_secret(KEYS.cluster_secret)


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
    registry = world.registry_on(store)
    assert await registry.register(ONE) is None
    await registry.look()
    assert await registry.nodes() == []
    store.is_full = False
    await registry.look()
    assert await registry.nodes() == [ONE]
    await registry.close()


# Lives


class Disk:
    """What a data directory says of itself; it notes what the store said while it was written."""

    def __init__(self, world: World) -> None:
        self.record = DirectoryRecord(directory_id="first", cluster_id="c", node_id=1, epochs=(3, 7))
        self.kept: list[tuple[int, ...]] = []
        self.told_before: list[NodeRecord | None] = []
        self._world = world

    async def keep_epochs(self, epochs: tuple[int, ...]) -> None:
        self.told_before.append(await self._world.told(1))
        self.kept.append(epochs)


async def test_node_asks_when_its_directory_has_the_epoch(world: World) -> None:
    disk = Disk(world)
    registry = world.registry(disk)
    await world.store.txn(puts={KEYS.member(1): encode(MemberRecord(directory_id="first", admitted_epoch=7))})
    begun = await registry.register(ONE)
    assert isinstance(begun, Registered)
    assert not registry.has_asked
    await registry.ask_admission()
    assert disk.kept == [(7, begun.epoch)], "the admitted one stays beside the new one"
    assert [each and each.directory for each in disk.told_before] == [None]
    told = await world.told(1)
    assert told is not None
    # As it was found: by what is written since nobody judges it.
    assert told.directory == disk.record
    assert registry.has_asked


async def test_node_that_comes_into_a_cluster_without_a_controller_takes_the_seat(world: World) -> None:
    registry = world.registry(Disk(world))
    await registry.register(ONE)
    await registry.ask_admission()
    seat = await world.store.get(KEYS.controller)
    assert seat is not None
    assert decode(seat.key, seat.value, ControllerRecord) == ControllerRecord(1, registry.epoch)
    other = world.registry(Disk(world))
    await other.register(starting(2, "b", 2, "b"))
    await other.ask_admission()
    assert await world.store.get(KEYS.controller) == seat


async def test_killed_controller_does_not_hold_its_seat_against_its_next_life(world: World) -> None:
    for _ in range(2):
        registry = world.registry(Disk(world))
        await registry.register(ONE)
        await registry.ask_admission()
    seat = await world.store.get(KEYS.controller)
    assert seat is not None
    assert decode(seat.key, seat.value, ControllerRecord).life == registry.epoch


async def test_node_whose_key_is_gone_begins_another_life(world: World) -> None:
    disk = Disk(world)
    registry = world.registry(disk)
    lives: list[int] = []
    registry.on_life(lambda: lives.append(registry.epoch))
    await registry.register(ONE)
    await registry.ask_admission()
    await registry.tell(lambda record: replace(record, status=Duty.SERVING))
    before = registry.epoch
    await world.store.txn(deletes=[KEYS.node(1)])
    await registry.look()
    assert registry.epoch > before
    assert lives == [before, registry.epoch]
    assert disk.kept[-1][-1] == registry.epoch
    told = await world.told(1)
    assert told is not None
    assert (told.status, told.directory) == (Duty.SERVING, disk.record)
    # The seat of the earlier life went with its session.
    seat = await world.store.get(KEYS.controller)
    assert seat is not None
    assert decode(seat.key, seat.value, ControllerRecord).life == registry.epoch


async def test_life_that_is_over_tells_nothing(world: World) -> None:
    registry = world.registry(Disk(world))
    await registry.register(ONE)
    await world.store.txn(deletes=[KEYS.node(1)])
    await world.registry().register(starting(1, "elsewhere", 1, "second"))
    await registry.tell(lambda record: replace(record, status=Duty.SERVING))
    told = await world.told(1)
    assert told is not None
    assert (told.host, told.status) == ("elsewhere", Duty.STARTING)


async def test_copy_of_a_running_nodes_directory_is_refused(world: World) -> None:
    await world.registry().register(starting(1, "here", 1, "first", place="here:/data"))
    refused = await world.registry().register(starting(1, "there", 2, "first", place="there:/data"))
    assert isinstance(refused, NodeIdTaken)
    assert refused.is_copy
    assert "held by the node at here:1, with a data directory of which this one is a copy" in refused.reason


async def test_what_could_not_be_told_is_told_with_the_next_look(world: World) -> None:
    store = FullStore(world.store)
    store.is_full = False
    registry = world.registry_on(store)
    await registry.register(ONE)
    store.is_full = True
    await registry.tell(lambda record: replace(record, has_room=False))
    store.is_full = False
    told = await world.told(1)
    assert told is not None
    assert told.has_room
    await registry.look()
    told = await world.told(1)
    assert told is not None
    assert not told.has_room
    await registry.close()


async def test_free_ids_are_claimed_by_one_each(world: World) -> None:
    await world.registry().register(starting(2, "b", 2, "b"))
    known = known_nodes(await world.store.range(KEYS.root), KEYS)
    claimed = [await claim_node_id(world.store, KEYS, known, name) for name in ("x", "y")]
    assert claimed == [1, 3], "nobody gets the number of a node that lives"
    known = known_nodes(await world.store.range(KEYS.root), KEYS)
    assert known.copy_of("x", node_id=1) is None
    assert known.copy_of("x", node_id=4) == 1
    assert not known.has_only(1)
    assert known.free_id == 4


# Sessions


async def test_lost_session_begins_another_life_at_once_and_late_renewals_add_up(world: World) -> None:
    """Not at the next look: the keeper says so."""
    keepers: list[SessionKeeper] = []
    registry = NodeRegistry(world.store, KEYS, clock=world.clock, ttl_ms=600_000, begin_renewals=keepers.append)
    lives = asyncio.Queue[int]()
    registry.on_life(lambda: lives.put_nowait(registry.epoch))
    await registry.register(ONE)
    first = await lives.get()
    assert registry.session is keepers[0].session
    assert registry.is_held_at(world.clock.monotonic_ms())
    await world.pass_time(900_000)
    assert not registry.is_held_at(world.clock.monotonic_ms())
    keeper = keepers[0]
    renewer = keeper.session.renewer()
    assert renewer is not None
    # Its thread would say so; here nobody has started it.
    keeper._turned_ms = world.clock.monotonic_ms()
    keeper.renew_once(renewer)
    renewer.close()
    assert keeper.is_lost
    keeper._on_lost()
    assert await lives.get() > first
    assert registry.session is keepers[1].session
    assert registry.late_count == 1
    await registry.close()
