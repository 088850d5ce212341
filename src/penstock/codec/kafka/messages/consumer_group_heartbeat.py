"""ConsumerGroupHeartbeat: the one request of the KIP-848 protocol: join, report, be assigned, leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Int16,
    Int32,
    Message,
    Request,
    Response,
    String,
    Uuid,
    Versions,
)


class TopicPartitions(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[Int32] = ()


class ConsumerGroupHeartbeatRequest(Request, frozen=True):
    api_key = 68
    valid_versions = "0-1"
    flexible_versions = "0+"

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: Sequence[String] | None = None
    subscribed_topic_regex: Annotated[String | None, Versions("1+")] = None
    server_assignor: String | None = None
    topic_partitions: Sequence[TopicPartitions] | None = None


class Assignment(Message, frozen=True):
    topic_partitions: Sequence[TopicPartitions] = ()


class ConsumerGroupHeartbeatResponse(Response, frozen=True):
    api_key = 68
    valid_versions = "0-1"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
