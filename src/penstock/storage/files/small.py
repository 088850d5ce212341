"""Small files of our own: whole and checked, or not there.

    magic (8) · payload length (4) · CRC-32C of the payload (4) · payload

Written to a temporary name, synced, renamed, and the directory synced: after a crash the old or the new one is there,
never half of one. What a disk does to it afterwards is caught by the checksum, and each reader can do without.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.base.checksum import crc32c
from penstock.storage.files.protocols import File, Files, WritableBytes

_HEAD = struct.Struct("<8sII")
TEMPORARY_SUFFIX: Final = ".tmp"


def write_small_file(files: Files, directory: str, name: str, magic: bytes, payload: bytes) -> None:
    """Durable when it returns."""
    write_temporary(files, directory, name, magic, payload).sync()
    files.rename(f"{directory}/{name}{TEMPORARY_SUFFIX}", f"{directory}/{name}")
    files.sync_directory(directory)


def write_temporary(files: Files, directory: str, name: str, magic: bytes, payload: bytes) -> File:
    """The first of the steps, for callers that sync many of them together."""
    path = f"{directory}/{name}{TEMPORARY_SUFFIX}"
    # A leftover of a crash may be longer than what is written now.
    files.remove(path)
    file = files.open(path, create=True)
    write_fully(file, pack_small_file(magic, payload), 0)
    return file


def pack_small_file(magic: bytes, payload: bytes) -> bytes:
    return _HEAD.pack(magic, len(payload), crc32c(payload)) + payload


def unpack_small_file(magic: bytes, data: bytes) -> bytes | None:
    """The payload; None when it is not what was written."""
    if len(data) < _HEAD.size:
        return None
    found_magic, length, checksum = _HEAD.unpack_from(data)
    payload = data[_HEAD.size :]
    if found_magic != magic or length != len(payload) or crc32c(payload) != checksum:
        return None
    return payload


def read_small_file(files: Files, directory: str, name: str, magic: bytes) -> bytes | None:
    """None when it is missing or not what was written: the caller rebuilds what it said."""
    try:
        file = files.open(f"{directory}/{name}")
    except FileNotFoundError:
        return None
    return unpack_small_file(magic, file.read_at(0, file.size()))


def write_fully(file: File, data: WritableBytes, position: int) -> None:
    """Goes on after a short write until everything is written or the system says why not."""
    view = memoryview(data)
    while len(view) > 0:
        count = file.write_at(view, position)
        assert count > 0, "a write of at least one byte wrote none and gave no reason"
        view = view[count:]
        position += count
