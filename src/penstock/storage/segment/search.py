"""Is there a whole batch after a bad place? Then the bad place is damage, and not the torn end of the last write.

A batch is recognised by what a header must say (magic, a length that fits, a base offset at or past the one expected)
and by its checksum. A regular expression finds the candidates at memory speed; checksums are only computed for those.
The work is bounded: over the bound the answer is "yes", because cutting what may be somebody's data is the worse error.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final

from penstock.codec.batch.header import HEADER_BYTES, LENGTH_PREFIX_BYTES, BatchHeader, BatchProblem, check_batch
from penstock.storage.files.protocols import ReadableFile

_OFFSET = struct.Struct(">q")
_WINDOW_BYTES: Final = 4 << 20
# 16 times the largest segment by default: 0.1 s of checksums.
CHECKSUM_BYTES_MAX: Final = 1 << 30
# How far past the expected offset a batch of the same log may lie: what one segment could hold.
OFFSET_REACH: Final = 1 << 32


class FoundBatch:
    __slots__ = ("base_offset", "position")

    def __init__(self, position: int, base_offset: int) -> None:
        self.position = position
        # -1: the search gave up, and says nothing about it.
        self.base_offset = base_offset


_Attempt = Callable[[ReadableFile, int, int, int], tuple[FoundBatch | None, int]]


def find_batch_after(file: ReadableFile, *, start: int, end: int, offset_min: int) -> FoundBatch | None:
    """The first whole batch that begins in [start, end) with an offset of at least `offset_min`."""
    return _search(file, start, end, offset_min, _try)


def _search(file: ReadableFile, start: int, end: int, offset_min: int, attempt: _Attempt) -> FoundBatch | None:
    pattern = _header_pattern(offset_min)
    budget = CHECKSUM_BYTES_MAX
    position = start
    while end - position >= HEADER_BYTES:
        window = file.read_at(position, min(_WINDOW_BYTES + HEADER_BYTES, end - position))
        for match in pattern.finditer(window):
            place = match.start()
            found, cost = attempt(file, position + place, end, offset_min)
            budget -= cost
            if found is not None:
                return found
            if budget < 0:
                return FoundBatch(position + place, -1)
        position += _WINDOW_BYTES
    return None


def find_next_batch(file: ReadableFile, *, position: int, end: int, offset_min: int) -> FoundBatch | None:
    """The first whole batch after the bad one at `position`: where its length points to, if that is not bad too."""
    head = file.read_at(position, HEADER_BYTES)
    if len(head) == HEADER_BYTES:
        size = struct.unpack_from(">i", head, 8)[0] + LENGTH_PREFIX_BYTES
        if HEADER_BYTES <= size <= end - position:
            found, _ = _try(file, position + size, end, offset_min)
            if found is not None:
                return found
    return find_batch_after(file, start=position + 1, end=end, offset_min=offset_min)


def _header_pattern(offset_min: int) -> re.Pattern[bytes]:
    # The upper half of the base offset is the expected one, or one more when the lower half wraps.
    halves = {_OFFSET.pack(offset_min)[:4], _OFFSET.pack(min(offset_min + OFFSET_REACH, 2**63 - 1))[:4]}
    upper = b"|".join(re.escape(half) for half in sorted(halves))
    # Looked ahead, not consumed: candidates may overlap.
    return re.compile(rb"(?=(?:%b).{4}[\x00-\x7f].{7}\x02)" % upper, re.DOTALL)


def _try(file: ReadableFile, position: int, end: int, offset_min: int) -> tuple[FoundBatch | None, int]:
    header, cost = _whole_at(file, position, end, offset_min)
    if header is None or _is_misplaced(file, header, position + header.size_bytes, end, offset_min):
        return None, cost
    return FoundBatch(position, header.base_offset), cost


def _is_misplaced(file: ReadableFile, found: BatchHeader, position: int, end: int, offset_min: int) -> bool:
    """Whether those behind it say so: no checksum covers a base offset, and one that had rotted too would make damage
    of everything up to it, and of all that follows."""
    second, _ = _whole_at(file, position, end, offset_min)
    if second is None:
        later = _search(file, position, end, offset_min, _try_alone)
        return later is not None and offset_min <= later.base_offset < found.next_offset
    if second.base_offset == found.next_offset:
        return False
    third, _ = _whole_at(file, position + second.size_bytes, end, offset_min)
    return second.base_offset < found.next_offset or (third is not None and third.base_offset == second.next_offset)


def _try_alone(file: ReadableFile, position: int, end: int, offset_min: int) -> tuple[FoundBatch | None, int]:
    """As `_try`, and whoever follows is not asked."""
    header, cost = _whole_at(file, position, end, offset_min)
    return None if header is None else FoundBatch(position, header.base_offset), cost


def _whole_at(file: ReadableFile, position: int, end: int, offset_min: int) -> tuple[BatchHeader | None, int]:
    """A batch of this log, and how many bytes were read to know it."""
    head = file.read_at(position, HEADER_BYTES) if end - position >= HEADER_BYTES else b""
    if len(head) < HEADER_BYTES:
        return None, 0
    base_offset, length = struct.unpack_from(">qi", head)
    size = length + LENGTH_PREFIX_BYTES
    if not offset_min <= base_offset <= offset_min + OFFSET_REACH or size < HEADER_BYTES or position + size > end:
        return None, 0
    header = check_batch(file.read_at(position, size))
    return (None if isinstance(header, BatchProblem) else header), size
