"""The aborted transactions of a log: what readers of committed records must leave out.

An entry is (producer id, first offset, offset of the marker, last stable offset after it). Entries are in the order
of their markers. No transaction that ends after an entry began below that entry's last stable offset, which is where a
search may stop.

Four numbers an entry, 32 bytes: a million aborted transactions that retention still holds are 32 MB.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

_COUNT: Final = struct.Struct("<I")
_ITEM_BYTES: Final = 8
assert array("q").itemsize == _ITEM_BYTES


class AbortedTransaction(msgspec.Struct, frozen=True, gc=False):
    producer_id: int
    first_offset: int
    # Of the abort marker.
    last_offset: int
    last_stable_offset: int


class AbortedIndex:
    __slots__ = ("_first_offsets", "_last_offsets", "_producer_ids", "_stable_offsets")

    def __init__(self) -> None:
        self._producer_ids = array("q")
        self._first_offsets = array("q")
        self._last_offsets = array("q")
        self._stable_offsets = array("q")

    def __len__(self) -> int:
        return len(self._last_offsets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbortedIndex) and self._columns() == other._columns()

    __hash__ = None  # type: ignore[assignment]

    def append(self, entry: AbortedTransaction) -> None:
        assert not self._last_offsets or self._last_offsets[-1] < entry.last_offset
        self._append(entry)

    def append_all(self, entries: Sequence[AbortedTransaction]) -> None:
        """Those that ended at one place, where their ends are lost: by their first offsets."""
        for number, entry in enumerate(entries):
            assert entry.last_offset == entries[0].last_offset
            if number == 0:
                self.append(entry)
            else:
                self._append(entry)

    def _append(self, entry: AbortedTransaction) -> None:
        self._producer_ids.append(entry.producer_id)
        self._first_offsets.append(entry.first_offset)
        self._last_offsets.append(entry.last_offset)
        self._stable_offsets.append(entry.last_stable_offset)

    @property
    def last_offset(self) -> int:
        """Of the last marker; -1 if there is none. Who reads above it need not be told of anybody."""
        return self._last_offsets[-1] if self._last_offsets else -1

    def between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those with anything in the offsets from `start` to below `end`, in the order of their first offsets.

        In that order because kafkajs takes them one after the other and never looks back; other clients sort.
        """
        found: list[AbortedTransaction] = []
        for place in range(bisect_left(self._last_offsets, start), len(self)):
            if self._first_offsets[place] < end:
                found.append(self._entry(place))
            if self._stable_offsets[place] >= end:
                break
        found.sort(key=_first_offset)
        return found

    def drop_before(self, log_start: int) -> int:
        """The log begins at `log_start` now. An entry stays while its marker is there: readers may still meet it."""
        count = bisect_left(self._last_offsets, log_start)
        if count:
            for column in self._columns():
                del column[:count]
        return count

    def remove(self, marker_offsets: Collection[int]) -> int:
        """Those with a marker at one of the offsets; how many there were."""
        gone = []
        for offset in sorted(set(marker_offsets)):
            place = bisect_left(self._last_offsets, offset)
            if place < len(self) and self._last_offsets[place] == offset:
                gone.append(place)
        if gone:
            for column in self._columns():
                column[:] = _without(column, gone)
        return len(gone)

    def truncate_to(self, log_end: int) -> None:
        """The log ends before `log_end` now, and the markers from there on are gone."""
        place = bisect_left(self._last_offsets, log_end)
        for column in self._columns():
            del column[place:]

    def entries(self) -> list[AbortedTransaction]:
        return [self._entry(place) for place in range(len(self))]

    def copy(self) -> AbortedIndex:
        index = AbortedIndex()
        for column, copied in zip(self._columns(), index._columns(), strict=True):
            copied.extend(column)
        return index

    def to_bytes(self) -> bytes:
        return _COUNT.pack(len(self)) + b"".join(_little_endian(column) for column in self._columns())

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> AbortedIndex:
        """The caller has checked that these are bytes of `to_bytes`."""
        index = cls()
        (count,) = _COUNT.unpack_from(data)
        size = count * _ITEM_BYTES
        for number, column in enumerate(index._columns()):
            start = _COUNT.size + number * size
            column.frombytes(data[start : start + size])
            if sys.byteorder == "big":
                column.byteswap()
        return index

    def _entry(self, place: int) -> AbortedTransaction:
        return AbortedTransaction(
            self._producer_ids[place],
            self._first_offsets[place],
            self._last_offsets[place],
            self._stable_offsets[place],
        )

    def _columns(self) -> tuple[array[int], array[int], array[int], array[int]]:
        return self._producer_ids, self._first_offsets, self._last_offsets, self._stable_offsets


def _first_offset(entry: AbortedTransaction) -> int:
    return entry.first_offset


def _without(column: array[int], places: list[int]) -> array[int]:
    """In runs, not item by item: this happens on the loop, and there may be a million."""
    kept = array("q")
    start = 0
    for place in places:
        kept.extend(column[start:place])
        start = place + 1
    kept.extend(column[start:])
    return kept


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array("q", column)
        column.byteswap()
    return column.tobytes()
