"""ConsumerGroupDescribe: the state, the members and the assignments of KIP-848 groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    NO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    Request,
    Response,
    String,
    Uuid,
    Versions,
)


class ConsumerGroupDescribeRequest(Request, frozen=True):
    api_key = 69
    valid_versions = "0-1"
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
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: Sequence[String] = ()
    subscribed_topic_regex: String | None = None
    assignment: Assignment = Assignment()
    target_assignment: Assignment = Assignment()
    member_type: Annotated[Int8, Versions("1+")] = -1


class DescribedGroup(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: Sequence[Member] = ()
    authorized_operations: Int32 = -0x80000000


class ConsumerGroupDescribeResponse(Response, frozen=True):
    api_key = 69
    valid_versions = "0-1"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedGroup] = ()
