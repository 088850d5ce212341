"""Topics, their configs, their records and their sizes: one function an act.

Each of these names one thing (or a list of alike things) and raises the first refusal as `BrokerError`: a
command that was asked for five topics says which one failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from penstock.client.errors import TopicMissingError
from penstock.client.kafka.cluster_client import ClusterClient
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.codec.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.codec.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from penstock.codec.kafka.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.codec.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.codec.kafka.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.codec.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.net.errors import BrokerError

TIMEOUT_MS: Final = 30_000

RESOURCE_TOPIC: Final = 2
_OPERATION_SET: Final = 0
_OPERATION_DELETE: Final = 1

# The numbers of Kafka's ConfigSource.
_CONFIG_SOURCES: Final = {
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default broker",
    4: "static broker",
    5: "default",
    6: "dynamic broker logger",
}
_NOBODYS: Final = "default"
# Of which one request asks for a setting: its reply stays small.
_TOPICS_AT_ONCE: Final = 200


class TopicConfigValue(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool


async def create_topic(
    client: ClusterClient,
    name: str,
    *,
    partitions: int,
    configs: Mapping[str, str] | None = None,
    replication: int = -1,
    validate_only: bool = False,
) -> None:
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=validate_only)
    reply = await (await client.controller()).call(request, CreateTopicsResponse)
    for answer in reply.topics:
        _check(answer.error_code, f"topic {name!r} was not created", answer.error_message)
    client.forget(name)


async def delete_topics(client: ClusterClient, names: Sequence[str]) -> None:
    controller = await client.controller()
    # From version 6 on topics are given by name or id in one field, before that as plain names.
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names], topic_names=list(names), timeout_ms=TIMEOUT_MS
    )
    reply = await controller.call(request, DeleteTopicsResponse)
    for name in names:
        client.forget(name)
    for answer in reply.responses:
        if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicMissingError(answer.name or "?")
        _check(answer.error_code, f"topic {answer.name!r} was not deleted", answer.error_message)


async def create_partitions(client: ClusterClient, topic: str, *, count: int) -> None:
    """Raises the number of partitions to `count`."""
    wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=False)
    reply = await (await client.controller()).call(request, CreatePartitionsResponse)
    for answer in reply.results:
        _check(answer.error_code, f"topic {topic!r} was not given {count} partitions", answer.error_message)
    client.forget(topic)


async def describe_topic_configs(client: ClusterClient, topic: str) -> list[TopicConfigValue]:
    """Every config of the topic with its source, by name."""
    resource = DescribeConfigsResource(resource_type=RESOURCE_TOPIC, resource_name=topic, configuration_keys=None)
    reply = await client.call(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse)
    values: list[TopicConfigValue] = []
    for result in reply.results:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicMissingError(topic)
        _check(result.error_code, f"configs of topic {topic!r}", result.error_message)
        for config in result.configs:
            values.append(
                TopicConfigValue(
                    name=config.name,
                    value=config.value,
                    source=_CONFIG_SOURCES.get(config.config_source, "unknown"),
                    is_default=config.config_source != 1,
                    is_read_only=config.read_only,
                    is_sensitive=config.is_sensitive,
                )
            )
    return sorted(values, key=lambda value: value.name)


async def describe_setting(client: ClusterClient, topics: Sequence[str], name: str) -> dict[str, str]:
    """What each topic has of one setting, its own or a node's; not of those that leave it to the default."""
    found: dict[str, str] = {}
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        resources = [
            DescribeConfigsResource(resource_type=RESOURCE_TOPIC, resource_name=topic, configuration_keys=[name])
            for topic in topics[start : start + _TOPICS_AT_ONCE]
        ]
        reply = await client.call(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
        found |= {
            result.resource_name: config.value
            for result in reply.results
            for config in result.configs
            if config.value is not None and _CONFIG_SOURCES.get(config.config_source) != _NOBODYS
        }
    return found


async def alter_topic_configs(
    client: ClusterClient, topic: str, *, changes: Mapping[str, str], removals: Sequence[str] = ()
) -> None:
    """Sets some configs and returns others to their defaults; the rest stays as it is."""
    configs = [
        AlterableConfig(name=name, config_operation=_OPERATION_SET, value=value) for name, value in changes.items()
    ]
    configs += [AlterableConfig(name=name, config_operation=_OPERATION_DELETE, value=None) for name in removals]
    resource = AlterConfigsResource(resource_type=RESOURCE_TOPIC, resource_name=topic, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    reply = await (await client.controller()).call(request, IncrementalAlterConfigsResponse)
    for answer in reply.responses:
        if answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicMissingError(topic)
        _check(answer.error_code, f"configs of topic {topic!r} were not changed", answer.error_message)


async def delete_records(client: ClusterClient, topic: str, before: Mapping[int, int]) -> dict[int, int]:
    """Drops everything before the given offsets (-1: all of it); returns where each partition starts now."""
    starts: dict[int, int] = {}
    for partition, offset in sorted(before.items()):
        connection = await client.leader(topic, partition)
        wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[wanted])], timeout_ms=TIMEOUT_MS
        )
        reply = await connection.call(request, DeleteRecordsResponse)
        for answer in (found for answered in reply.topics for found in answered.partitions):
            _check(answer.error_code, f"records of partition {partition} of topic {topic!r} were not deleted")
            starts[partition] = answer.low_watermark
    return starts


async def partition_sizes(client: ClusterClient, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Bytes on disk by partition, the largest replica's; a partition that nobody reports is left out."""
    request = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic, partitions=list(partitions))])
    sizes: dict[int, int] = {}
    for broker in client.brokers:
        connection = await client.connection_to(broker.node_id)
        if not connection.supports(request.api_key):
            continue
        reply = await connection.call(request, DescribeLogDirsResponse)
        for directory in reply.results:
            for answered in directory.topics:
                if answered.name != topic:
                    continue
                for found in answered.partitions:
                    known = sizes.get(found.partition_index, 0)
                    sizes[found.partition_index] = max(known, found.partition_size)
    return sizes


def _check(code: int, what: str, detail: str | None = None) -> None:
    if code != 0:
        raise BrokerError(code, what, detail)
