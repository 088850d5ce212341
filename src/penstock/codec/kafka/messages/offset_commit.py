"""OffsetCommit: a group's positions. Version 10 names topics by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
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


class OffsetCommitRequestPartition(Message, frozen=True):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Versions("6+")] = -1
    committed_metadata: String | None = ""


class OffsetCommitRequestTopic(Message, frozen=True):
    name: Annotated[String, Versions("0-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_UUID
    partitions: Sequence[OffsetCommitRequestPartition] = ()


class OffsetCommitRequest(Request, frozen=True):
    api_key = 8
    valid_versions = "2-10"
    flexible_versions = "8+"

    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Versions("7+")] = None
    retention_time_ms: Annotated[Int64, Versions("2-4")] = -1
    topics: Sequence[OffsetCommitRequestTopic] = ()


class OffsetCommitResponsePartition(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message, frozen=True):
    name: Annotated[String, Versions("0-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_UUID
    partitions: Sequence[OffsetCommitResponsePartition] = ()


class OffsetCommitResponse(Response, frozen=True):
    api_key = 8
    valid_versions = "2-10"
    flexible_versions = "8+"

    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    topics: Sequence[OffsetCommitResponseTopic] = ()
