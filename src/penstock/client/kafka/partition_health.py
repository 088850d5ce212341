"""How each partition of a topic is: its watermarks, its replicas, its log, and transactions that hold readers back.

Asked by what every Kafka broker understands: Metadata, ListOffsets with both isolation levels, DescribeLogDirs,
DescribeProducers where there is one, and a Fetch at the end, because a log that is offline says so to readers only. A
node of ours also tells where a log is damaged; what neither a reader nor the scrubber has met yet is not found by this:
`penstock log verify` reads everything. A partition that does not answer has a problem, and keeps no other from being
shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from penstock.client.kafka import admin
from penstock.client.kafka.cluster_client import ClusterClient, PartitionInfo, TopicInfo
from penstock.client.kafka.offsets import DAMAGED, EARLIEST, LATEST, OffsetAnswer, ask_offsets
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from penstock.codec.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from penstock.net.errors import describe_code

_NOT_ANSWERED: Final = OffsetAnswer(-1, ErrorCode.LEADER_NOT_AVAILABLE)
_LOG_PROBLEMS: Final[dict[int, str]] = {
    ErrorCode.KAFKA_STORAGE_ERROR: "log offline",
    ErrorCode.CORRUPT_MESSAGE: "log damaged",
}


class OpenTransactions(msgspec.Struct, frozen=True):
    """Readers of committed records wait for the oldest of them."""

    count: int
    oldest_start: int
    # When the producer of the oldest one last wrote here.
    oldest_last_write_ms: int


class PartitionHealth(msgspec.Struct, frozen=True):
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]
    # The low watermark, the high watermark, and the end for readers of committed records; None: it does not say.
    start: int | None
    end: int | None
    last_stable: int | None
    size_bytes: int | None
    open_transactions: OpenTransactions | None
    # A few words each; none: all is well.
    problems: tuple[str, ...]


async def partition_health(client: ClusterClient, info: TopicInfo) -> list[PartitionHealth]:
    topic = info.name
    led = [found.partition for found in info.partitions if found.leader >= 0]
    starts = await ask_offsets(client, topic, dict.fromkeys(led, EARLIEST))
    ends = await ask_offsets(client, topic, dict.fromkeys(led, LATEST))
    stables = await ask_offsets(client, topic, dict.fromkeys(led, LATEST), is_read_committed=True)
    # Others than ours do not know what is asked: then nothing is known to be damaged.
    damages = await ask_offsets(client, topic, dict.fromkeys(led, DAMAGED))
    sizes = await admin.partition_sizes(client, topic, range(len(info.partitions)))
    codes = await _try_reading(
        client, topic, {number: answer.offset for number, answer in ends.items() if answer.error_code == 0}
    )
    open_by_partition = await _open_transactions(client, topic, led)
    rows: list[PartitionHealth] = []
    for found in info.partitions:
        number = found.partition
        answers = [answered.get(number, _NOT_ANSWERED) for answered in (starts, ends, stables)]
        start, end, last_stable = (answer.offset if answer.error_code == 0 else None for answer in answers)
        failed_codes = [answer.error_code for answer in answers] + [codes.get(number, 0)]
        rows.append(
            PartitionHealth(
                partition=number,
                leader=found.leader,
                leader_epoch=found.leader_epoch,
                replicas=found.replicas,
                in_sync=found.in_sync,
                offline=found.offline,
                start=start,
                end=end,
                last_stable=last_stable,
                size_bytes=sizes.get(number),
                open_transactions=open_by_partition.get(number),
                problems=(
                    *_replica_problems(found),
                    *_log_problems(found, failed_codes),
                    *_damage(damages.get(number, _NOT_ANSWERED)),
                ),
            )
        )
    return rows


def _replica_problems(found: PartitionInfo) -> list[str]:
    problems = [] if found.leader >= 0 else ["no leader"]
    if found.offline:
        problems.append(f"offline on {_nodes(found.offline)}")
    lagging = set(found.replicas) - set(found.in_sync) - set(found.offline)
    if lagging:
        problems.append(f"not in sync on {_nodes(lagging)}")
    return problems


def _log_problems(found: PartitionInfo, codes: Iterable[int]) -> list[str]:
    """Each kind once; without a leader nobody was asked."""
    if found.leader < 0:
        return []
    return [_LOG_PROBLEMS.get(code) or describe_code(code) for code in dict.fromkeys(codes) if code != 0]


def _damage(answer: OffsetAnswer) -> list[str]:
    if answer.error_code != 0 or answer.offset < 0 or answer.leader_epoch != DAMAGED:
        return []
    last = answer.timestamp - 1
    where = f"offsets {answer.offset} to {last} are" if last > answer.offset else f"offset {answer.offset} is"
    return [f"{where} damaged"]


def _nodes(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


async def _try_reading(client: ClusterClient, topic: str, ends: dict[int, int]) -> dict[int, int]:
    """Error codes of a Fetch at each end. Nothing stands there, so nothing is read, and nobody waits."""
    codes: dict[int, int] = {}
    for leader, numbers in (await _by_leader(client, topic, ends)).items():
        wanted = [
            FetchPartition(partition=number, fetch_offset=ends[number], partition_max_bytes=1) for number in numbers
        ]
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=topic, partitions=wanted)],
        )
        reply = await (await client.connection_to(leader)).call(request, FetchResponse)
        for answer in (partition for answered in reply.responses for partition in answered.partitions):
            codes[answer.partition_index] = answer.error_code or reply.error_code
    return codes


async def _open_transactions(client: ClusterClient, topic: str, numbers: list[int]) -> dict[int, OpenTransactions]:
    """By partition, where there are any; nothing of a broker that cannot tell, or may not tell us."""
    found: dict[int, OpenTransactions] = {}
    for leader, led in (await _by_leader(client, topic, numbers)).items():
        connection = await client.connection_to(leader)
        request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=led)])
        if not connection.supports(request.api_key):
            continue
        reply = await connection.call(request, DescribeProducersResponse)
        for answer in (partition for answered in reply.topics for partition in answered.partitions):
            writing = [producer for producer in answer.active_producers if producer.current_txn_start_offset >= 0]
            if answer.error_code == 0 and writing:
                oldest = min(writing, key=lambda producer: producer.current_txn_start_offset)
                found[answer.partition_index] = OpenTransactions(
                    count=len(writing),
                    oldest_start=oldest.current_txn_start_offset,
                    oldest_last_write_ms=oldest.last_timestamp,
                )
    return found


async def _by_leader(client: ClusterClient, topic: str, numbers: Iterable[int]) -> dict[int, list[int]]:
    by_leader: dict[int, list[int]] = {}
    for number in numbers:
        by_leader.setdefault(await client.leader_id(topic, number), []).append(number)
    return by_leader
