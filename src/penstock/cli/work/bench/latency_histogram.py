"""Counts of latencies in buckets whose width is a 32nd of their value: percentiles good to 3 % in a few
kilobytes.

value (µs)   0 … 63 exactly, then 32 buckets for each doubling
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

_SUB_BITS: Final = 5
_SUB_COUNT: Final = 1 << _SUB_BITS
_EXACT: Final = 2 * _SUB_COUNT


class Bar(msgspec.Struct, frozen=True):
    """So many values from `low_us` up to but without `high_us`."""

    low_us: int
    high_us: int
    count: int


class LatencyHistogram:
    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.max_us = 0
        self._sum_us = 0

    @property
    def mean_us(self) -> float:
        return self._sum_us / self.count if self.count else 0.0

    def record(self, latency_us: int, count: int = 1) -> None:
        latency_us = max(latency_us, 0)
        index = _index(latency_us)
        self._counts[index] = self._counts.get(index, 0) + count
        self._sum_us += latency_us * count
        self.count += count
        self.max_us = max(self.max_us, latency_us)

    def record_run(self, first_us: float, *, step_us: float, count: int) -> None:
        """`count` values `first_us`, `first_us - step_us`, …: messages that were due one after another and
        were acknowledged together. As exact as `record` for each, at the price of the buckets they fall into.
        """
        assert count > 0
        assert step_us > 0
        counts = self._counts
        index = _index(max(int(first_us), 0))
        position = 0
        while position < count:
            # Values at or above the bucket's lowest have a place in the run before `end`.
            end = int(min((first_us - _lowest(index)) / step_us + 1, count)) if index > 0 else count
            if end > position:
                counts[index] = counts.get(index, 0) + end - position
                position = end
            index -= 1
        last_us = first_us - (count - 1) * step_us
        self._sum_us += int((max(first_us, 0) + max(last_us, 0)) / 2 * count)
        self.count += count
        self.max_us = max(self.max_us, int(first_us))

    def merge(self, other: LatencyHistogram) -> None:
        for index, count in other._counts.items():
            self._counts[index] = self._counts.get(index, 0) + count
        self.count += other.count
        self._sum_us += other._sum_us
        self.max_us = max(self.max_us, other.max_us)

    def percentile_us(self, percent: float) -> int:
        """The value that `percent` of all values do not exceed, rounded up to its bucket's end."""
        if not self.count:
            return 0
        wanted = self.count * percent / 100
        seen = 0
        for index in sorted(self._counts):
            seen += self._counts[index]
            if seen >= wanted:
                return min(_lowest(index + 1) - 1 if index >= _EXACT else index, self.max_us)
        return self.max_us

    def bars(self, limits_us: Sequence[int]) -> list[Bar]:
        """Counts between limits, without the empty ones before the first and after the last value."""
        edges = [0, *limits_us, max(self.max_us + 1, limits_us[-1] + 1)]
        counts = [0] * (len(edges) - 1)
        position = 0
        for index in sorted(self._counts):
            while position < len(counts) - 1 and _lowest(index) >= edges[position + 1]:
                position += 1
            counts[position] += self._counts[index]
        bars = [Bar(edges[place], edges[place + 1], count) for place, count in enumerate(counts)]
        while bars and bars[0].count == 0:
            bars.pop(0)
        while bars and bars[-1].count == 0:
            bars.pop()
        return bars


def _index(value: int) -> int:
    if value < _EXACT:
        return value
    shift = value.bit_length() - _SUB_BITS - 1
    return shift * _SUB_COUNT + (value >> shift)


def _lowest(index: int) -> int:
    """The smallest value of a bucket."""
    if index < _EXACT:
        return index
    shift = index // _SUB_COUNT - 1
    return (index - shift * _SUB_COUNT) << shift
