"""Which offsets a query reads: from options to ranges, how much of them in one trigger, and cut up for tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import msgspec

# What a task should have, if there is a choice; as many tasks as `TASKS_MIN` may have less.
ROWS_PER_TASK: Final = 200_000
ROWS_PER_TASK_MIN: Final = 1_000
TASKS_MIN: Final = 8

# By topic and partition, the first offset that was not read.
Position = dict[str, dict[int, int]]


class OffsetSpan(msgspec.Struct, frozen=True, order=True):
    """What one task reads: from `start`, up to but without `end`."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def to_json(position: Position) -> dict[str, dict[str, int]]:
    """As it stands in checkpoints: JSON has no numbers for keys. Sorted, so that equal ones are equal texts."""
    return {
        topic: {str(partition): partitions[partition] for partition in sorted(partitions)}
        for topic, partitions in sorted(position.items())
    }


def from_json(stored: Mapping[str, Mapping[str, int]]) -> Position:
    return {
        topic: {int(partition): int(offset) for partition, offset in partitions.items()}
        for topic, partitions in stored.items()
    }


def spans_between(start: Position, end: Position) -> list[OffsetSpan]:
    """What lies between two positions. A partition that the start does not know is new, and read from its beginning."""
    spans: list[OffsetSpan] = []
    for topic, partitions in sorted(end.items()):
        known = start.get(topic, {})
        for partition, until in sorted(partitions.items()):
            since = known.get(partition, 0)
            if until > since:
                spans.append(OffsetSpan(topic, partition, since, until))
    return spans


def lost(known: Position, latest: Position) -> str | None:
    """A sentence, if what was read already is not there any more: a partition, or the end of one."""
    for topic, partitions in sorted(known.items()):
        if topic not in latest:
            return f"topic {topic!r} was deleted while it was read, up to {sum(partitions.values())} messages of it."
        for partition, offset in sorted(partitions.items()):
            end = latest[topic].get(partition)
            if end is None:
                return f"partition {partition} of {topic!r} is gone; it was read up to offset {offset}."
            if end < offset:
                return (
                    f"partition {partition} of {topic!r} ends at offset {end}, and it was read up to {offset}: "
                    "it was deleted and made anew, or lost its end."
                )
    return None


def limited(start: Position, latest: Position, rows_max: int) -> Position:
    """A position of at most about `rows_max` rows behind `start`, every partition with its share of them.

    One row at least where there are any, so that a small share is not no share for ever.
    """
    spans = spans_between(start, latest)
    total = sum(span.size for span in spans)
    if total <= rows_max:
        return latest
    reached = {topic: dict(partitions) for topic, partitions in latest.items()}
    for span in spans:
        share = max(1, span.size * rows_max // total)
        reached[span.topic][span.partition] = min(span.end, span.start + share)
    return reached


def cut(spans: list[OffsetSpan], *, count_min: int | None = None, rows_max: int | None = None) -> list[OffsetSpan]:
    """In so many pieces, or in pieces so small: a large partition is read by several tasks."""
    pieces = spans
    if rows_max is not None:
        pieces = [piece for span in pieces for piece in _split(span, -(-span.size // rows_max))]
    if count_min is not None and 0 < len(pieces) < count_min:
        total = sum(span.size for span in pieces)
        pieces = [
            piece for span in pieces for piece in _split(span, max(1, round(span.size * count_min / max(total, 1))))
        ]
    return pieces


def group(spans: list[OffsetSpan]) -> list[list[OffsetSpan]]:
    """For tasks: small spans together, because a task costs Spark as much as thousands of rows do.

    No more tasks than spans; a task for each `ROWS_PER_TASK`, and for work that is worth it as many as a machine has
    cores. Whoever wants more of them says so (minPartitions).
    """
    rows = sum(span.size for span in spans)
    few = min(TASKS_MIN, -(-rows // ROWS_PER_TASK_MIN))
    count = min(len(spans), max(few, -(-rows // ROWS_PER_TASK)))
    groups: list[list[OffsetSpan]] = []
    seen = 0
    for span in sorted(spans):
        # The n-th begins where n shares of all rows are given away.
        if seen * count >= rows * len(groups):
            groups.append([])
        groups[-1].append(span)
        seen += span.size
    return groups


def _split(span: OffsetSpan, count: int) -> list[OffsetSpan]:
    count = max(1, min(count, span.size))
    edges = [span.start + span.size * number // count for number in range(count + 1)]
    return [OffsetSpan(span.topic, span.partition, first, last) for first, last in pairwise(edges)]
