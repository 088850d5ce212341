"""ReadShareGroupStateSummary (KIP-932): a broker asks another where a share group begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Int64, Message, Request, Response, String, Uuid, Versions


class PartitionData(Message, frozen=True):
    partition: Int32 = 0
    leader_epoch: Int32 = 0


class ReadStateSummaryData(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionData] = ()


class ReadShareGroupStateSummaryRequest(Request, frozen=True):
    api_key = 87
    valid_versions = "0-1"
    flexible_versions = "0+"

    group_id: String = ""
    topics: Sequence[ReadStateSummaryData] = ()


class PartitionResult(Message, frozen=True):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Versions("1+")] = -1


class ReadStateSummaryResult(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[PartitionResult] = ()


class ReadShareGroupStateSummaryResponse(Response, frozen=True):
    api_key = 87
    valid_versions = "0-1"
    flexible_versions = "0+"

    results: Sequence[ReadStateSummaryResult] = ()
