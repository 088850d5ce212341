"""Asks the cluster: which topics and partitions there are, and where in them a bound lies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from penstock.base.patterns import compile_pattern
from penstock.client.kafka import groups
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.client.kafka.groups import Place
from penstock.client.kafka.offsets import list_offsets
from penstock.domain.topic_rules import is_internal
from penstock.net.address import parse_addresses
from penstock.pipeline.source.options import (
    LATEST,
    Bound,
    OptionError,
    PartitionOffsets,
    SourceOptions,
    TimestampStrategy,
)
from penstock.pipeline.source.ranges import Position
from penstock.pipeline.source.topic_identity import check_unchanged

Result = TypeVar("Result")
NONE_THAT_YOUNG = -1


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Spark's driver calls from threads without a loop."""
    return asyncio.run(work)


async def find_partitions(client: ClusterClient, options: SourceOptions) -> dict[str, list[int]]:
    if options.assigned is not None:
        return options.assigned
    names = options.topics
    if options.pattern is not None:
        matches = compile_pattern(options.pattern)
        if matches is None:
            raise OptionError(f"subscribePattern {options.pattern!r} is not a regular expression")
        known = [topic.name for topic in await client.topics()]
        names = tuple(name for name in known if matches(name) and not is_internal(name))
    found = [await client.topic(name, is_fresh=True) for name in names]
    check_unchanged(options.topic_ids or {}, found)
    return {topic.name: [partition.partition for partition in topic.partitions] for topic in found}


async def resolve(
    client: ClusterClient,
    bound: Bound,
    partitions: Mapping[str, list[int]],
    *,
    strategy: TimestampStrategy,
    is_read_committed: bool,
    is_end: bool = False,
) -> Position:
    found: Position = {}
    for topic, indexes in partitions.items():
        wanted = _wanted(bound, topic, indexes)
        asked = {index: number for index, number in wanted.items() if bound.offsets is None or number < 0}
        answers = await list_offsets(client, topic, asked, is_read_committed=is_read_committed) if asked else {}
        late = [index for index, offset in answers.items() if offset == NONE_THAT_YOUNG]
        if late:
            if not is_end and strategy is TimestampStrategy.ERROR:
                raise OptionError(
                    f"partition {late[0]} of {topic!r} has no message at or after {wanted[late[0]]}; "
                    "startingOffsetsByTimestampStrategy=latest begins at the end there"
                )
            ends = await list_offsets(client, topic, dict.fromkeys(late, LATEST), is_read_committed=is_read_committed)
            answers |= ends
        found[topic] = {index: answers.get(index, number) for index, number in wanted.items()}
    return found


def _wanted(bound: Bound, topic: str, indexes: list[int]) -> dict[int, int]:
    """By partition an offset, or what is asked of the broker: a time, LATEST, EARLIEST."""
    if bound.everywhere is not None:
        return dict.fromkeys(indexes, bound.everywhere)
    if bound.timestamp_ms is not None:
        return dict.fromkeys(indexes, bound.timestamp_ms)
    named: PartitionOffsets = bound.offsets if bound.offsets is not None else bound.timestamps_ms or {}
    given = named.get(topic, {})
    missing = [index for index in indexes if index not in given]
    if missing:
        raise OptionError(f"nothing is said of partition {missing[0]} of {topic!r}, and all must be named")
    return {index: given[index] for index in indexes}


async def latest_position(client: ClusterClient, options: SourceOptions) -> Position:
    partitions = await find_partitions(client, options)
    return await resolve(
        client,
        Bound(everywhere=LATEST),
        partitions,
        strategy=options.strategy,
        is_read_committed=options.is_read_committed,
    )


async def raised_to_time(client: ClusterClient, start: Position, end: Position, time_ms: int) -> Position:
    """Not before the first message at or after that moment; where there is none below the end, nothing is left."""
    raised: Position = {}
    for topic, partitions in start.items():
        found = await list_offsets(client, topic, dict.fromkeys(partitions, time_ms)) if partitions else {}
        raised[topic] = {
            index: max(offset, end[topic][index] if found[index] == NONE_THAT_YOUNG else found[index])
            for index, offset in partitions.items()
        }
    return raised


async def report_group(client: ClusterClient, group: str, position: Position) -> None:
    """So that the lag of a query stands beside everybody else's."""
    offsets: dict[Place, int] = {
        (topic, partition): offset for topic, partitions in position.items() for partition, offset in partitions.items()
    }
    await groups.commit_offsets(client, group, offsets)


def connect(options: SourceOptions) -> ClusterClient:
    return ClusterClient(parse_addresses(options.bootstrap))
