"""Redrive tasks as the metadata store keeps them, so that a node that is started again goes on with them, or another
one that leads their source by then.

A task is written by one node at a time: by compare-and-set, with the epoch of its owner's leadership in the value. Who
finds that somebody else has written it since has lost it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.cluster.store.keys import KeySpace
from penstock.cluster.store.protocol import Absent, MetadataStore, ModRevisionIs
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
        # Of each task, as this node last read or wrote it.
        self._revisions: dict[str, int] = {}

    async def all(self) -> list[RedriveTask]:
        found = await self._store.range(self._keys.redrives)
        self._revisions = {entry.key: entry.mod_revision for entry in found.entries}
        return [decode(entry.key, entry.value, RedriveTask) for entry in found.entries]

    async def put(self, task: RedriveTask) -> bool:
        """False: it is gone, or another leadership has written it since."""
        if await self._put(task):
            return True
        # Perhaps by this one: by a write whose outcome nobody knows, or by two at the same time.
        key = self._keys.redrive(task.id)
        stored = await self._store.get(key)
        if stored is None or decode(key, stored.value, RedriveTask).owner_epoch != task.owner_epoch:
            return False
        self._revisions[key] = stored.mod_revision
        return await self._put(task)

    async def _put(self, task: RedriveTask) -> bool:
        key = self._keys.redrive(task.id)
        known = self._revisions.get(key)
        compare = Absent(key) if known is None else ModRevisionIs(key, known)
        result = await self._store.txn([compare], {key: encode(task)})
        if result.ok:
            self._revisions[key] = result.revision
        return result.ok

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
            self._revisions.pop(self._keys.redrive(task_id), None)
            pieces = (await self._store.range(self._keys.redrive_choices(task_id))).entries
            await self._store.txn(deletes=[self._keys.redrive(task_id), *(piece.key for piece in pieces)])
