"""A metadata store around a real one, whose watches a test counts, holds back and breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from penstock.cluster.store.protocol import (
    NOTHING,
    Compare,
    Entry,
    EventBatch,
    MetadataStore,
    Range,
    StoreError,
    StoreSession,
    TxnResult,
)


class WatchedStore:
    def __init__(self, store: MetadataStore) -> None:
        self.real = store
        self.begun_count = 0
        self.open_count = 0
        self.failed = asyncio.Event()
        self.before_txn: Callable[[], Awaitable[object]] | None = None
        self._failure: StoreError | None = None
        self._flows = asyncio.Event()
        self._flows.set()

    def hold(self) -> None:
        """Nothing that happens from now on reaches a watch."""
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    def fail(self, error: StoreError | None) -> None:
        """Watches raise it at the next change, and reads at once. None: all is well again."""
        self._failure = error
        self.failed.clear()

    async def get(self, key: str) -> Entry | None:
        return await self.real.get(key)

    async def range(self, prefix: str) -> Range:
        self._break_if_failing()
        return await self.real.range(prefix)

    async def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] = NOTHING,
        deletes: Sequence[str] = (),
        session: StoreSession | None = None,
    ) -> TxnResult:
        before, self.before_txn = self.before_txn, None
        if before is not None:
            await before()
        return await self.real.txn(compares, puts, deletes, session)

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[EventBatch]:
        self.begun_count += 1
        self.open_count += 1
        try:
            while True:
                await self._flows.wait()
                async for batch in self.real.watch(prefix, from_revision):
                    if not self._flows.is_set():
                        # As if it had not been asked for yet.
                        break
                    self._break_if_failing()
                    from_revision = batch.revision + 1
                    yield batch
                else:
                    return
        finally:
            self.open_count -= 1

    async def open_session(self, ttl_ms: int) -> StoreSession:
        return await self.real.open_session(ttl_ms)

    def keep_copy(self) -> None:
        self.real.keep_copy()

    async def close(self) -> None:
        await self.real.close()

    def _break_if_failing(self) -> None:
        if self._failure is not None:
            self.failed.set()
            raise self._failure
