"""A copy of everything in a metadata store, in one file beside it: what `penstock metadata rebuild` restores from.

    magic (8) · length (4) · CRC-32C (4) · revision and entries in MessagePack

Topics' settings, rules, credentials and queues stand nowhere but in the store; the copy is what is left of them if the
store is not. It also tells that there was a store, and how far it had come: a file that is gone, empty or older than
its copy is not taken for a new beginning. What is bound to a session is left out: it would come back without one.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from penstock.storage.files.small import pack_small_file, unpack_small_file

SUFFIX: Final = ".copy"
_UNFINISHED: Final = ".tmp"
_MAGIC: Final = b"psmeta_1"
# It holds what proves passwords.
_MODE: Final = 0o600


class CopiedEntry(msgspec.Struct, frozen=True, array_like=True):
    key: str
    value: bytes
    mod_revision: int


class MetadataCopy(msgspec.Struct, frozen=True, array_like=True):
    revision: int
    entries: tuple[CopiedEntry, ...]


class UnreadableCopy(msgspec.Struct, frozen=True):
    """There is one, and it is not what was written."""

    path: str


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(MetadataCopy)


def remove_unfinished_copies(path: str) -> None:
    """Blocking. What processes have left that were killed while they wrote a copy. One that writes at this moment finds
    its file gone, says so and writes another."""
    unfinished = re.compile(re.escape(Path(path).name) + r"\.\d+" + re.escape(_UNFINISHED))
    for found in Path(path).parent.iterdir():
        if unfinished.fullmatch(found.name):
            # It takes room, and harms nobody if it stays.
            with suppress(OSError):
                found.unlink()


def write_copy(path: str, copy: MetadataCopy) -> None:
    """Blocking. Durable when it returns; before that the one before it is there."""
    # Several processes may share a store, and each keeps the copy.
    temporary = f"{path}.{os.getpid()}{_UNFINISHED}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pack_small_file(_MAGIC, _encoder.encode(copy)))
        file.flush()
        os.fsync(descriptor)
    Path(temporary).replace(path)
    directory = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_copy(path: str) -> MetadataCopy | UnreadableCopy | None:
    """Blocking. None: there is none."""
    try:
        payload = unpack_small_file(_MAGIC, Path(path).read_bytes())
    except FileNotFoundError:
        return None
    return UnreadableCopy(path) if payload is None else _decoder.decode(payload)
