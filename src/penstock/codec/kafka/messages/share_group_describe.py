"""ShareGroupDescribe (KIP-932): the members of share groups and what each of them reads."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import NO_UUID, Bool, Int16, Int32, Message, Request, Response, String, Uuid


class ShareGroupDescribeRequest(Request, frozen=True):
    api_key = 77
    valid_versions = "1"
    flexible_versions = "0+"

    group_ids: Sequence[String] = ()
    include_authorized_operations: Bool = False


class TopicPartitions(Message, frozen=True):
    topic_id: Uuid = NO_UUID
    topic_name: String = ""
    partitions: Sequence[Int32] = ()


class Assignment(Message, frozen=True):
    topic_partitions: Sequence[TopicPartitions] = ()


class Member(Message, frozen=True):
    member_id: String = ""
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: Sequence[String] = ()
    assignment: Assignment = Assignment()


class DescribedGroup(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: Sequence[Member] = ()
    authorized_operations: Int32 = -2147483648


class ShareGroupDescribeResponse(Response, frozen=True):
    api_key = 77
    valid_versions = "1"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedGroup] = ()
