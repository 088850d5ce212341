"""Metadata engines as the contract tests see them. A new engine is one more `StoreEngine` in `ENGINES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock.base.clock import ManualClock
from penstock.cluster.store.protocol import MetadataStore
from penstock.cluster.store.sqlite import SqliteStore
from support.sim.store import SimEngine, SimStore


class StoreEngine(Protocol):
    async def start(self) -> MetadataStore: ...

    async def another_client(self) -> MetadataStore:
        """A second store over the same data, as another process would have."""
        ...

    async def pass_time(self, milliseconds: int) -> None:
        """Time passes for the engine; ended sessions may be noticed somewhat later."""
        ...

    async def forget_history(self) -> None:
        """After this, nothing that happened before can be watched."""
        ...

    async def stop(self) -> None: ...


class SqliteEngine:
    history_revisions = 50

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
        self._clock.advance_ms(milliseconds)

    async def forget_history(self) -> None:
        for _ in range(2 * self.history_revisions):
            await self._stores[0].txn(puts={"/other/filler": b""})

    async def stop(self) -> None:
        for store in self._stores:
            await store.close()

    async def _open(self) -> SqliteStore:
        store = await SqliteStore.open(
            self._path, clock=self._clock, poll_ms=5, history_revisions=self.history_revisions
        )
        self._stores.append(store)
        return store


class SimulatedEngine:
    """What simulated nodes share is held to the same contract, or they would prove something else."""

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

    async def forget_history(self) -> None:
        self._engine.state.compact()

    async def stop(self) -> None:
        for store in self._stores:
            await store.close()


ENGINES: dict[str, Callable[[Path], StoreEngine]] = {
    "sqlite_file": lambda directory: SqliteEngine(str(directory / "metadata.sqlite")),
    "simulated": lambda _directory: SimulatedEngine(),
    "sqlite_memory": lambda directory: SqliteEngine(":memory:"),
}
