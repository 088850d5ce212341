"""DeleteShareGroupState (KIP-932): a broker has another forget a share group's partition."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Message, Request, Response, String, Uuid


class PartitionData(Message, frozen=True):
    partition: Int32 = 0


class DeleteStateData(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionData] = ()


class DeleteShareGroupStateRequest(Request, frozen=True):
    api_key = 86
    valid_versions = "0"
    flexible_versions = "0+"

    group_id: String = ""
    topics: Sequence[DeleteStateData] = ()


class PartitionResult(Message, frozen=True):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteStateResult(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionResult] = ()


class DeleteShareGroupStateResponse(Response, frozen=True):
    api_key = 86
    valid_versions = "0"
    flexible_versions = "0+"

    results: Sequence[DeleteStateResult] = ()
