"""A follower's fetch in the bytes of Kafka's Fetch, both ways: what the one side writes the other reads back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from penstock.codec.kafka.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
)
from penstock.domain.replication.exchange import (
    NO_EPOCH,
    NO_OFFSET,
    EpochEnd,
    LogFetch,
    LogFetched,
    LogName,
    NodePlace,
    ReplicaFetch,
    ReplicaFetched,
)
from penstock.net.replica.problems import code_of, leader_of, problem_of

# Kafka's word for a follower that does not tell its watermark.
_WATERMARK_UNTOLD: Final = 0x7FFFFFFFFFFFFFFF
_AGREES: Final = EpochEndOffset()
_NO_LEADER: Final = LeaderIdAndEpoch()


def write_request(fetch: ReplicaFetch) -> FetchRequest:
    return FetchRequest(
        replica_state=ReplicaState(fetch.node_id, fetch.life),
        max_wait_ms=fetch.wait_ms,
        min_bytes=fetch.bytes_min,
        max_bytes=fetch.bytes_max,
        session_id=fetch.session_id,
        session_epoch=fetch.session_epoch,
        topics=[
            FetchTopic(topic_id=topic_id, partitions=[_write_wanted(wanted) for wanted in several])
            for topic_id, several in groupby(fetch.logs, lambda wanted: wanted.log.topic_id)
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic_id=topic_id, partitions=[log.partition for log in several])
            for topic_id, several in groupby(fetch.forgotten, lambda log: log.topic_id)
        ],
    )


def _write_wanted(wanted: LogFetch) -> FetchPartition:
    return FetchPartition(
        partition=wanted.log.partition,
        current_leader_epoch=wanted.leader_epoch,
        fetch_offset=wanted.offset,
        last_fetched_epoch=wanted.last_epoch,
        log_start_offset=wanted.log_start,
        partition_max_bytes=wanted.bytes_max,
        high_watermark=_WATERMARK_UNTOLD if wanted.high_watermark == NO_OFFSET else wanted.high_watermark,
    )


def read_request(request: FetchRequest) -> ReplicaFetch:
    return ReplicaFetch(
        node_id=request.replica_state.replica_id,
        life=request.replica_state.replica_epoch,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        wait_ms=request.max_wait_ms,
        bytes_min=request.min_bytes,
        bytes_max=request.max_bytes,
        logs=[_read_wanted(topic.topic_id, partition) for topic in request.topics for partition in topic.partitions],
        forgotten=[
            LogName(topic.topic_id, partition)
            for topic in request.forgotten_topics_data
            for partition in topic.partitions
        ],
    )


def _read_wanted(topic_id: bytes, wanted: FetchPartition) -> LogFetch:
    return LogFetch(
        log=LogName(topic_id, wanted.partition),
        leader_epoch=wanted.current_leader_epoch,
        offset=wanted.fetch_offset,
        last_epoch=wanted.last_fetched_epoch,
        log_start=wanted.log_start_offset,
        bytes_max=wanted.partition_max_bytes,
        high_watermark=NO_OFFSET if wanted.high_watermark == _WATERMARK_UNTOLD else wanted.high_watermark,
    )


def write_response(fetched: ReplicaFetched) -> FetchResponse:
    return FetchResponse(
        error_code=code_of(fetched.problem),
        session_id=fetched.session_id,
        responses=[
            FetchableTopicResponse(topic_id=topic_id, partitions=[_write_found(found) for found in several])
            for topic_id, several in groupby(fetched.logs, lambda found: found.log.topic_id)
        ],
        node_endpoints=[NodeEndpoint(place.node_id, place.host, place.port) for place in fetched.places],
    )


def _write_found(found: LogFetched) -> PartitionData:
    diverging, leader = found.diverging, found.leader
    return PartitionData(
        partition_index=found.log.partition,
        error_code=code_of(found.problem),
        high_watermark=found.high_watermark,
        log_start_offset=found.log_start,
        diverging_epoch=_AGREES if diverging is None else EpochEndOffset(diverging.epoch, diverging.end_offset),
        current_leader=_NO_LEADER if leader is None else LeaderIdAndEpoch(leader.node_id, leader.epoch),
        tombstone_horizon=found.tombstone_horizon,
        # Followers look at batches, not at transactions: nobody reads the list.
        aborted_transactions=None,
        records=found.records,
    )


def read_response(response: FetchResponse) -> ReplicaFetched:
    return ReplicaFetched(
        problem=problem_of(response.error_code),
        session_id=response.session_id,
        logs=[_read_found(topic.topic_id, found) for topic in response.responses for found in topic.partitions],
        places=_read_places(response.node_endpoints),
    )


def _read_found(topic_id: bytes, found: PartitionData) -> LogFetched:
    diverging, leader = found.diverging_epoch, found.current_leader
    return LogFetched(
        log=LogName(topic_id, found.partition_index),
        problem=problem_of(found.error_code),
        high_watermark=found.high_watermark,
        log_start=found.log_start_offset,
        tombstone_horizon=found.tombstone_horizon,
        diverging=None if diverging.epoch == NO_EPOCH else EpochEnd(diverging.epoch, diverging.end_offset),
        leader=leader_of(leader.leader_id, leader.leader_epoch),
        records=found.records or b"",
    )


def _read_places(endpoints: Sequence[NodeEndpoint]) -> list[NodePlace]:
    return [NodePlace(endpoint.node_id, endpoint.host, endpoint.port) for endpoint in endpoints]
