"""DeleteRecords: moves the start of partitions up to an offset; -1 is the high watermark."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Int16, Int32, Int64, Message, Request, Response, String


class DeleteRecordsPartition(Message, frozen=True):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[DeleteRecordsPartition] = ()


class DeleteRecordsRequest(Request, frozen=True):
    api_key = 21
    valid_versions = "0-2"
    flexible_versions = "2+"

    topics: Sequence[DeleteRecordsTopic] = ()
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Message, frozen=True):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message, frozen=True):
    name: String = ""
    partitions: Sequence[DeleteRecordsPartitionResult] = ()


class DeleteRecordsResponse(Response, frozen=True):
    api_key = 21
    valid_versions = "0-2"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    topics: Sequence[DeleteRecordsTopicResult] = ()
