"""AlterShareGroupOffsets (KIP-932): a share group without members begins elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Int64, Message, Request, Response, String, Uuid


class AlterShareGroupOffsetsRequestPartition(Message, frozen=True):
    partition_index: Int32 = 0
    start_offset: Int64 = 0


class AlterShareGroupOffsetsRequestTopic(Message, frozen=True):
    topic_name: String = ""
    partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = ()


class AlterShareGroupOffsetsRequest(Request, frozen=True):
    api_key = 91
    valid_versions = "0"
    flexible_versions = "0+"

    group_id: String = ""
    topics: Sequence[AlterShareGroupOffsetsRequestTopic] = ()


class AlterShareGroupOffsetsResponsePartition(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class AlterShareGroupOffsetsResponseTopic(Message, frozen=True):
    topic_name: String = ""
    topic_id: Uuid = NO_UUID
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = ()


class AlterShareGroupOffsetsResponse(Response, frozen=True):
    api_key = 91
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Sequence[AlterShareGroupOffsetsResponseTopic] = ()
