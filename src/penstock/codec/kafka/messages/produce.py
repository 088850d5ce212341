"""Produce: record batches for some partitions, and where they were put.

Versions 0 to 2 carry message sets of old formats, which nobody stores any more: they can be decoded because
version 0 must be advertised (librdkafka up to 2.0.2 takes a higher minimum as a reason to send everything
uncompressed). Version 13 names topics by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    Request,
    Response,
    String,
    Tagged,
    Uuid,
    Versions,
)


class PartitionProduceData(Message, frozen=True):
    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Message, frozen=True):
    name: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_UUID
    partition_data: Sequence[PartitionProduceData] = ()


class ProduceRequest(Request, frozen=True):
    api_key = 0
    valid_versions = "0-13"
    flexible_versions = "9+"

    transactional_id: Annotated[String | None, Versions("3+")] = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: Sequence[TopicProduceData] = ()


class BatchIndexAndErrorMessage(Message, frozen=True):
    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


class LeaderIdAndEpoch(Message, frozen=True):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Message, frozen=True):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Annotated[Int64, Versions("2+")] = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    record_errors: Annotated[Sequence[BatchIndexAndErrorMessage], Versions("8+")] = ()
    error_message: Annotated[String | None, Versions("8+")] = None
    current_leader: Annotated[LeaderIdAndEpoch, Tagged(0, "10+")] = LeaderIdAndEpoch()


class TopicProduceResponse(Message, frozen=True):
    name: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = NO_UUID
    partition_responses: Sequence[PartitionProduceResponse] = ()


class NodeEndpoint(Message, frozen=True):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ProduceResponse(Response, frozen=True):
    api_key = 0
    valid_versions = "0-13"
    flexible_versions = "9+"

    responses: Sequence[TopicProduceResponse] = ()
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], Tagged(0, "10+")] = ()
