"""ListPartitionReassignments: which partitions are on their way to other nodes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int16, Int32, Message, Request, Response, String


class ListPartitionReassignmentsTopics(Message, frozen=True):
    name: String = ""
    partition_indexes: Sequence[Int32] = ()


class ListPartitionReassignmentsRequest(Request, frozen=True):
    api_key = 46
    valid_versions = "0"
    flexible_versions = "0+"

    timeout_ms: Int32 = 60000
    topics: Sequence[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Message, frozen=True):
    partition_index: Int32 = 0
    replicas: Sequence[Int32] = ()
    adding_replicas: Sequence[Int32] = ()
    removing_replicas: Sequence[Int32] = ()


class OngoingTopicReassignment(Message, frozen=True):
    name: String = ""
    partitions: Sequence[OngoingPartitionReassignment] = ()


class ListPartitionReassignmentsResponse(Response, frozen=True):
    api_key = 46
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: Sequence[OngoingTopicReassignment] = ()
