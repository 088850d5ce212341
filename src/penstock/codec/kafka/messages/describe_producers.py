"""DescribeProducers: the producers active on partitions."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int16, Int32, Int64, Message, Request, Response, String


class TopicRequest(Message, frozen=True):
    name: String = ""
    partition_indexes: Sequence[Int32] = ()


class DescribeProducersRequest(Request, frozen=True):
    api_key = 61
    valid_versions = "0"
    flexible_versions = "0+"

    topics: Sequence[TopicRequest] = ()


class ProducerState(Message, frozen=True):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: Sequence[ProducerState] = ()


class TopicResponse(Message, frozen=True):
    name: String = ""
    partitions: Sequence[PartitionResponse] = ()


class DescribeProducersResponse(Response, frozen=True):
    api_key = 61
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    topics: Sequence[TopicResponse] = ()
