"""Reads a segment for the cleaner: whole, checked batches, a bounded number of bytes at a time. Blocking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from penstock.codec.record_batch import BatchHeader, BatchProblem, check_batch, read_header
from penstock.codec.records import read_payload
from penstock.storage.file_protocols import File
from penstock.storage.segment import Segment
from penstock.storage.storage_errors import Damage, StorageError

# Some ten thousand records: enough that calls into native code cost less than what they do, and little enough that
# copying them keeps the interpreter for well under a millisecond.
CHUNK_BYTES: Final = 1 << 23
# Of one portion, in plain: compressed batches may be a hundred times larger then.
PLAIN_BYTES_MAX: Final = 8 << 20


class LogDamagedError(StorageError):
    """The log cannot be cleaned: some of it cannot be read."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(damage.describe())
        self.damage = damage


class StoredBatch(msgspec.Struct, frozen=True):
    header: BatchHeader
    # All of it, as it stands on disk.
    data: memoryview
    # Its records in plain; None: it has none, or they are not for users, or cannot be read.
    payload: bytes | memoryview | None


def read_batches(file: File, segment: Segment, *, start: int, next_offset: int) -> Iterator[list[StoredBatch]]:
    """The batches from `start` on, which begins one at `next_offset`; those of one read together."""
    position = start
    wanted = CHUNK_BYTES
    while position < segment.size:
        chunk = memoryview(file.read_at(position, min(wanted, segment.size - position)))
        found, place, problem = _check_all(chunk, next_offset)
        if found:
            wanted = CHUNK_BYTES
            next_offset = found[-1].header.next_offset
            yield found
        elif problem is not None and problem.is_truncated and len(chunk) == wanted:
            header = read_header(chunk)
            wanted = header.size_bytes if isinstance(header, BatchHeader) else wanted * 2
            continue
        if not found or (problem is not None and not problem.is_truncated):
            reason = problem.reason if problem is not None else "the file ends here"
            raise LogDamagedError(Damage(next_offset, segment.base_offset, position + place, reason))
        position += place


def _check_all(chunk: memoryview, next_offset: int) -> tuple[list[StoredBatch], int, BatchProblem | None]:
    found: list[StoredBatch] = []
    place = 0
    while place < len(chunk):
        header = check_batch(chunk, place)
        if isinstance(header, BatchHeader) and header.base_offset != next_offset:
            header = BatchProblem(f"base offset is {header.base_offset}, expected {next_offset}")
        if isinstance(header, BatchProblem):
            return found, place, header
        end = place + header.size_bytes
        found.append(StoredBatch(header, chunk[place:end], None))
        next_offset, place = header.next_offset, end
    return found, place, None


def open_portions(batches: Iterable[StoredBatch]) -> Iterator[list[StoredBatch]]:
    """The same batches with their records in plain, so many at a time as memory is meant to hold."""
    portion: list[StoredBatch] = []
    plain_bytes = 0
    for batch in batches:
        opened = _open(batch)
        portion.append(opened)
        plain_bytes += len(opened.payload or b"")
        if plain_bytes >= PLAIN_BYTES_MAX:
            yield portion
            portion, plain_bytes = [], 0
    if portion:
        yield portion


def _open(batch: StoredBatch) -> StoredBatch:
    header = batch.header
    if header.is_control or header.record_count == 0:
        return batch
    payload = read_payload(batch.data, 0, header)
    # Its checksum is right, so this is what its producer sent: it is left alone.
    return batch if isinstance(payload, BatchProblem) else StoredBatch(header, batch.data, payload)
