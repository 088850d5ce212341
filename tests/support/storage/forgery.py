"""Batches on a disk that say something else than they said, with checksums that are right: what no check of one replica
can find."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from penstock.base.checksum import crc32c
from penstock.codec.batch.header import walk_headers
from penstock.storage.files.protocols import Files

_SUFFIX: Final = ".log"
_CHECKSUM: Final = struct.Struct(">I")
_CHECKSUM_AT: Final = 17
_SUMMED_FROM: Final = 21


def forge(files: Files, before: bytes, after: bytes, root: str = "/data") -> int:
    """In every log of a disk in memory, of which no node runs. How many batches are others now."""
    count = 0
    for path in _paths(files, root):
        file = files.open(path)
        found, data = _forged(file.read_at(0, file.size()), before, after)
        if found:
            file.write_at(data, 0)
        file.close()
        count += found
    return count


def forge_directory(root: Path, before: bytes, after: bytes) -> int:
    """The same of a real directory."""
    count = 0
    for path in sorted(root.rglob(f"*{_SUFFIX}")):
        found, data = _forged(path.read_bytes(), before, after)
        if found:
            path.write_bytes(data)
        count += found
    return count


def _paths(files: Files, directory: str) -> list[str]:
    paths: list[str] = []
    for name in sorted(files.list_directory(directory)):
        path = f"{directory}/{name}"
        paths += [path] if path.endswith(_SUFFIX) else _paths(files, path)
    return paths


def _forged(data: bytes, before: bytes, after: bytes) -> tuple[int, bytes]:
    assert len(before) == len(after), "everything stays at its place"
    if before not in data:
        return 0, data
    forged, count = bytearray(data), 0
    for place, header in walk_headers(data):
        end = place + header.size_bytes
        batch = bytes(forged[place:end])
        if before in batch:
            count += 1
            forged[place:end] = batch.replace(before, after)
            _CHECKSUM.pack_into(forged, place + _CHECKSUM_AT, crc32c(bytes(forged[place + _SUMMED_FROM : end])))
    return count, bytes(forged)
