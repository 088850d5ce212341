"""What every commit of positions does with the topics of its request: OffsetCommit and TxnOffsetCommit alike.

topics ─► sort_out ─► an error for each partition, or None: then it stands in `offsets`, for the group to decide
outcomes of the group ─► answer ─► topics, each partition where it was asked for
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from penstock.base.long_work import Steps
from penstock.broker.topic.served_topic import ServedTopic
from penstock.codec.kafka import ErrorCode
from penstock.domain.group.commands import OffsetToCommit

Problems = list[list[ErrorCode | None]]


class GivenPartition(Protocol):
    @property
    def partition_index(self) -> int: ...


class GivenPosition(GivenPartition, Protocol):
    @property
    def committed_offset(self) -> int: ...
    @property
    def committed_leader_epoch(self) -> int: ...
    @property
    def committed_metadata(self) -> str | None: ...


class GivenTopic(Protocol):
    @property
    def partitions(self) -> Sequence[GivenPartition]: ...


class PositionsOfTopic(Protocol):
    @property
    def partitions(self) -> Sequence[GivenPosition]: ...


Positions = TypeVar("Positions", bound=PositionsOfTopic)
Given = TypeVar("Given", bound=GivenTopic)
Partition = TypeVar("Partition")
Topic = TypeVar("Topic")


def sort_out(
    topics: Sequence[Positions], find: Callable[[Positions], ServedTopic | ErrorCode], offsets: list[OffsetToCommit]
) -> Steps[Problems]:
    """By topic and partition as they were asked for."""
    problems: Problems = []
    for topic in topics:
        found = find(topic)
        if isinstance(found, ErrorCode):
            problems.append([found] * len(topic.partitions))
        else:
            problems.append((yield from _sort_out_topic(topic.partitions, found, offsets)))
        yield
    return problems


def _sort_out_topic(
    partitions: Sequence[GivenPosition], found: ServedTopic, offsets: list[OffsetToCommit]
) -> Steps[list[ErrorCode | None]]:
    problems: list[ErrorCode | None] = []
    for given in partitions:
        yield
        if not found.has_partition(given.partition_index):
            problems.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        problems.append(None)
        offsets.append(
            OffsetToCommit(
                found.name,
                given.partition_index,
                given.committed_offset,
                given.committed_leader_epoch,
                given.committed_metadata or "",
                found.topic_id,
            )
        )
    return problems


def answer(
    topics: Sequence[Given],
    problems: Problems,
    outcomes: Iterator[ErrorCode],
    *,
    partition: Callable[[int, ErrorCode], Partition],
    topic: Callable[[Given, list[Partition]], Topic],
) -> Steps[list[Topic]]:
    """`outcomes` are the group's, one for each that has no problem, in order."""
    answered = []
    for asked, codes in zip(topics, problems, strict=True):
        partitions = []
        for given, problem in zip(asked.partitions, codes, strict=True):
            code = next(outcomes) if problem is None else problem
            partitions.append(partition(given.partition_index, code))
            yield
        answered.append(topic(asked, partitions))
    return answered
