"""CreateTopics: new topics, with their partitions or an explicit assignment, and their configuration."""

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
    Tagged,
    Uuid,
    Versions,
)


class CreatableReplicaAssignment(Message, frozen=True):
    partition_index: Int32 = 0
    broker_ids: Sequence[Int32] = ()


class CreatableTopicConfig(Message, frozen=True):
    name: String = ""
    value: String | None = None


class CreatableTopic(Message, frozen=True):
    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: Sequence[CreatableReplicaAssignment] = ()
    configs: Sequence[CreatableTopicConfig] = ()


class CreateTopicsRequest(Request, frozen=True):
    api_key = 19
    valid_versions = "2-7"
    flexible_versions = "5+"

    topics: Sequence[CreatableTopic] = ()
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreatableTopicConfigs(Message, frozen=True):
    name: String = ""
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Message, frozen=True):
    name: String = ""
    topic_id: Annotated[Uuid, Versions("7+")] = NO_UUID
    error_code: Int16 = 0
    error_message: String | None = None
    topic_config_error_code: Annotated[Int16, Tagged(0, "5+")] = 0
    num_partitions: Annotated[Int32, Versions("5+")] = -1
    replication_factor: Annotated[Int16, Versions("5+")] = -1
    configs: Annotated[Sequence[CreatableTopicConfigs] | None, Versions("5+")] = ()


class CreateTopicsResponse(Response, frozen=True):
    api_key = 19
    valid_versions = "2-7"
    flexible_versions = "5+"

    throttle_time_ms: Int32 = 0
    topics: Sequence[CreatableTopicResult] = ()
