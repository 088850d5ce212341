"""ElectLeaders: partitions get the leader that they should have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int8, Int16, Int32, Message, Request, Response, String, Versions


class TopicPartitions(Message, frozen=True):
    topic: String = ""
    partitions: Sequence[Int32] = ()


class ElectLeadersRequest(Request, frozen=True):
    api_key = 43
    valid_versions = "0-2"
    flexible_versions = "2+"

    election_type: Annotated[Int8, Versions("1+")] = 0
    topic_partitions: Sequence[TopicPartitions] | None = ()
    timeout_ms: Int32 = 60000


class PartitionResult(Message, frozen=True):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class ReplicaElectionResult(Message, frozen=True):
    topic: String = ""
    partition_result: Sequence[PartitionResult] = ()


class ElectLeadersResponse(Response, frozen=True):
    api_key = 43
    valid_versions = "0-2"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("1+")] = 0
    replica_election_results: Sequence[ReplicaElectionResult] = ()
