"""DescribeQuorum: who keeps the metadata of the cluster, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Int16,
    Int32,
    Int64,
    Message,
    Request,
    Response,
    String,
    Uint16,
    Uuid,
    Versions,
)


class AskedPartition(Message, frozen=True):
    partition_index: Int32 = 0


class AskedTopic(Message, frozen=True):
    topic_name: String = ""
    partitions: Sequence[AskedPartition] = ()


class DescribeQuorumRequest(Request, frozen=True):
    api_key = 55
    valid_versions = "0-2"
    flexible_versions = "0+"

    topics: Sequence[AskedTopic] = ()


class ReplicaState(Message, frozen=True):
    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, Versions("2+")] = NO_UUID
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, Versions("1+")] = -1
    last_caught_up_timestamp: Annotated[Int64, Versions("1+")] = -1


class PartitionData(Message, frozen=True):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, Versions("2+")] = None
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: Sequence[ReplicaState] = ()
    observers: Sequence[ReplicaState] = ()


class TopicData(Message, frozen=True):
    topic_name: String = ""
    partitions: Sequence[PartitionData] = ()


class Listener(Message, frozen=True):
    name: String = ""
    host: String = ""
    port: Uint16 = 0


class Node(Message, frozen=True):
    node_id: Int32 = 0
    listeners: Sequence[Listener] = ()


class DescribeQuorumResponse(Response, frozen=True):
    api_key = 55
    valid_versions = "0-2"
    flexible_versions = "0+"

    error_code: Int16 = 0
    error_message: Annotated[String | None, Versions("2+")] = None
    topics: Sequence[TopicData] = ()
    nodes: Annotated[Sequence[Node], Versions("2+")] = ()
