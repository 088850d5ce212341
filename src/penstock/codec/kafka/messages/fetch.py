"""Fetch: batches from an offset on, for consumers and for followers.

Version 7 brought incremental sessions, 12 the diverging epoch, 13 topic ids instead of names, 15 moved the
replica's id behind a tag, 16 tells a client the new leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    RecordsParts,
    Request,
    Response,
    String,
    Tagged,
    Uuid,
    Versions,
)


class ReplicaState(Message, frozen=True):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message, frozen=True):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, Versions("9+")] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, Versions("12+")] = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, Tagged(0, "17+")] = NO_UUID
    high_watermark: Annotated[Int64, Tagged(1, "18+")] = 0x7FFFFFFFFFFFFFFF


class FetchTopic(Message, frozen=True):
    topic: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_UUID
    partitions: Sequence[FetchPartition] = ()


class ForgottenTopic(Message, frozen=True):
    topic: Annotated[String, Versions("7-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_UUID
    partitions: Sequence[Int32] = ()


class FetchRequest(Request, frozen=True):
    api_key = 1
    valid_versions = "4-18"
    flexible_versions = "12+"

    cluster_id: Annotated[String | None, Tagged(0, "12+")] = None
    replica_id: Annotated[Int32, Versions("0-14")] = -1
    replica_state: Annotated[ReplicaState, Tagged(1, "15+")] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Versions("7+")] = 0
    session_epoch: Annotated[Int32, Versions("7+")] = -1
    topics: Sequence[FetchTopic] = ()
    forgotten_topics_data: Annotated[Sequence[ForgottenTopic], Versions("7+")] = ()
    rack_id: Annotated[String, Versions("11+")] = ""


class EpochEndOffset(Message, frozen=True):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Message, frozen=True):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Message, frozen=True):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message, frozen=True):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    diverging_epoch: Annotated[EpochEndOffset, Tagged(0, "12+")] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, Tagged(1, "12+")] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, Tagged(2, "12+")] = SnapshotId()
    # Ours, on the internal door only: below this the leader has dropped tombstones and transaction markers. A follower
    # whose log ends lower has missed some, and fetches the log anew.
    tombstone_horizon: Annotated[Int64, Tagged(10_000, "17+")] = -1
    aborted_transactions: Sequence[AbortedTransaction] | None = ()
    preferred_read_replica: Annotated[Int32, Versions("11+")] = -1
    records: RecordsParts | None = b""


class FetchableTopicResponse(Message, frozen=True):
    topic: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_UUID
    partitions: Sequence[PartitionData] = ()


class NodeEndpoint(Message, frozen=True):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class FetchResponse(Response, frozen=True):
    api_key = 1
    valid_versions = "4-18"
    flexible_versions = "12+"

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("7+")] = 0
    session_id: Annotated[Int32, Versions("7+")] = 0
    responses: Sequence[FetchableTopicResponse] = ()
    node_endpoints: Annotated[Sequence[NodeEndpoint], Tagged(0, "16+")] = ()
