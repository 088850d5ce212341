"""Offsets by meaning: earliest, latest, or the first record at or after a moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.client.cluster_client import ClusterClient
from penstock.client.errors import BrokerError
from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST: Final = -1
EARLIEST: Final = -2

_STALE_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})
_ATTEMPTS_MAX: Final = 3


class OffsetRange(msgspec.Struct, frozen=True):
    """What a partition holds: from `start`, up to but without `end`."""

    start: int
    end: int


async def list_offsets(client: ClusterClient, topic: str, wanted: Mapping[int, int]) -> dict[int, int]:
    """By partition the offset for a timestamp in ms, EARLIEST or LATEST; -1: no record is that young."""
    for attempt in range(_ATTEMPTS_MAX):
        found, stale_code = await _list_once(client, topic, wanted)
        if stale_code is None:
            return found
        client.forget(topic)
        if attempt + 1 == _ATTEMPTS_MAX:
            raise BrokerError(stale_code, f"offsets of topic {topic!r}")
    raise AssertionError("the loop above returns or raises")


async def _list_once(client: ClusterClient, topic: str, wanted: Mapping[int, int]) -> tuple[dict[int, int], int | None]:
    by_leader: dict[int, list[int]] = {}
    for partition in sorted(wanted):
        by_leader.setdefault(await client.leader_id(topic, partition), []).append(partition)
    found: dict[int, int] = {}
    for leader, partitions in by_leader.items():
        connection = await client.connection_to(leader)
        asked = [
            ListOffsetsPartition(partition_index=partition, timestamp=wanted[partition]) for partition in partitions
        ]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])
        reply = await connection.call(request, ListOffsetsResponse)
        for answer in (partition for answered in reply.topics for partition in answered.partitions):
            if answer.error_code in _STALE_LEADER:
                return {}, answer.error_code
            if answer.error_code != 0:
                what = f"offsets of partition {answer.partition_index} of topic {topic!r}"
                raise BrokerError(answer.error_code, what)
            found[answer.partition_index] = answer.offset
    return found, None


async def offset_ranges(client: ClusterClient, topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
    partitions = sorted(partitions)
    starts = await list_offsets(client, topic, dict.fromkeys(partitions, EARLIEST))
    ends = await list_offsets(client, topic, dict.fromkeys(partitions, LATEST))
    return {partition: OffsetRange(starts[partition], ends[partition]) for partition in partitions}
