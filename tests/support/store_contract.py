"""Metadata engines as the contract tests see them. A new engine is one more `StoreEngine` in `ENGINES`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from penstock.base.clock import ManualClock
from penstock.cluster.store.etcd.engine import EtcdStore
from penstock.cluster.store.protocol import MetadataStore, StoreSession
from penstock.cluster.store.settings import EtcdLocation, EtcdMember, MetadataConfig
from penstock.cluster.store.sqlite import SqliteStore
from support.programs.etcd import EtcdCluster
from support.reply_eater import ReplyEater
from support.sim.store import EVERYBODY, SimEngine, SimStore

_OUTLAST_LOOKS_MAX: Final = 300
_LOOK_SECONDS: Final = 0.1


class StoreEngine(Protocol):
    # Of the sessions that tests open: what passes by a manual clock may be long, what is waited for is short.
    ttl_ms: int

    async def start(self) -> MetadataStore: ...

    async def another_client(self) -> MetadataStore:
        """A second store over the same data, as another process would have."""
        ...

    async def pass_time(self, milliseconds: int) -> None:
        """Time passes for the engine, which is there all the while."""
        ...

    async def outlast(self, session: StoreSession) -> None:
        """Time passes until the session, which nobody renews, is ended."""
        ...

    async def be_away(self, milliseconds: int) -> None:
        """The engine is out of reach for so long; when this returns it is back."""
        ...

    async def forget_history(self) -> None:
        """After this, nothing that happened before can be watched."""
        ...

    async def client_without_replies(self) -> MetadataStore | None:
        """Whatever it asks for is done, and the answer is lost. None: that cannot happen to this engine."""
        ...

    async def lose_member(self) -> bool:
        """One of those that the engine is made of stops for good. False: it is made of one."""
        ...

    async def stop(self) -> None: ...


class SqliteEngine:
    history_revisions = 50
    ttl_ms = 10_000
    # A store that has not looked for half a TTL ends nobody: so it looks more often than that.
    _step_ms = 1000

    def __init__(self, path: str) -> None:
        self._path = path
        self._clock = ManualClock()
        self._stores: list[SqliteStore] = []

    async def start(self) -> MetadataStore:
        return await self._open()

    async def another_client(self) -> MetadataStore:
        # Nobody else can open a database in memory: there the first store is its own neighbour.
        return self._stores[0] if self._path == ":memory:" else await self._open()

    async def pass_time(self, milliseconds: int) -> None:
        while milliseconds > 0:
            self._clock.advance_ms(min(self._step_ms, milliseconds))
            milliseconds -= self._step_ms
            for store in self._stores:
                await store.poll()

    async def outlast(self, session: StoreSession) -> None:
        # Twice: one may have been spared because nobody had looked.
        await self.pass_time(2 * session.ttl_ms)

    async def be_away(self, milliseconds: int) -> None:
        # As for a machine that is suspended: nobody looks meanwhile.
        self._clock.advance_ms(milliseconds)
        for store in self._stores:
            await store.poll()

    async def forget_history(self) -> None:
        for _ in range(2 * self.history_revisions):
            await self._stores[0].txn(puts={"/other/filler": b""})

    async def client_without_replies(self) -> MetadataStore | None:
        return None

    async def lose_member(self) -> bool:
        return False

    async def stop(self) -> None:
        for store in self._stores:
            await store.close()

    async def _open(self) -> SqliteStore:
        store = await SqliteStore.open(
            self._path, clock=self._clock, poll_ms=5, history_revisions=self.history_revisions
        )
        self._stores.append(store)
        return store


class EtcdEngine:
    """Real members, which other tests of the module use too: each engine keeps to a prefix of its own."""

    ttl_ms = 1000
    _numbers: Final = count(1)

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self._prefix = f"/contract{next(self._numbers):04}"
        self._stores: list[EtcdStore] = []
        self._eaters: list[ReplyEater] = []
        self._lost: int | None = None

    async def start(self) -> MetadataStore:
        return await self.another_client()

    async def another_client(self) -> MetadataStore:
        return await self.open(self._cluster.ports)

    async def open(self, ports: list[int], *, silence_ms_max: int = 5000) -> EtcdStore:
        members = tuple(EtcdMember("127.0.0.1", port) for port in ports)
        store = await EtcdStore.open(
            EtcdLocation(members, self._prefix), MetadataConfig(allow_old_etcd=True), silence_ms_max=silence_ms_max
        )
        self._stores.append(store)
        return store

    async def pass_time(self, milliseconds: int) -> None:
        await asyncio.sleep(milliseconds / 1000)

    async def outlast(self, session: StoreSession) -> None:
        # Not by the clock: a busy leader tries again after three seconds.
        for _ in range(_OUTLAST_LOOKS_MAX):
            await asyncio.sleep(_LOOK_SECONDS)
            if not await asyncio.to_thread(self._cluster.has_lease, session.id):
                return
        raise AssertionError("a lease does not end")

    async def be_away(self, milliseconds: int) -> None:
        await asyncio.to_thread(self._cluster.stop)
        await asyncio.sleep(milliseconds / 1000)
        # On this thread: members die with the one that started them.
        self._cluster.start()

    async def forget_history(self) -> None:
        await asyncio.to_thread(self._cluster.compact)

    async def client_without_replies(self) -> MetadataStore | None:
        eater = ReplyEater(self._cluster.ports[0])
        self._eaters.append(eater)
        # The first member loses replies, the others do not: whoever asked them again would be found out.
        port = await eater.start()
        store = await self.open([port, *self._cluster.ports[1:]])
        eater.begin()
        return store

    async def lose_member(self) -> bool:
        self._lost = await asyncio.to_thread(self._cluster.leader)
        await asyncio.to_thread(self._cluster.kill_member, self._lost)
        return True

    async def stop(self) -> None:
        for store in self._stores:
            await store.close()
        for eater in self._eaters:
            await eater.stop()
        if self._lost is not None:
            self._cluster.restart(self._lost)
        # What is bound to a session would else vanish, and take a revision, in the midst of a later test.
        await asyncio.to_thread(self._cluster.delete_prefix, self._prefix)


class SimulatedEngine:
    """What simulated nodes share is held to the same contract, or they would prove something else."""

    ttl_ms = 10_000

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._engine = SimEngine(self._clock)
        self._stores: list[SimStore] = []

    async def start(self) -> MetadataStore:
        return await self.another_client()

    async def another_client(self) -> MetadataStore:
        self._stores.append(SimStore(self._engine, f"n{len(self._stores) + 1}"))
        return self._stores[-1]

    async def pass_time(self, milliseconds: int) -> None:
        self._clock.advance_ms(milliseconds)
        self._engine.expire()

    async def outlast(self, session: StoreSession) -> None:
        await self.pass_time(2 * session.ttl_ms)

    async def be_away(self, milliseconds: int) -> None:
        self._engine.faults.away.add(EVERYBODY)
        await self.pass_time(milliseconds)
        self._engine.faults.away.discard(EVERYBODY)
        self._engine.expire()

    async def forget_history(self) -> None:
        self._engine.state.compact()

    async def client_without_replies(self) -> MetadataStore | None:
        self._engine.faults.mute.add("mute")
        self._stores.append(SimStore(self._engine, "mute"))
        return self._stores[-1]

    async def lose_member(self) -> bool:
        return False

    async def stop(self) -> None:
        for store in self._stores:
            await store.close()


ENGINES: dict[str, Callable[[Path], StoreEngine]] = {
    "sqlite_file": lambda directory: SqliteEngine(str(directory / "metadata.sqlite")),
    "simulated": lambda _directory: SimulatedEngine(),
    "sqlite_memory": lambda directory: SqliteEngine(":memory:"),
}
