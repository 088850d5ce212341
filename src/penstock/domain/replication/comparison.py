"""Whether replicas of a log are the same: checksums of the same ranges of offsets, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from penstock.domain.replication.exchange import RangeChecksum, ReplicaDescription


class Difference(msgspec.Struct, frozen=True):
    """A range of offsets that is not the same everywhere; the last one is not in it."""

    from_offset: int
    to_offset: int
    # By node.
    checksums: dict[int, int]


class Span(msgspec.Struct, frozen=True):
    """What all of them have, below what is committed."""

    start: int
    end: int


def common_span(found: Mapping[int, ReplicaDescription], in_sync: Sequence[int]) -> Span:
    """Who is not in sync may hold less, and is compared as far as it goes."""
    counted = [each for node, each in found.items() if node in in_sync] or list(found.values())
    start = max((each.log_start for each in found.values()), default=0)
    return Span(start, max(start, min((each.high_watermark for each in counted), default=0)))


def differences(checksums: Mapping[int, Sequence[RangeChecksum]]) -> list[Difference]:
    """Of those ranges that at least two of them have: one that somebody has removed meanwhile is no difference."""
    ranges: dict[tuple[int, int], dict[int, int]] = {}
    for node in sorted(checksums):
        for each in checksums[node]:
            ranges.setdefault((each.from_offset, each.to_offset), {})[node] = each.checksum
    return [Difference(*bounds, found) for bounds, found in sorted(ranges.items()) if len(set(found.values())) > 1]


def seen_twice(first: Sequence[Difference], second: Sequence[Difference]) -> list[Difference]:
    """What only one of two looks has found was retention or compaction at work."""
    again = {(each.from_offset, each.to_offset) for each in first}
    return [each for each in second if (each.from_offset, each.to_offset) in again]
