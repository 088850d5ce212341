"""WriteShareGroupState (KIP-932): a broker tells another how far a share group is with a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Request,
    Response,
    String,
    Uuid,
    Versions,
)


class StateBatch(Message, frozen=True):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class PartitionData(Message, frozen=True):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Versions("1+")] = -1
    state_batches: Sequence[StateBatch] = ()


class WriteStateData(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionData] = ()


class WriteShareGroupStateRequest(Request, frozen=True):
    api_key = 85
    valid_versions = "0-1"
    flexible_versions = "0+"

    group_id: String = ""
    topics: Sequence[WriteStateData] = ()


class PartitionResult(Message, frozen=True):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class WriteStateResult(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionResult] = ()


class WriteShareGroupStateResponse(Response, frozen=True):
    api_key = 85
    valid_versions = "0-1"
    flexible_versions = "0+"

    results: Sequence[WriteStateResult] = ()
