"""AlterPartitionReassignments: on which nodes partitions shall be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bool, Int16, Int32, Message, Request, Response, String, Versions


class ReassignablePartition(Message, frozen=True):
    partition_index: Int32 = 0
    replicas: Sequence[Int32] | None = None


class ReassignableTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[ReassignablePartition] = ()


class AlterPartitionReassignmentsRequest(Request, frozen=True):
    api_key = 45
    valid_versions = "0-1"
    flexible_versions = "0+"

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, Versions("1+")] = True
    topics: Sequence[ReassignableTopic] = ()


class ReassignablePartitionResponse(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class ReassignableTopicResponse(Message, frozen=True):
    name: String = ""
    partitions: Sequence[ReassignablePartitionResponse] = ()


class AlterPartitionReassignmentsResponse(Response, frozen=True):
    api_key = 45
    valid_versions = "0-1"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Versions("1+")] = True
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Sequence[ReassignableTopicResponse] = ()
