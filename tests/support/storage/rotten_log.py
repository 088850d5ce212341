"""Logs on a disk that grows old: which batches they have, and one of them spoiled."""

from __future__ import annotations

from typing import Protocol

from penstock.codec.batch.header import HEADER_BYTES, BatchHeader, walk_headers
from penstock.storage.files.protocols import Files
from penstock.storage.segment.facts import LOG_SUFFIX


class RottenDisk(Files, Protocol):
    def flip_bit(self, path: str, bit: int) -> None: ...


def segments_in(files: Files, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in sorted(files.file_sizes(directory)) if name.endswith(LOG_SUFFIX)]


def batches_in(files: Files, path: str) -> list[tuple[int, BatchHeader]]:
    file = files.open(path)
    return list(walk_headers(memoryview(file.read_at(0, file.size()))))


def spoil(files: RottenDisk, path: str, place: int) -> BatchHeader:
    """A bit of the records of one batch, by its place in the segment."""
    position, header = batches_in(files, path)[place]
    files.flip_bit(path, 8 * (position + HEADER_BYTES) + 3)
    return header
