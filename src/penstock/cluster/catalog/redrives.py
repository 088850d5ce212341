"""Redrive tasks as the metadata store keeps them, so that a node that is started again goes on with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import MetadataStore
from penstock.cluster.store.values import decode, encode
from penstock.domain.queue.redrive import Choice, RedriveTask

# Some hundreds of kilobytes.
CHOICES_A_VALUE: Final = 10_000


class _Choices(msgspec.Struct, frozen=True):
    choices: tuple[Choice, ...]


class RedriveStore:
    def __init__(self, store: MetadataStore, keys: KeySpace) -> None:
        self._store = store
        self._keys = keys

    async def all(self) -> list[RedriveTask]:
        found = await self._store.range(self._keys.redrives)
        return [decode(entry.key, entry.value, RedriveTask) for entry in found.entries]

    async def put(self, task: RedriveTask) -> None:
        await self._store.txn(puts={self._keys.redrive(task.id): encode(task)})

    async def put_choices(self, task_id: str, choices: Sequence[Choice]) -> None:
        """In pieces, because a store may limit the size of a value; before the task that moves them."""
        prefix = self._keys.redrive_choices(task_id)
        for number, start in enumerate(range(0, len(choices), CHOICES_A_VALUE)):
            piece = tuple(choices[start : start + CHOICES_A_VALUE])
            await self._store.txn(puts={f"{prefix}{number}": encode(_Choices(piece))})

    async def choices(self, task_id: str) -> list[Choice]:
        found = await self._store.range(self._keys.redrive_choices(task_id))
        return [choice for entry in found.entries for choice in decode(entry.key, entry.value, _Choices).choices]

    async def remove(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            pieces = (await self._store.range(self._keys.redrive_choices(task_id))).entries
            await self._store.txn(deletes=[self._keys.redrive(task_id), *(piece.key for piece in pieces)])
