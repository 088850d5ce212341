"""Who a data directory is: the node it belongs to, and the lives that it was opened under.

    <root>/identity     magic · length · CRC-32C · the fields below in MessagePack (`files/small`)

A node's name and the path of its directory prove nothing: a disk may have been wiped, restored from a backup or copied.
The directory's own random number, the lives of its node and the boot of the machine tell whether what was acknowledged
from here is still here. Each life writes its broker epoch here before it asks to be admitted. Whether the life before
ended cleanly is not said here: the mark of that is the store's (`clean_shutdown`), which knows what is on the disk.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.storage.errors import DataDirectoryError
from penstock.storage.files.protocols import Files
from penstock.storage.files.small import read_small_file, write_small_file

IDENTITY_FILE: Final = "identity"
_MAGIC: Final = b"psident1"


class DirectoryIdentity(msgspec.Struct, frozen=True, array_like=True):
    # Random, made with the directory.
    directory_id: str
    cluster_id: str
    node_id: int
    # The last that was admitted, and the newest.
    broker_epochs: tuple[int, ...] = ()
    # Of the machine, while the last life ran: the same one has forgotten nothing of what was written, synced or not.
    boot_id: str = ""
    # The highest revision of the metadata that was acted on: a store that is behind it was restored from a backup.
    metadata_revision: int = 0
    # Of the metadata: revisions of one say nothing about those of another.
    generation: int = 1

    def begin_generation(self, generation: int) -> DirectoryIdentity:
        if generation == self.generation:
            return self
        return msgspec.structs.replace(self, generation=generation, metadata_revision=0)

    def begin_life(self, broker_epochs: tuple[int, ...], boot_id: str) -> DirectoryIdentity:
        return msgspec.structs.replace(self, broker_epochs=broker_epochs, boot_id=boot_id).act_on(max(broker_epochs))

    def act_on(self, metadata_revision: int) -> DirectoryIdentity:
        return msgspec.structs.replace(self, metadata_revision=max(metadata_revision, self.metadata_revision))


# Made here, before there are threads: see base/typed_values.
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(DirectoryIdentity).decode


def read_identity(files: Files, root: str) -> DirectoryIdentity | None:
    """Blocking. None: the directory is new, or of a version that did not know of it."""
    payload = read_small_file(files, root, IDENTITY_FILE, _MAGIC)
    path = f"{root}/{IDENTITY_FILE}"
    if payload is None:
        if not files.exists(path):
            return None
        advice = "without it the node comes back as one that has lost everything it had"
        raise DataDirectoryError(f"{path} is damaged: put back a good copy, or remove it, and {advice}")
    return _decode(payload)


def write_identity(files: Files, root: str, identity: DirectoryIdentity) -> None:
    """Blocking; durable when it returns."""
    write_small_file(files, root, IDENTITY_FILE, _MAGIC, _encode(identity))
