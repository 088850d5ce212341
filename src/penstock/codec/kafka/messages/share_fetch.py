"""ShareFetch (KIP-932): messages for a member of a share group, each for a while its own, and the answers to others.

Version 2 lets a client ask for no more records than it named, even if that cuts batches, and renew its locks
(KIP-1206, KIP-1222).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    RecordsParts,
    Request,
    Response,
    String,
    Uuid,
    Versions,
)


class AcknowledgementBatch(Message, frozen=True):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: Sequence[Int8] = ()


class FetchPartition(Message, frozen=True):
    partition_index: Int32 = 0
    acknowledgement_batches: Sequence[AcknowledgementBatch] = ()


class FetchTopic(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[FetchPartition] = ()


class ForgottenTopic(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[Int32] = ()


class ShareFetchRequest(Request, frozen=True):
    api_key = 78
    valid_versions = "1-2"
    flexible_versions = "0+"

    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, Versions("2+")] = 0
    is_renew_ack: Annotated[Bool, Versions("2+")] = False
    topics: Sequence[FetchTopic] = ()
    forgotten_topics_data: Sequence[ForgottenTopic] = ()


class LeaderIdAndEpoch(Message, frozen=True):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class AcquiredRecords(Message, frozen=True):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class PartitionData(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()
    records: RecordsParts = b""
    acquired_records: Sequence[AcquiredRecords] = ()


class ShareFetchableTopicResponse(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionData] = ()


class NodeEndpoint(Message, frozen=True):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareFetchResponse(Response, frozen=True):
    api_key = 78
    valid_versions = "1-2"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: Sequence[ShareFetchableTopicResponse] = ()
    node_endpoints: Sequence[NodeEndpoint] = ()
