"""What a report says of a topic, as values: computed by `job`, drawn by `page`, printed as JSON."""

from __future__ import annotations

import msgspec


class PartitionFacts(msgspec.Struct, frozen=True):
    partition: int
    record_count: int
    size_bytes: int
    first_offset: int
    last_offset: int
    first_ms: int
    last_ms: int


class Bucket(msgspec.Struct, frozen=True):
    """Of one partition, and as long as all others."""

    start_ms: int
    partition: int
    record_count: int
    size_bytes: int


class SizeFacts(msgspec.Struct, frozen=True):
    """Of values, in bytes; deletions have none."""

    mean: float
    p50: float
    p95: float
    p99: float
    largest: int
    # By the power of two that they are below: 2**n bytes.
    by_power: dict[int, int]


class KeyFacts(msgspec.Struct, frozen=True):
    # `key` as text where it is text, in hexadecimal where it is not.
    key: str
    record_count: int
    size_bytes: int
    partition_count: int


class KeySpread(msgspec.Struct, frozen=True):
    without_key_count: int
    # Estimated, within about two percent.
    distinct_count: int
    # Most records first.
    heaviest: tuple[KeyFacts, ...]


class DelayFacts(msgspec.Struct, frozen=True):
    """From the time of a record until its reader had passed or finished it, in ms."""

    # "group" or "queue".
    kind: str
    name: str
    record_count: int
    p50: float
    p95: float
    p99: float
    largest: float


class DeadLetterFacts(msgspec.Struct, frozen=True):
    topic: str
    reason: str
    group: str
    record_count: int


class TopicReport(msgspec.Struct, frozen=True):
    topic: str
    made_ms: int
    since_ms: int | None
    until_ms: int | None
    record_count: int
    size_bytes: int
    deletion_count: int
    bucket_ms: int
    partitions: tuple[PartitionFacts, ...]
    buckets: tuple[Bucket, ...]
    sizes: SizeFacts | None
    keys: KeySpread
    delays: tuple[DelayFacts, ...] = ()
    # How many records the delays were computed from, where it was not all of them.
    delay_sample_count: int | None = None
    dead_letters: tuple[DeadLetterFacts, ...] = ()
    # What could not be found out, and why.
    gaps: tuple[str, ...] = ()
    # Also those without records, which are not among the partitions above.
    partition_count: int = 0

    @property
    def hot_factor(self) -> float:
        """How much more the fullest partition has than the mean one, of all that the topic has."""
        counts = [partition.record_count for partition in self.partitions]
        total = max(self.partition_count, len(counts))
        return max(counts) * total / sum(counts) if sum(counts) else 1.0
