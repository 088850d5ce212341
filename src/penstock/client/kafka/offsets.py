"""Offsets by meaning: earliest, latest, or the first record at or after a moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.net.errors import BrokerError

LATEST: Final = -1
EARLIEST: Final = -2
# Of Penstock's nodes: the first place that is damaged.
DAMAGED: Final = -1999

_STALE_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})
_ATTEMPTS_MAX: Final = 3


class OffsetRange(msgspec.Struct, frozen=True):
    """What a partition holds: from `start`, up to but without `end`."""

    start: int
    end: int


class OffsetAnswer(msgspec.Struct, frozen=True):
    """One partition's answer; -1 with error code 0: no record is that young."""

    offset: int
    error_code: int = 0
    # Of that record; of a damaged place the offset after it.
    timestamp: int = -1
    leader_epoch: int = -1


async def list_offsets(
    client: ClusterClient, topic: str, wanted: Mapping[int, int], *, is_read_committed: bool = False
) -> dict[int, int]:
    """By partition the offset for a timestamp in ms, EARLIEST or LATEST; -1: no record is that young."""
    answers = await ask_offsets(client, topic, wanted, is_read_committed=is_read_committed)
    for partition, answer in answers.items():
        if answer.error_code != 0:
            raise BrokerError(answer.error_code, f"offsets of partition {partition} of topic {topic!r}")
    return {partition: answer.offset for partition, answer in answers.items()}


async def ask_offsets(
    client: ClusterClient, topic: str, wanted: Mapping[int, int], *, is_read_committed: bool = False
) -> dict[int, OffsetAnswer]:
    """The same, for those who want to know which partition failed. With `is_read_committed` LATEST is the last stable
    offset, before the first record of a transaction that is still open.
    """
    answers: dict[int, OffsetAnswer] = {}
    for attempt in range(_ATTEMPTS_MAX):
        answers = await _ask_once(client, topic, wanted, is_read_committed=is_read_committed)
        if attempt + 1 == _ATTEMPTS_MAX or not any(answer.error_code in _STALE_LEADER for answer in answers.values()):
            break
        client.forget(topic)
    return answers


async def _ask_once(
    client: ClusterClient, topic: str, wanted: Mapping[int, int], *, is_read_committed: bool
) -> dict[int, OffsetAnswer]:
    by_leader: dict[int, list[int]] = {}
    for partition in sorted(wanted):
        by_leader.setdefault(await client.leader_id(topic, partition), []).append(partition)
    answers: dict[int, OffsetAnswer] = {}
    for leader, partitions in by_leader.items():
        connection = await client.connection_to(leader)
        asked = [
            ListOffsetsPartition(partition_index=partition, timestamp=wanted[partition]) for partition in partitions
        ]
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=1 if is_read_committed else 0,
            topics=[ListOffsetsTopic(name=topic, partitions=asked)],
        )
        reply = await connection.call(request, ListOffsetsResponse)
        for answer in (partition for answered in reply.topics for partition in answered.partitions):
            answers[answer.partition_index] = OffsetAnswer(
                answer.offset, answer.error_code, answer.timestamp, answer.leader_epoch
            )
    return answers


async def offset_ranges(
    client: ClusterClient, topic: str, partitions: Iterable[int], *, is_read_committed: bool = False
) -> dict[int, OffsetRange]:
    """What can be read; with `is_read_committed` it ends at the last stable offset."""
    partitions = sorted(partitions)
    starts = await list_offsets(client, topic, dict.fromkeys(partitions, EARLIEST))
    latest = dict.fromkeys(partitions, LATEST)
    ends = await list_offsets(client, topic, latest, is_read_committed=is_read_committed)
    return {partition: OffsetRange(starts[partition], ends[partition]) for partition in partitions}
