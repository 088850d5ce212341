"""ShareGroupHeartbeat (KIP-932): a member of a share group joins, reports, is assigned partitions, leaves.

Version 0 was that of an early preview; clients begin with 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Int16, Int32, Message, Request, Response, String, Uuid


class ShareGroupHeartbeatRequest(Request, frozen=True):
    api_key = 76
    valid_versions = "1"
    flexible_versions = "0+"

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: String | None = None
    subscribed_topic_names: Sequence[String] | None = None


class TopicPartitions(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    partitions: Sequence[Int32] = ()


class Assignment(Message, frozen=True):
    topic_partitions: Sequence[TopicPartitions] = ()


class ShareGroupHeartbeatResponse(Response, frozen=True):
    api_key = 76
    valid_versions = "1"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
