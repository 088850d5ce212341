"""A client's batch from which some records are left out, because they are to be delivered later.

Their offsets stay empty, as compaction would leave them: the others keep their places, and the producer's sequence
and the offset it was answered stay true. A batch that loses all of its records is kept without any.

Which records those are is for others to say. Here they are found by a name that stands somewhere in them: a batch is
searched as a whole, and only those that hold the name are decoded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence

import msgspec

from penstock.base.search import find
from penstock.codec.batch.header import BatchBytes, BatchHeader, BatchProblem
from penstock.codec.batch.records import StoredRecord
from penstock.codec.batch.rewrite import empty_batch, rebuild_batch
from penstock.codec.batch.varint import read_varint
from penstock.codec.batch.walk import parse_some, record_starts


class OpenBatch(msgspec.Struct, frozen=True):
    """A batch in plain, with the place where each record begins and, after the last, the end."""

    header: BatchHeader
    payload: bytes
    starts: array[int]


def open_payload(header: BatchHeader, payload: bytes | memoryview) -> OpenBatch | BatchProblem:
    """Of a payload from `read_payload`."""
    plain = bytes(payload)
    starts = record_starts(header, plain)
    if starts is None:
        return BatchProblem(f"{header.record_count} records do not fill {len(plain)} bytes")
    return OpenBatch(header, plain, starts)


def holds_any(plain: BatchBytes, names: Sequence[bytes]) -> bool:
    return any(find(plain, name) >= 0 for name in names)


def records_with(opened: OpenBatch, names: Sequence[bytes]) -> list[tuple[int, StoredRecord]] | BatchProblem:
    """The records that hold one of the names, each with its number in the batch."""
    numbers = sorted({number for name in names for number in _numbers_with(opened, name)})
    found: list[tuple[int, StoredRecord]] = []
    for first, last in _runs(numbers):
        records = parse_some(opened.header, opened.payload, opened.starts, first, last)
        if isinstance(records, BatchProblem):
            return records
        found += zip(range(first, last + 1), records, strict=True)
    return found


def _numbers_with(opened: OpenBatch, name: bytes) -> Iterator[int]:
    payload, starts = opened.payload, opened.starts
    position = find(payload, name)
    while position >= 0:
        number = bisect_right(starts, position) - 1
        yield number
        # One is enough: on to the next record.
        position = find(payload, name, starts[number + 1])


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of those that follow each other."""
    start = 0
    for place, number in enumerate(numbers):
        if place + 1 == len(numbers) or numbers[place + 1] != number + 1:
            yield numbers[start], number
            start = place + 1


def leave_out(opened: OpenBatch, numbers: Collection[int]) -> bytearray:
    """The batch without those records, compressed as it was."""
    header, payload, starts = opened.header, opened.payload, opened.starts
    left_out = frozenset(numbers)
    kept = [number for number in range(header.record_count) if number not in left_out]
    if not kept:
        return empty_batch(header)
    return rebuild_batch(
        header,
        [memoryview(payload)[starts[first] : starts[last + 1]] for first, last in _runs(kept)],
        record_count=len(kept),
        newest_ms=header.base_timestamp + max(_timestamp_delta(payload, starts[number]) for number in kept),
    )


def _timestamp_delta(payload: bytes, start: int) -> int:
    _size, position = read_varint(payload, start)
    return read_varint(payload, position + 1)[0]
