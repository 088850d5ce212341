"""ListOffsets: the offset at a moment. Negative timestamps have a meaning each: -1 the end, -2 the start, -3
the record with the largest timestamp, -4 the start of what is local, -5 the last tiered one, -6 the first
not tiered yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int8, Int16, Int32, Int64, Message, Request, Response, String, Versions


class ListOffsetsPartition(Message, frozen=True):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, Versions("4+")] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[ListOffsetsPartition] = ()


class ListOffsetsRequest(Request, frozen=True):
    api_key = 2
    valid_versions = "1-11"
    flexible_versions = "6+"

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, Versions("2+")] = 0
    topics: Sequence[ListOffsetsTopic] = ()
    timeout_ms: Annotated[Int32, Versions("10+")] = 0


class ListOffsetsPartitionResponse(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Versions("4+")] = -1


class ListOffsetsTopicResponse(Message, frozen=True):
    name: String = ""
    partitions: Sequence[ListOffsetsPartitionResponse] = ()


class ListOffsetsResponse(Response, frozen=True):
    api_key = 2
    valid_versions = "1-11"
    flexible_versions = "6+"

    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    topics: Sequence[ListOffsetsTopicResponse] = ()
