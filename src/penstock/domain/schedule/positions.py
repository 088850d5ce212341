"""Millions of places of a log, in as little memory as they can be told apart in.

A set takes a bit for each place between its first and its last; a map some ten bytes for each that is in it. Places are
offsets, so they are dense and grow: both are kept as blocks of neighbours, and blocks that have become empty go.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

_SET_BITS: Final = 13
_SET_MASK: Final = (1 << _SET_BITS) - 1
_MAP_BITS: Final = 12
_MAP_MASK: Final = (1 << _MAP_BITS) - 1


class PositionSet:
    __slots__ = ("_blocks", "_counts", "count")

    def __init__(self, stored: tuple[tuple[int, bytes], ...] = ()) -> None:
        # In the order of the blocks: a new place is always above all others.
        self._blocks: dict[int, bytearray] = {block: bytearray(bits) for block, bits in stored}
        self._counts = {block: int.from_bytes(bits, "little").bit_count() for block, bits in stored}
        self.count = sum(self._counts.values())

    def __contains__(self, position: int) -> bool:
        bits = self._blocks.get(position >> _SET_BITS)
        return bits is not None and bool(bits[(position & _SET_MASK) >> 3] & 1 << (position & 7))

    def add(self, position: int) -> None:
        block, place, bit = position >> _SET_BITS, (position & _SET_MASK) >> 3, 1 << (position & 7)
        bits = self._blocks.get(block)
        if bits is None:
            bits = self._blocks[block] = bytearray(1 << (_SET_BITS - 3))
            self._counts[block] = 0
        if not bits[place] & bit:
            bits[place] |= bit
            self._counts[block] += 1
            self.count += 1

    def discard(self, position: int) -> bool:
        """Whether it was there."""
        if position not in self:
            return False
        block = position >> _SET_BITS
        self._blocks[block][(position & _SET_MASK) >> 3] &= ~(1 << (position & 7))
        self._counts[block] -= 1
        self.count -= 1
        if not self._counts[block]:
            del self._blocks[block], self._counts[block]
        return True

    def first(self) -> int | None:
        return next(self.since(0), None)

    def since(self, position: int) -> Iterator[int]:
        """All of them from there on, in order. Nothing may change meanwhile."""
        for block in sorted(self._blocks):
            base = block << _SET_BITS
            if base + _SET_MASK < position:
                continue
            for place, byte in enumerate(self._blocks[block]):
                first = base | place << 3
                if byte and first + 7 >= position:
                    yield from (first + bit for bit in range(8) if byte >> bit & 1 and first + bit >= position)

    def count_since(self, position: int) -> int:
        """How many from there on: whole blocks are counted already."""
        first = position >> _SET_BITS
        whole = sum(count for block, count in self._counts.items() if block > first)
        bits = int.from_bytes(self._blocks.get(first, b""), "little")
        return whole + (bits >> (position & _SET_MASK)).bit_count()

    def store(self) -> tuple[tuple[int, bytes], ...]:
        return tuple((block, bytes(bits)) for block, bits in sorted(self._blocks.items()))


class PositionMap:
    """From a place to another."""

    __slots__ = ("_blocks", "_kept_count")

    def __init__(self, stored: tuple[tuple[int, bytes, bytes], ...] = ()) -> None:
        self._blocks: dict[int, tuple[array[int], array[int]]] = {}
        self._kept_count = 0
        for block, places, values in stored:
            self._blocks[block] = (array("H", places), array("q", values))

    def __len__(self) -> int:
        return sum(len(places) for places, _values in self._blocks.values())

    def get(self, position: int, otherwise: int) -> int:
        found = self._blocks.get(position >> _MAP_BITS)
        if found is None:
            return otherwise
        places, values = found
        place = bisect_left(places, position & _MAP_MASK)
        is_there = place < len(places) and places[place] == position & _MAP_MASK
        return values[place] if is_there else otherwise

    def set(self, position: int, value: int) -> None:
        places, values = self._blocks.setdefault(position >> _MAP_BITS, (array("H"), array("q")))
        place = bisect_left(places, position & _MAP_MASK)
        if place < len(places) and places[place] == position & _MAP_MASK:
            values[place] = value
        else:
            places.insert(place, position & _MAP_MASK)
            values.insert(place, value)

    def keep(self, is_kept: Callable[[int, int], bool]) -> None:
        """Lets go of the others; but only if there may be as many of them, for it looks at every one."""
        if len(self) <= 2 * self._kept_count:
            return
        for block, (places, values) in list(self._blocks.items()):
            base = block << _MAP_BITS
            left = [(place, value) for place, value in zip(places, values, strict=True) if is_kept(base | place, value)]
            if left:
                self._blocks[block] = (array("H", [pair[0] for pair in left]), array("q", [pair[1] for pair in left]))
            else:
                del self._blocks[block]
        self._kept_count = len(self)

    def store(self) -> tuple[tuple[int, bytes, bytes], ...]:
        return tuple(
            (block, places.tobytes(), values.tobytes()) for block, (places, values) in sorted(self._blocks.items())
        )
