"""ReadShareGroupState (KIP-932): a broker asks another how far a share group is with a partition."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Int8, Int16, Int32, Int64, Message, Request, Response, String, Uuid


class PartitionData(Message, frozen=True):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateData(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionData] = ()


class ReadShareGroupStateRequest(Request, frozen=True):
    api_key = 84
    valid_versions = "0"
    flexible_versions = "0+"

    group_id: String = ""
    topics: Sequence[ReadStateData] = ()


class StateBatch(Message, frozen=True):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class PartitionResult(Message, frozen=True):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: Sequence[StateBatch] = ()


class ReadStateResult(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionResult] = ()


class ReadShareGroupStateResponse(Response, frozen=True):
    api_key = 84
    valid_versions = "0"
    flexible_versions = "0+"

    results: Sequence[ReadStateResult] = ()
