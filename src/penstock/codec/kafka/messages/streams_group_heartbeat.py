"""StreamsGroupHeartbeat (KIP-1071): a member of a streams group joins, reports, is given tasks, leaves."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Bool, Int8, Int16, Int32, Int64, Message, Request, Response, String, Uint16


class KeyValue(Message, frozen=True):
    key: String = ""
    value: String = ""


class TopicInfo(Message, frozen=True):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: Sequence[KeyValue] = ()


class CopartitionGroup(Message, frozen=True):
    source_topics: Sequence[Int16] = ()
    source_topic_regex: Sequence[Int16] = ()
    repartition_source_topics: Sequence[Int16] = ()


class Subtopology(Message, frozen=True):
    subtopology_id: String = ""
    source_topics: Sequence[String] = ()
    source_topic_regex: Sequence[String] = ()
    state_changelog_topics: Sequence[TopicInfo] = ()
    repartition_sink_topics: Sequence[String] = ()
    repartition_source_topics: Sequence[TopicInfo] = ()
    copartition_groups: Sequence[CopartitionGroup] = ()


class Topology(Message, frozen=True):
    epoch: Int32 = 0
    subtopologies: Sequence[Subtopology] = ()


class TaskIds(Message, frozen=True):
    subtopology_id: String = ""
    partitions: Sequence[Int32] = ()


class Endpoint(Message, frozen=True):
    host: String = ""
    port: Uint16 = 0


class TaskOffset(Message, frozen=True):
    subtopology_id: String = ""
    partition: Int32 = 0
    offset: Int64 = 0


class StreamsGroupHeartbeatRequest(Request, frozen=True):
    api_key = 88
    valid_versions = "0"
    flexible_versions = "0+"

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: Topology | None = None
    active_tasks: Sequence[TaskIds] | None = None
    standby_tasks: Sequence[TaskIds] | None = None
    warmup_tasks: Sequence[TaskIds] | None = None
    process_id: String | None = None
    user_endpoint: Endpoint | None = None
    client_tags: Sequence[KeyValue] | None = None
    task_offsets: Sequence[TaskOffset] | None = None
    task_end_offsets: Sequence[TaskOffset] | None = None
    shutdown_application: Bool = False


class Status(Message, frozen=True):
    status_code: Int8 = 0
    status_detail: String = ""


class TopicPartition(Message, frozen=True):
    topic: String = ""
    partitions: Sequence[Int32] = ()


class EndpointToPartitions(Message, frozen=True):
    user_endpoint: Endpoint = Endpoint()
    active_partitions: Sequence[TopicPartition] = ()
    standby_partitions: Sequence[TopicPartition] = ()


class StreamsGroupHeartbeatResponse(Response, frozen=True):
    api_key = 88
    valid_versions = "0"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag: Int32 = 0
    task_offset_interval_ms: Int32 = 0
    status: Sequence[Status] | None = ()
    active_tasks: Sequence[TaskIds] | None = None
    standby_tasks: Sequence[TaskIds] | None = None
    warmup_tasks: Sequence[TaskIds] | None = None
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: Sequence[EndpointToPartitions] | None = None
