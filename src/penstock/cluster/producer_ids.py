"""Producer ids, unique in the cluster for ever.

A node takes a block of 1,000 by compare-and-set and hands out from it in memory. What is left of a block when
the node ends is never used: there are 2^63 ids, and a node that restarted every second would need 290 million
years.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import (
    Absent,
    Compare,
    MetadataStore,
    ModRevisionIs,
    StoreDamagedError,
    StoreUnavailableError,
)
from penstock.cluster.store.values import decode, encode

BLOCK_IDS: Final = 1000
_ATTEMPTS_MAX: Final = 100


class ProducerIds:
    def __init__(self, store: MetadataStore, keys: KeySpace, *, block_ids: int = BLOCK_IDS) -> None:
        self._store = store
        self._key = keys.producer_ids
        self._block_ids = block_ids
        self._next = 0
        self._end = 0
        # One refill at a time: the second in line finds the block that the first one took.
        self._refill = asyncio.Lock()

    def take_now(self) -> int | None:
        """An id from the block in hand; None if it is used up."""
        if self._next == self._end:
            return None
        taken = self._next
        self._next += 1
        return taken

    async def take(self) -> int:
        while (taken := self.take_now()) is None:
            async with self._refill:
                if self._next == self._end:
                    self._next = await self._take_block()
                    self._end = self._next + self._block_ids
        return taken

    async def _take_block(self) -> int:
        """Ours once the transaction is on disk. If its outcome is unknown the block is lost."""
        for _ in range(_ATTEMPTS_MAX):
            entry = await self._store.get(self._key)
            first = 0 if entry is None else decode(self._key, entry.value, int)
            if first < self._end:
                # Ids are never handed out twice: a producer's batches would be taken for another's.
                raise StoreDamagedError(f"metadata key {self._key} is at {first}, and was at {self._end} already")
            compare: Compare = Absent(self._key) if entry is None else ModRevisionIs(self._key, entry.mod_revision)
            result = await self._store.txn([compare], {self._key: encode(first + self._block_ids)})
            if result.ok:
                return first
        raise StoreUnavailableError(f"metadata key {self._key} is changed by others all the time, try again")
