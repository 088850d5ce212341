"""Metadata: brokers, topics, partitions and their leaders. No topics means all of them in version 0, none
from 1 on, where null means all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Bool,
    Int16,
    Int32,
    Message,
    Nullable,
    Request,
    Response,
    String,
    Uuid,
    Versions,
)


class MetadataRequestTopic(Message, frozen=True):
    topic_id: Annotated[Uuid, Versions("10+")] = NO_UUID
    name: Annotated[String | None, Nullable("10+")] = ""


class MetadataRequest(Request, frozen=True):
    api_key = 3
    valid_versions = "0-13"
    flexible_versions = "9+"

    topics: Annotated[Sequence[MetadataRequestTopic] | None, Nullable("1+")] = ()
    allow_auto_topic_creation: Annotated[Bool, Versions("4+")] = True
    include_cluster_authorized_operations: Annotated[Bool, Versions("8-10")] = False
    include_topic_authorized_operations: Annotated[Bool, Versions("8+")] = False


class MetadataResponseBroker(Message, frozen=True):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, Versions("1+")] = None


class MetadataResponsePartition(Message, frozen=True):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, Versions("7+")] = -1
    replica_nodes: Sequence[Int32] = ()
    isr_nodes: Sequence[Int32] = ()
    offline_replicas: Annotated[Sequence[Int32], Versions("5+")] = ()


class MetadataResponseTopic(Message, frozen=True):
    error_code: Int16 = 0
    name: Annotated[String | None, Nullable("12+")] = ""
    topic_id: Annotated[Uuid, Versions("10+")] = NO_UUID
    is_internal: Annotated[Bool, Versions("1+")] = False
    partitions: Sequence[MetadataResponsePartition] = ()
    topic_authorized_operations: Annotated[Int32, Versions("8+")] = -0x80000000


class MetadataResponse(Response, frozen=True):
    api_key = 3
    valid_versions = "0-13"
    flexible_versions = "9+"

    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    brokers: Sequence[MetadataResponseBroker] = ()
    cluster_id: Annotated[String | None, Versions("2+")] = None
    controller_id: Annotated[Int32, Versions("1+")] = -1
    topics: Sequence[MetadataResponseTopic] = ()
    cluster_authorized_operations: Annotated[Int32, Versions("8-10")] = -0x80000000
    error_code: Annotated[Int16, Versions("13+")] = 0
