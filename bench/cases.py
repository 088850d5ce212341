"""What is measured: loads, the targets they run against, and the share of the ceiling that is asked for."""

from __future__ import annotations

import statistics
from typing import Final, Literal

import msgspec

Ceiling = Literal["broker", "broker or disk"]
TargetName = Literal["null broker", "mock cluster", "interval", "fsync"]

# librdkafka's mock cluster keeps 5 MB a partition, so a consume load is spread over as many as it needs.
CONSUME_TOPICS: Final = 16
PARTITIONS_PER_TOPIC: Final = 4
CONSUME_BYTES_PER_PARTITION: Final = 4_000_000
# Key, timestamp and length of a record, roughly: what a message costs beside its value.
RECORD_OVERHEAD_BYTES: Final = 10
# For a million messages of 1 KB, opened, searched and walked.
LZ4_CPU_SECONDS_MAX: Final = 1.5


class Case(msgspec.Struct, frozen=True):
    name: str
    kind: Literal["produce", "consume"]
    value_bytes: int
    messages: int
    single: bool
    targets: tuple[TargetName, ...]
    # The least share of the ceiling, by Penstock's durability.
    goals: dict[TargetName, float]
    codec: str = "none"
    # The most that the broker may take: seconds of processor time for a million messages.
    cpu_goal: float | None = None


def _produce(value_bytes: int, messages: int, *, single: bool) -> Case:
    kind = "one message per request" if single else "batched"
    return Case(
        name=f"produce {value_bytes} B, {kind}",
        kind="produce",
        value_bytes=value_bytes,
        messages=messages,
        single=single,
        targets=("null broker", "mock cluster", "interval", "fsync"),
        goals={"interval": 0.6} if single else {"interval": 0.85, "fsync": 0.6},
    )


def _produce_compressed(value_bytes: int, messages: int, codec: str) -> Case:
    """Compressed, batches are opened and every record is looked at: what that costs shows in the broker's own time."""
    return Case(
        name=f"produce {value_bytes} B, batched, {codec}",
        kind="produce",
        value_bytes=value_bytes,
        messages=messages,
        single=False,
        targets=("null broker", "mock cluster", "interval"),
        goals={},
        codec=codec,
        cpu_goal=LZ4_CPU_SECONDS_MAX,
    )


def _consume(value_bytes: int) -> Case:
    partitions = CONSUME_TOPICS * PARTITIONS_PER_TOPIC
    stored = CONSUME_BYTES_PER_PARTITION // (value_bytes + RECORD_OVERHEAD_BYTES) * partitions
    return Case(
        name=f"consume {value_bytes} B, batched",
        kind="consume",
        value_bytes=value_bytes,
        messages=stored,
        single=False,
        targets=("null broker", "mock cluster", "interval"),
        goals={"interval": 0.9},
    )


def all_cases(scale: float) -> list[Case]:
    """Each long enough, at scale 1, that starting the client's threads does not show: one to three seconds."""
    return [
        _produce(100, int(2_000_000 * scale), single=False),
        _produce(1_024, int(600_000 * scale), single=False),
        _produce_compressed(1_024, int(600_000 * scale), "lz4"),
        _produce(100, int(150_000 * scale), single=True),
        _produce(1_024, int(150_000 * scale), single=True),
        _consume(100),
        _consume(1_024),
    ]


class Figures(msgspec.Struct):
    """Messages per second of each round, by target; and what the disk alone would have taken."""

    case: Case
    rounds: dict[str, list[float]]
    broker_cpu_microseconds: dict[str, list[float]]
    disk_messages_per_second: list[float]
    bytes_per_sync: list[int]
    # What the rest of the machine used during each measurement.
    other_cores: list[float]

    def cpu_median(self, target: str) -> float:
        """Microseconds of the broker for one message, or seconds for a million."""
        return statistics.median(self.broker_cpu_microseconds[target])

    def median(self, target: str) -> float:
        return statistics.median(self.rounds[target])

    def ceiling(self, target: str) -> float:
        ceiling = max(self.median("null broker"), self.median("mock cluster"))
        if target == "fsync" and self.disk_messages_per_second:
            return min(ceiling, statistics.median(self.disk_messages_per_second))
        return ceiling

    def share(self, target: str) -> float:
        return self.median(target) / self.ceiling(target)
