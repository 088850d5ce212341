"""Redrive tasks as the metadata store keeps them, so that a node that is started again goes on with them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cluster.keys import KeySpace
from penstock.cluster.metadata_store import MetadataStore
from penstock.cluster.values import decode, encode
from penstock.domain.redrive import RedriveTask


class RedriveStore:
    def __init__(self, store: MetadataStore, keys: KeySpace) -> None:
        self._store = store
        self._keys = keys

    async def all(self) -> list[RedriveTask]:
        found = await self._store.range(self._keys.redrives)
        return [decode(entry.key, entry.value, RedriveTask) for entry in found.entries]

    async def put(self, task: RedriveTask) -> None:
        await self._store.txn(puts={self._keys.redrive(task.id): encode(task)})

    async def remove(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            await self._store.txn(deletes=[self._keys.redrive(task_id)])
