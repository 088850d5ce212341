"""OffsetForLeaderEpoch: where a leader epoch ended, so that a reader finds where its log went another way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int16, Int32, Int64, Message, Request, Response, String, Versions


class OffsetForLeaderPartition(Message, frozen=True):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message, frozen=True):
    topic: String = ""
    partitions: Sequence[OffsetForLeaderPartition] = ()


class OffsetForLeaderEpochRequest(Request, frozen=True):
    api_key = 23
    valid_versions = "2-4"
    flexible_versions = "4+"

    replica_id: Annotated[Int32, Versions("3+")] = -2
    topics: Sequence[OffsetForLeaderTopic] = ()


class EpochEndOffset(Message, frozen=True):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message, frozen=True):
    topic: String = ""
    partitions: Sequence[EpochEndOffset] = ()


class OffsetForLeaderEpochResponse(Response, frozen=True):
    api_key = 23
    valid_versions = "2-4"
    flexible_versions = "4+"

    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetForLeaderTopicResult] = ()
