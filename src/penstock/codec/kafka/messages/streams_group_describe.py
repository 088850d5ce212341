"""StreamsGroupDescribe (KIP-1071): streams groups, their topology and their members."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.messages.streams_group_heartbeat import Endpoint, KeyValue, TaskIds, TaskOffset, TopicInfo
from penstock.codec.kafka.schema import Bool, Int16, Int32, Message, Request, Response, String


class StreamsGroupDescribeRequest(Request, frozen=True):
    api_key = 89
    valid_versions = "0"
    flexible_versions = "0+"

    group_ids: Sequence[String] = ()
    include_authorized_operations: Bool = False


class Subtopology(Message, frozen=True):
    subtopology_id: String = ""
    source_topics: Sequence[String] = ()
    repartition_sink_topics: Sequence[String] = ()
    state_changelog_topics: Sequence[TopicInfo] = ()
    repartition_source_topics: Sequence[TopicInfo] = ()


class Topology(Message, frozen=True):
    epoch: Int32 = 0
    subtopologies: Sequence[Subtopology] | None = None


class Assignment(Message, frozen=True):
    active_tasks: Sequence[TaskIds] = ()
    standby_tasks: Sequence[TaskIds] = ()
    warmup_tasks: Sequence[TaskIds] = ()


class Member(Message, frozen=True):
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = None
    client_tags: Sequence[KeyValue] = ()
    task_offsets: Sequence[TaskOffset] = ()
    task_end_offsets: Sequence[TaskOffset] = ()
    assignment: Assignment = Assignment()
    target_assignment: Assignment = Assignment()
    is_classic: Bool = False


class DescribedGroup(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: Topology | None = None
    members: Sequence[Member] = ()
    authorized_operations: Int32 = -2147483648


class StreamsGroupDescribeResponse(Response, frozen=True):
    api_key = 89
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedGroup] = ()
