"""The data directory as a node's own: as it was found, and what is written into its identity while the node lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.cluster.generation import FIRST_GENERATION
from penstock.domain.replication.membership import DirectoryRecord
from penstock.storage.files.identity import DirectoryIdentity, read_identity, write_identity
from penstock.storage.store import LogStore


class NodeDirectory:
    def __init__(self, store: LogStore, found: DirectoryIdentity | None, *, boot_id: str) -> None:
        self._store = store
        # As it is on the disk, or will be with the first epoch.
        self._identity = found
        self._record = None if found is None else _record(found, is_stopped_cleanly=store.statistics.was_clean)
        self.boot_id = boot_id
        # What is written is made from what was written before.
        self._turn = asyncio.Lock()

    @classmethod
    def open(cls, store: LogStore, *, boot_id: str) -> NodeDirectory:
        """One small file, before anybody is served. Raises DataDirectoryError: nobody can say whose it is."""
        return cls(store, read_identity(store.context.files, store.root), boot_id=boot_id)

    @property
    def found(self) -> DirectoryRecord | None:
        """None: the directory is of no node yet."""
        return self._record

    @property
    def record(self) -> DirectoryRecord:
        """As the life before left it: what this one writes is about itself, by which only the next is judged."""
        assert self._record is not None, "the directory is of no node yet"
        return self._record

    @property
    def metadata_revision(self) -> int:
        """The highest that is known to have been acted on here."""
        return 0 if self._identity is None else self._identity.metadata_revision

    @property
    def generation(self) -> int:
        """Of the metadata that it has acted on."""
        return FIRST_GENERATION if self._identity is None else self._identity.generation

    def begin_generation(self, generation: int) -> None:
        """The metadata were adopted since; it is on the disk with the next epoch."""
        assert self._identity is not None, "the directory is of no node yet"
        self._identity = self._identity.begin_generation(generation)

    def begin(self, *, cluster_id: str, node_id: int, directory_id: str) -> None:
        """The directory of a node from now on; it is on the disk with the first epoch."""
        self._identity = DirectoryIdentity(directory_id, cluster_id, node_id)
        self._record = _record(self._identity, is_stopped_cleanly=False)

    async def keep_epochs(self, epochs: tuple[int, ...]) -> None:
        """Durable when it returns; if another life begins in this process, it is judged by it. OSError: it is not."""
        identity = await self._write(lambda identity: identity.begin_life(epochs, self.boot_id))
        self._record = _record(identity, is_stopped_cleanly=False)

    async def keep_revision(self, metadata_revision: int) -> None:
        """Durable when it returns, if it is higher than what is. OSError: it is not."""
        # Without an epoch it is of no node yet on the disk, and becomes one with the first.
        if self._identity is not None and self._identity.broker_epochs:
            await self._write(lambda identity: identity.act_on(metadata_revision))

    async def _write(self, change: Callable[[DirectoryIdentity], DirectoryIdentity]) -> DirectoryIdentity:
        async with self._turn:
            assert self._identity is not None, "the directory is of no node yet"
            changed = change(self._identity)
            if changed != self._identity:
                await asyncio.to_thread(write_identity, self._store.context.files, self._store.root, changed)
                self._identity = changed
            return changed


def _record(identity: DirectoryIdentity, *, is_stopped_cleanly: bool) -> DirectoryRecord:
    return DirectoryRecord(
        directory_id=identity.directory_id,
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        epochs=identity.broker_epochs,
        boot_id=identity.boot_id,
        is_stopped_cleanly=is_stopped_cleanly,
    )
