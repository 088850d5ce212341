"""InitializeShareGroupState (KIP-932): a broker has a share group begin with a partition."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Int64, Message, Request, Response, String, Uuid


class PartitionData(Message, frozen=True):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


class InitializeStateData(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionData] = ()


class InitializeShareGroupStateRequest(Request, frozen=True):
    api_key = 83
    valid_versions = "0"
    flexible_versions = "0+"

    group_id: String = ""
    topics: Sequence[InitializeStateData] = ()


class PartitionResult(Message, frozen=True):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class InitializeStateResult(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionResult] = ()


class InitializeShareGroupStateResponse(Response, frozen=True):
    api_key = 83
    valid_versions = "0"
    flexible_versions = "0+"

    results: Sequence[InitializeStateResult] = ()
