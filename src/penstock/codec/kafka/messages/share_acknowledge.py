"""ShareAcknowledge (KIP-932): what became of messages that a member of a share group has. Version 2 can renew locks."""

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


class AcknowledgePartition(Message, frozen=True):
    partition_index: Int32 = 0
    acknowledgement_batches: Sequence[AcknowledgementBatch] = ()


class AcknowledgeTopic(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[AcknowledgePartition] = ()


class ShareAcknowledgeRequest(Request, frozen=True):
    api_key = 79
    valid_versions = "1-2"
    flexible_versions = "0+"

    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    is_renew_ack: Annotated[Bool, Versions("2+")] = False
    topics: Sequence[AcknowledgeTopic] = ()


class LeaderIdAndEpoch(Message, frozen=True):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class PartitionData(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: LeaderIdAndEpoch = LeaderIdAndEpoch()


class ShareAcknowledgeTopicResponse(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionData] = ()


class NodeEndpoint(Message, frozen=True):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareAcknowledgeResponse(Response, frozen=True):
    api_key = 79
    valid_versions = "1-2"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, Versions("2+")] = 0
    responses: Sequence[ShareAcknowledgeTopicResponse] = ()
    node_endpoints: Sequence[NodeEndpoint] = ()
