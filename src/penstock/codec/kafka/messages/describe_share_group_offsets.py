"""DescribeShareGroupOffsets (KIP-932): where share groups begin in each partition. Version 1 tells the lag."""

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


class DescribeShareGroupOffsetsRequestTopic(Message, frozen=True):
    topic_name: String = ""
    partitions: Sequence[Int32] = ()


class DescribeShareGroupOffsetsRequestGroup(Message, frozen=True):
    group_id: String = ""
    topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = ()


class DescribeShareGroupOffsetsRequest(Request, frozen=True):
    api_key = 90
    valid_versions = "0-1"
    flexible_versions = "0+"

    groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = ()


class DescribeShareGroupOffsetsResponsePartition(Message, frozen=True):
    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Annotated[Int64, Versions("1+")] = -1
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponseTopic(Message, frozen=True):
    topic_name: String = ""
    topic_id: Uuid = NO_UUID
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = ()


class DescribeShareGroupOffsetsResponseGroup(Message, frozen=True):
    group_id: String = ""
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = ()
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponse(Response, frozen=True):
    api_key = 90
    valid_versions = "0-1"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = ()
