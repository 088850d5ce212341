"""OffsetFetch: a group's positions; several groups at once from version 8 on, topics by id from version 10
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Nullable,
    Request,
    Response,
    String,
    Uuid,
    Versions,
)


class OffsetFetchRequestTopic(Message, frozen=True):
    name: String = ""
    partition_indexes: Sequence[Int32] = ()


class OffsetFetchRequestTopics(Message, frozen=True):
    name: Annotated[String, Versions("8-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_UUID
    partition_indexes: Sequence[Int32] = ()


class OffsetFetchRequestGroup(Message, frozen=True):
    group_id: String = ""
    member_id: Annotated[String | None, Versions("9+")] = None
    member_epoch: Annotated[Int32, Versions("9+")] = -1
    topics: Sequence[OffsetFetchRequestTopics] | None = ()


class OffsetFetchRequest(Request, frozen=True):
    api_key = 9
    valid_versions = "1-10"
    flexible_versions = "6+"

    group_id: Annotated[String, Versions("0-7")] = ""
    topics: Annotated[Sequence[OffsetFetchRequestTopic] | None, Versions("0-7"), Nullable("2-7")] = ()
    groups: Annotated[Sequence[OffsetFetchRequestGroup], Versions("8+")] = ()
    require_stable: Annotated[Bool, Versions("7+")] = False


class OffsetFetchResponsePartition(Message, frozen=True):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Versions("5-7")] = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[OffsetFetchResponsePartition] = ()


class OffsetFetchResponsePartitions(Message, frozen=True):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: String | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Message, frozen=True):
    name: Annotated[String, Versions("8-9")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_UUID
    partitions: Sequence[OffsetFetchResponsePartitions] = ()


class OffsetFetchResponseGroup(Message, frozen=True):
    group_id: String = ""
    topics: Sequence[OffsetFetchResponseTopics] = ()
    error_code: Int16 = 0


class OffsetFetchResponse(Response, frozen=True):
    api_key = 9
    valid_versions = "1-10"
    flexible_versions = "6+"

    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    topics: Annotated[Sequence[OffsetFetchResponseTopic], Versions("0-7")] = ()
    error_code: Annotated[Int16, Versions("2-7")] = 0
    groups: Annotated[Sequence[OffsetFetchResponseGroup], Versions("8+")] = ()
