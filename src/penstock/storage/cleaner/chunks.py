"""Reads a segment for the cleaner: whole, checked batches, a bounded amount at a time. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from penstock.codec.batch.compression import Codec
from penstock.codec.batch.header import HEADER_BYTES, BatchHeader, BatchProblem, check_batch, read_header
from penstock.codec.batch.records import BASE_MAX, RECORD_BYTES_MIN, read_payload
from penstock.storage.errors import LogDamagedError
from penstock.storage.files.protocols import File
from penstock.storage.segment.damage_search import find_damage
from penstock.storage.segment.facts import Segment

# Some ten thousand records: enough that calls into native code cost less than what they do.
CHUNK_BYTES: Final = 4 << 20
# Of one portion, in plain: compressed batches may be a hundred times larger then.
PLAIN_BYTES_MAX: Final = 8 << 20
# Of one portion: where batches are small, what is done for each of them in Python counts.
PORTION_BATCHES_MAX: Final = 2048
# Looked at before others have the interpreter: some microseconds each.
_BATCHES_AT_ONCE: Final = 256

# Header, and all of the batch as it stands on disk.
CheckedBatch = tuple[BatchHeader, memoryview]


class StoredBatch(msgspec.Struct, frozen=True, gc=False):
    header: BatchHeader
    # All of it, as it stands on disk.
    data: memoryview
    # Its records in plain; None: it has none, or they are not for users, or cannot be read.
    payload: bytes | memoryview | None


def read_batches(
    file: File, segment: Segment, *, start: int, next_offset: int, breathe: Callable[[], None]
) -> Iterator[list[CheckedBatch]]:
    """The batches from `start` on, which begins one at `next_offset`; those of one read together."""
    position = start
    wanted = CHUNK_BYTES
    while position < segment.size:
        chunk = memoryview(file.read_at(position, min(wanted, segment.size - position)))
        found, place, problem = _check_all(chunk, next_offset, breathe)
        if found:
            wanted = CHUNK_BYTES
            next_offset = found[-1][0].next_offset
            yield found
        elif problem is not None and problem.is_truncated and len(chunk) == wanted:
            header = read_header(chunk)
            wanted = header.size_bytes if isinstance(header, BatchHeader) else wanted * 2
            continue
        if not found or (problem is not None and not problem.is_truncated):
            reason = problem.reason if problem is not None else "the file ends here"
            end = (segment.size, segment.next_offset)
            raise LogDamagedError(
                find_damage(
                    file,
                    segment,
                    segment.index,
                    position=position + place,
                    offset=next_offset,
                    end=end,
                    reason=reason,
                )
            )
        position += place


def _check_all(
    chunk: memoryview, next_offset: int, breathe: Callable[[], None]
) -> tuple[list[CheckedBatch], int, BatchProblem | None]:
    found: list[CheckedBatch] = []
    place = 0
    while place < len(chunk):
        header = check_batch(chunk, place)
        if isinstance(header, BatchProblem):
            return found, place, header
        if header.base_offset != next_offset:
            return found, place, BatchProblem(f"base offset is {header.base_offset}, expected {next_offset}")
        end = place + header.size_bytes
        found.append((header, chunk[place:end]))
        next_offset, place = header.next_offset, end
        if len(found) % _BATCHES_AT_ONCE == 0:
            breathe()
    return found, place, None


def open_portions(batches: Iterable[CheckedBatch], breathe: Callable[[], None]) -> Iterator[list[StoredBatch]]:
    """The same batches with their records in plain, so many at a time as memory is meant to hold."""
    portion: list[StoredBatch] = []
    plain_bytes = 0
    for header, data in batches:
        payload = _open(header, data)
        portion.append(StoredBatch(header, data, payload))
        if payload is not None:
            plain_bytes += len(payload)
        if plain_bytes >= PLAIN_BYTES_MAX or len(portion) >= PORTION_BATCHES_MAX:
            yield portion
            portion, plain_bytes = [], 0
        if len(portion) % _BATCHES_AT_ONCE == 0:
            breathe()
    if portion:
        yield portion


def _open(header: BatchHeader, data: memoryview) -> bytes | memoryview | None:
    if header.record_count == 0 or header.is_control:
        return None
    if header.codec == Codec.NONE and abs(header.base_timestamp) <= BASE_MAX:
        payload = data[HEADER_BYTES:]
        return payload if header.record_count * RECORD_BYTES_MIN <= len(payload) else None
    plain = read_payload(data, 0, header)
    # Its checksum is right, so this is what its producer sent: it is left alone.
    return None if isinstance(plain, BatchProblem) else plain
