"""OffsetDelete: forgets positions of a group."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int16, Int32, Message, Request, Response, String


class OffsetDeleteRequestPartition(Message, frozen=True):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[OffsetDeleteRequestPartition] = ()


class OffsetDeleteRequest(Request, frozen=True):
    api_key = 47
    valid_versions = "0"
    flexible_versions = "none"

    group_id: String = ""
    topics: Sequence[OffsetDeleteRequestTopic] = ()


class OffsetDeleteResponsePartition(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[OffsetDeleteResponsePartition] = ()


class OffsetDeleteResponse(Response, frozen=True):
    api_key = 47
    valid_versions = "0"
    flexible_versions = "none"

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetDeleteResponseTopic] = ()
