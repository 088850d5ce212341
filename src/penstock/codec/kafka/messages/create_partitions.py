"""CreatePartitions: raises the number of partitions of topics."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Bool, Int16, Int32, Message, Request, Response, String


class CreatePartitionsAssignment(Message, frozen=True):
    broker_ids: Sequence[Int32] = ()


class CreatePartitionsTopic(Message, frozen=True):
    name: String = ""
    count: Int32 = 0
    assignments: Sequence[CreatePartitionsAssignment] | None = ()


class CreatePartitionsRequest(Request, frozen=True):
    api_key = 37
    valid_versions = "0-3"
    flexible_versions = "2+"

    topics: Sequence[CreatePartitionsTopic] = ()
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message, frozen=True):
    name: String = ""
    error_code: Int16 = 0
    error_message: String | None = None


class CreatePartitionsResponse(Response, frozen=True):
    api_key = 37
    valid_versions = "0-3"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    results: Sequence[CreatePartitionsTopicResult] = ()
