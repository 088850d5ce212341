"""DescribeTopicPartitions: like Metadata, a page at a time, with a cursor to go on from."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Bool, Int16, Int32, Message, Request, Response, String, Uuid


class TopicRequest(Message, frozen=True):
    name: String = ""


class Cursor(Message, frozen=True):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(Request, frozen=True):
    api_key = 75
    valid_versions = "0"
    flexible_versions = "0+"

    topics: Sequence[TopicRequest] = ()
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message, frozen=True):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: Sequence[Int32] = ()
    isr_nodes: Sequence[Int32] = ()
    eligible_leader_replicas: Sequence[Int32] | None = None
    last_known_elr: Sequence[Int32] | None = None
    offline_replicas: Sequence[Int32] = ()


class DescribeTopicPartitionsResponseTopic(Message, frozen=True):
    error_code: Int16 = 0
    name: String | None = ""
    topic_id: Uuid = NO_UUID
    is_internal: Bool = False
    partitions: Sequence[DescribeTopicPartitionsResponsePartition] = ()
    topic_authorized_operations: Int32 = -0x80000000


class DescribeTopicPartitionsResponse(Response, frozen=True):
    api_key = 75
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    topics: Sequence[DescribeTopicPartitionsResponseTopic] = ()
    next_cursor: Cursor | None = None
