"""Replicas that were compared: written by the node, read by `penstock cluster verify`."""

from __future__ import annotations

import msgspec


class VerifiableTopic(msgspec.Struct, frozen=True):
    topic: str
    partitions: int


class VerifiableTopics(msgspec.Struct, frozen=True):
    topics: list[VerifiableTopic]


class RangeDifference(msgspec.Struct, frozen=True):
    from_offset: int
    # Not in it.
    to_offset: int
    # By node.
    checksums: dict[str, int]


class LogComparison(msgspec.Struct, frozen=True, kw_only=True):
    # data, queue_journal or schedule
    log: str
    from_offset: int
    to_offset: int
    # Where to go on; none: that was all.
    next_offset: int | None = None
    # Compared by the last record of each key.
    is_compacted: bool = False
    nodes: list[int] = []
    differences: list[RangeDifference] = []
    # Nodes that could not be compared, and why.
    missing: dict[str, str] = {}


class PartitionComparison(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    logs: list[LogComparison]
