"""Who a data directory is: the node it belongs to, and the lives that it was opened under.

    penstock-data/node     one small file, with a checksum

Its id is drawn when it is made and never derived from its place: a wiped disk is another directory, and a copy of one
is found out by the epochs, which go on in one of the two alone.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from msgspec.structs import replace

from penstock.base.typed_values import read_json
from penstock.domain.replication.membership import DirectoryRecord
from penstock.storage.files.protocols import Files
from penstock.storage.files.small import read_small_file, write_small_file
from penstock.storage.store import LogStore

NODE_FILE: Final = "node"
_MAGIC: Final = b"psnode_1"


class DirectoryIdentity:
    """The file as it was found, and as it is written from now on."""

    def __init__(self, store: LogStore, found: DirectoryRecord | None, *, boot_id: str) -> None:
        self._store = store
        self._found = found
        self.boot_id = boot_id

    @classmethod
    async def open(cls, store: LogStore, *, boot_id: str) -> DirectoryIdentity:
        return cls(store, await asyncio.to_thread(_read, store), boot_id=boot_id)

    @property
    def found(self) -> DirectoryRecord | None:
        """None: the directory is of no node yet, or nothing can be read of whose it is."""
        return self._found

    @property
    def record(self) -> DirectoryRecord:
        """As it was when it was opened: what is written since is about this life, by which nobody judges it."""
        assert self._found is not None, "the directory is of no node yet"
        return self._found

    def begin(self, *, cluster_id: str, node_id: int, directory_id: str) -> None:
        """The directory of a node from now on; it is on the disk with the first epoch."""
        self._found = DirectoryRecord(directory_id=directory_id, cluster_id=cluster_id, node_id=node_id)

    async def keep_epochs(self, epochs: tuple[int, ...]) -> None:
        record = replace(self.record, epochs=epochs, boot_id=self.boot_id, is_stopped_cleanly=False)
        await asyncio.to_thread(_write, self._store, record)


def read_identity(files: Files, root: str) -> DirectoryRecord | None:
    """As it was written last. Blocking."""
    payload = read_small_file(files, root, NODE_FILE, _MAGIC)
    try:
        return None if payload is None else read_json(payload, DirectoryRecord)
    except msgspec.DecodeError:
        return None


def _read(store: LogStore) -> DirectoryRecord | None:
    record = read_identity(store.context.files, store.root)
    # Storage knows best whether everything was on the disk when it was left.
    return None if record is None else replace(record, is_stopped_cleanly=store.statistics.was_clean)


def _write(store: LogStore, record: DirectoryRecord) -> None:
    write_small_file(store.context.files, store.root, NODE_FILE, _MAGIC, msgspec.json.encode(record))
