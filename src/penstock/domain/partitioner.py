"""Which partition a message goes to: by murmur2 of its key, as the Java client does, so that every client
agrees.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_SHIFT: Final = 24
_MASK: Final = 0xFFFF_FFFF


def murmur2(data: bytes) -> int:
    """Austin Appleby's 32-bit MurmurHash2 with the seed that Kafka chose, unsigned."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        block = int.from_bytes(data[position : position + 4], "little")
        block = (block * _MULTIPLIER) & _MASK
        block ^= block >> _SHIFT
        block = (block * _MULTIPLIER) & _MASK
        value = ((value * _MULTIPLIER) & _MASK) ^ block
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _MULTIPLIER) & _MASK
    value ^= value >> 13
    value = (value * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def partition_for_key(key: bytes, partition_count: int) -> int:
    # The sign bit is cleared, not negated: this is Kafka's toPositive.
    return (murmur2(key) & 0x7FFF_FFFF) % partition_count


class StickyPartitions:
    """For messages without a key: a whole batch to one partition, the next batch to the next."""

    def __init__(self, partition_count: int, *, first: int = 0) -> None:
        assert partition_count > 0
        self._partition_count = partition_count
        self._next = first % partition_count

    def next_partition(self) -> int:
        partition = self._next
        self._next = (partition + 1) % self._partition_count
        return partition
