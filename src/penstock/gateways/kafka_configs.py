"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, DescribeLogDirs: settings, and what they cost in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.broker.broker import Broker
from penstock.cluster.topic_catalog import Altered, InvalidConfig, TopicCatalog, UnknownTopic
from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages import alter_configs, incremental_alter_configs
from penstock.codec.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from penstock.codec.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from penstock.codec.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.codec.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.domain import access
from penstock.domain.access import CLUSTER, Authorizer, Operation
from penstock.domain.config_change import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    describe,
    node_entries_of_topic_defaults,
)
from penstock.domain.topic_config import DEFINITIONS
from penstock.gateways.kafka_context import RequestContext
from penstock.gateways.kafka_store import STORE_FAILED_CODE, StoreFailed, ask_store

TOPIC: Final = 2
BROKER: Final = 4


class _Refused(msgspec.Struct, frozen=True):
    code: ErrorCode
    reason: str


class ConfigsHandler:
    def __init__(
        self,
        broker: Broker,
        catalog: TopicCatalog,
        authorizer: Authorizer,
        *,
        node_id: int,
        node_entries: Sequence[ConfigEntry],
    ) -> None:
        self._broker = broker
        self._catalog = catalog
        self._authorizer = authorizer
        self._node_id = node_id
        self._node_entries = node_entries

    # DescribeConfigs

    def describe_configs(self, request: DescribeConfigsRequest, context: RequestContext) -> DescribeConfigsResponse:
        return DescribeConfigsResponse(
            results=[self._describe(resource, request, context) for resource in request.resources]
        )

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResult:
        entries = self._entries(resource, context)
        if isinstance(entries, _Refused):
            return DescribeConfigsResult(
                error_code=entries.code,
                error_message=entries.reason,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        keys = frozenset(resource.configuration_keys or ())
        return DescribeConfigsResult(
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[_config_result(entry, request) for entry in entries if not keys or entry.name in keys],
        )

    def _entries(self, resource: DescribeConfigsResource, context: RequestContext) -> Sequence[ConfigEntry] | _Refused:
        name = resource.resource_name
        if resource.resource_type == TOPIC:
            if not self._authorizer.authorize(context.principal, Operation.DESCRIBE_CONFIGS, access.topic(name)):
                return _Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.principal} may not describe {name!r}")
            topic = self._catalog.by_name(name)
            if topic is None:
                return _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            return describe(DEFINITIONS, topic.overrides, self._broker.config.topic_defaults)
        if resource.resource_type == BROKER:
            if not self._authorizer.authorize(context.principal, Operation.DESCRIBE_CONFIGS, CLUSTER):
                return _Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.principal} may not describe nodes")
            if name not in {"", str(self._node_id)}:
                return _Refused(ErrorCode.INVALID_REQUEST, f"node {name!r} is not this node, {self._node_id}")
            defaults = node_entries_of_topic_defaults(DEFINITIONS, self._broker.config.topic_defaults)
            return [*self._node_entries, *defaults]
        return _Refused(
            ErrorCode.INVALID_REQUEST,
            f"resource type {resource.resource_type}: topics (2) and nodes (4) have settings",
        )

    # AlterConfigs

    async def alter_configs(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        responses = []
        for resource in request.resources:
            overrides = {config.name: config.value for config in resource.configs}
            refused = self._refuse_alter(resource.resource_type, resource.resource_name, context)
            if refused is None:
                outcome = await ask_store(
                    self._catalog.replace_config(resource.resource_name, overrides, validate_only=request.validate_only)
                )
                refused = _alter_refusal(outcome)
            responses.append(
                alter_configs.AlterConfigsResourceResponse(
                    error_code=ErrorCode.NONE if refused is None else refused.code,
                    error_message=None if refused is None else refused.reason,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return AlterConfigsResponse(responses=responses)

    async def incremental_alter_configs(
        self, request: IncrementalAlterConfigsRequest, context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        responses = []
        for resource in request.resources:
            refused = self._refuse_alter(resource.resource_type, resource.resource_name, context)
            changes = _changes(resource.configs)
            if isinstance(changes, _Refused):
                refused = refused or changes
            elif refused is None:
                outcome = await ask_store(
                    self._catalog.change_config(resource.resource_name, changes, validate_only=request.validate_only)
                )
                refused = _alter_refusal(outcome)
            responses.append(
                incremental_alter_configs.AlterConfigsResourceResponse(
                    error_code=ErrorCode.NONE if refused is None else refused.code,
                    error_message=None if refused is None else refused.reason,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return IncrementalAlterConfigsResponse(responses=responses)

    def _refuse_alter(self, resource_type: int, name: str, context: RequestContext) -> _Refused | None:
        if resource_type != TOPIC:
            return _Refused(
                ErrorCode.INVALID_REQUEST,
                "only a topic's settings change while the node runs; a node's stand in its configuration",
            )
        if not self._authorizer.authorize(context.principal, Operation.ALTER_CONFIGS, access.topic(name)):
            return _Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.principal} may not alter {name!r}")
        return None

    # DescribeLogDirs

    def describe_log_dirs(self, request: DescribeLogDirsRequest, context: RequestContext) -> DescribeLogDirsResponse:
        if not self._authorizer.authorize(context.principal, Operation.DESCRIBE, CLUSTER):
            return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        wanted: dict[str, set[int] | None]
        if request.topics is None:
            wanted = {topic.name: None for topic in self._broker.topics()}
        else:
            wanted = {topic.topic: set(topic.partitions) or None for topic in request.topics}
        topics = []
        for name, indexes in wanted.items():
            topic = self._broker.topic(name)
            if topic is None:
                continue
            partitions = [
                DescribeLogDirsPartition(partition_index=shell.index, partition_size=shell.size_bytes)
                for shell in topic.partitions
                if indexes is None or shell.index in indexes
            ]
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
        space = self._broker.space()
        result = DescribeLogDirsResult(
            log_dir=space.directory,
            topics=topics,
            total_bytes=space.total_bytes,
            usable_bytes=space.usable_bytes,
        )
        return DescribeLogDirsResponse(results=(result,))


def _config_result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms: Sequence[DescribeConfigsSynonym] = ()
    if request.include_synonyms:
        synonyms = [DescribeConfigsSynonym(same.name, same.value, same.source) for same in entry.synonyms]
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


def _changes(
    configs: Sequence[incremental_alter_configs.AlterableConfig],
) -> list[ConfigChange] | _Refused:
    changes = []
    for config in configs:
        if config.config_operation not in {operation.value for operation in ConfigOperation}:
            reason = f"operation {config.config_operation} on {config.name!r} is not set, delete, append or subtract"
            return _Refused(ErrorCode.INVALID_REQUEST, reason)
        changes.append(ConfigChange(config.name, ConfigOperation(config.config_operation), config.value))
    for name, count in Counter(change.name for change in changes).items():
        if count > 1:
            return _Refused(ErrorCode.INVALID_REQUEST, f"setting {name!r} is named more than once")
    return changes


def _alter_refusal(outcome: Altered | UnknownTopic | InvalidConfig | StoreFailed) -> _Refused | None:
    if isinstance(outcome, StoreFailed):
        return _Refused(STORE_FAILED_CODE, outcome.reason)
    if isinstance(outcome, UnknownTopic):
        return _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {outcome.name!r}")
    if isinstance(outcome, InvalidConfig):
        return _Refused(ErrorCode.INVALID_CONFIG, outcome.reason)
    return None
