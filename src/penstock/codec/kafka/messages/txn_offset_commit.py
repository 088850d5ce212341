"""TxnOffsetCommit: a group's positions, valid once the transaction commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int16, Int32, Int64, Message, Request, Response, String, Versions


class TxnOffsetCommitRequestPartition(Message, frozen=True):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Versions("2+")] = -1
    committed_metadata: String | None = ""


class TxnOffsetCommitRequestTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[TxnOffsetCommitRequestPartition] = ()


class TxnOffsetCommitRequest(Request, frozen=True):
    api_key = 28
    valid_versions = "0-5"
    flexible_versions = "3+"

    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, Versions("3+")] = -1
    member_id: Annotated[String, Versions("3+")] = ""
    group_instance_id: Annotated[String | None, Versions("3+")] = None
    topics: Sequence[TxnOffsetCommitRequestTopic] = ()


class TxnOffsetCommitResponsePartition(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message, frozen=True):
    name: String = ""
    partitions: Sequence[TxnOffsetCommitResponsePartition] = ()


class TxnOffsetCommitResponse(Response, frozen=True):
    api_key = 28
    valid_versions = "0-5"
    flexible_versions = "3+"

    throttle_time_ms: Int32 = 0
    topics: Sequence[TxnOffsetCommitResponseTopic] = ()
