"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, DescribeLogDirs: settings, and what they cost in bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from penstock.base.long_work import Steps
from penstock.broker.topic.broker import Broker
from penstock.cluster.catalog.topics import Altered, InvalidConfig, Settled, TopicCatalog, UnknownTopic
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages import alter_configs, incremental_alter_configs
from penstock.codec.kafka.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource, AlterConfigsResponse
from penstock.codec.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from penstock.codec.kafka.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.codec.kafka.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from penstock.codec.kafka.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from penstock.domain import topic_rules
from penstock.domain.config import node as node_config
from penstock.domain.config.change import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigSource,
    SettingsChange,
    changed_by,
    describe,
    replaced_by,
)
from penstock.domain.config.topic import DEFINITIONS, in_force
from penstock.domain.group import settings as group_settings
from penstock.domain.security import access
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.store import STORE_FAILED_CODE, StoreFailed, ask_store

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
# Where a node is named, this stands for all of them.
ALL_NODES: Final = ""


# A cluster with more topics asks for their settings in several requests. With fifty settings each, these are told in a
# second, in slices.
DESCRIBED_MAX: Final = 20_000

AlteredResource = alter_configs.AlterConfigsResource | incremental_alter_configs.AlterConfigsResource


class _Refused(msgspec.Struct, frozen=True):
    code: ErrorCode
    reason: str


class ConfigsHandler:
    described_max = DESCRIBED_MAX

    def __init__(
        self,
        broker: Broker,
        catalog: TopicCatalog,
        admission: Admission,
        *,
        node_id: int,
        node_entries: Callable[[], Sequence[ConfigEntry]],
        node_settings: Mapping[str, str],
    ) -> None:
        self._broker = broker
        self._catalog = catalog
        self._admission = admission
        self._node_id = node_id
        self._node_entries = node_entries
        # What the configuration says of settings that change while the node runs.
        self._node_settings = node_settings

    # DescribeConfigs

    async def describe_configs(
        self, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResponse:
        results: list[DescribeConfigsResult] = []
        # Named twice, told once: ten bytes of a request are kilobytes of the reply.
        wanted = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
        pace = context.pace()
        for place, resource in enumerate(wanted.values()):
            if place >= self.described_max:
                reason = f"{len(wanted)} resources, at most {self.described_max} are described at a time"
                results.append(_not_described(resource, _Refused(ErrorCode.INVALID_REQUEST, reason)))
            else:
                results.append(self._describe(resource, request, context))
            await pace.rest_if_due()
        return DescribeConfigsResponse(results=results)

    def _describe(
        self, resource: DescribeConfigsResource, request: DescribeConfigsRequest, context: RequestContext
    ) -> DescribeConfigsResult:
        entries = self._entries(resource, context)
        if isinstance(entries, _Refused):
            return _not_described(resource, entries)
        keys = frozenset(resource.configuration_keys or ())
        return DescribeConfigsResult(
            error_message="",
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[_config_result(entry, request) for entry in entries if not keys or entry.name in keys],
        )

    def _entries(self, resource: DescribeConfigsResource, context: RequestContext) -> Sequence[ConfigEntry] | _Refused:
        name = resource.resource_name
        if resource.resource_type == TOPIC:
            if not self._admission.may(context.caller, Operation.DESCRIBE_CONFIGS, access.topic(name)):
                return _Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"{context.caller} may not describe {name!r}")
            topic = self._catalog.by_name(name)
            if topic is None and (reason := topic_rules.check_name(name)) is not None:
                return _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
            if topic is None:
                return _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
            return describe(DEFINITIONS, in_force(topic.overrides), self._broker.topic_defaults)
        if resource.resource_type == BROKER:
            if not self._admission.may(context.caller, Operation.DESCRIBE_CONFIGS, CLUSTER):
                return _Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{context.caller} may not describe nodes")
            if name not in {ALL_NODES, str(self._node_id)}:
                return self._another_node(name)
            if name == ALL_NODES:
                # Only what was set for all nodes: the rest may differ from one to the next.
                return [entry for entry in self._described_node() if entry.source is ConfigSource.NODE_DYNAMIC_DEFAULT]
            return [*self._node_entries(), *self._described_node()]
        if resource.resource_type == GROUP:
            if not self._admission.may(context.caller, Operation.DESCRIBE_CONFIGS, access.group(name)):
                return _Refused(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"{context.caller} may not describe {name!r}")
            stored = self._catalog.group_config(name)
            return describe(group_settings.DEFINITIONS, stored, override_source=ConfigSource.GROUP)
        return _no_settings(resource.resource_type)

    def _described_node(self) -> list[ConfigEntry]:
        stored = self._catalog.node_config(None), self._catalog.node_config(self._node_id)
        return node_config.describe({**self._broker.config.topic_defaults, **self._node_settings}, *stored)

    def _another_node(self, name: str) -> _Refused:
        return _Refused(ErrorCode.INVALID_REQUEST, f"node {name[:80]!r} is not this node, {self._node_id}")

    # AlterConfigs

    async def alter_configs(self, request: AlterConfigsRequest, context: RequestContext) -> AlterConfigsResponse:
        responses = []
        counts = _counts(request.resources)
        pace = context.pace()
        for resource in request.resources:
            await pace.rest_if_due()
            overrides = {config.name: config.value for config in resource.configs}
            refused = self._refuse_alter(resource.resource_type, resource.resource_name, context)
            refused = refused or _named_twice(counts, resource) or _without_value(overrides)
            if refused is None:
                refused = self._refuse_dead_letters(resource, overrides, context)
            if refused is None:
                refused = await self._replace(resource, overrides, context, validate_only=request.validate_only)
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
        counts = _counts(request.resources)
        pace = context.pace()
        for resource in request.resources:
            await pace.rest_if_due()
            refused = self._refuse_alter(resource.resource_type, resource.resource_name, context)
            refused = refused or _named_twice(counts, resource)
            changes = _changes(resource.configs)
            if isinstance(changes, _Refused):
                refused = refused or changes
            elif refused is None:
                refused = self._refuse_dead_letters(resource, {each.name: each.value for each in changes}, context)
                refused = refused or await self._change(resource, changes, context, validate_only=request.validate_only)
            responses.append(
                incremental_alter_configs.AlterConfigsResourceResponse(
                    error_code=ErrorCode.NONE if refused is None else refused.code,
                    error_message=None if refused is None else refused.reason,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
            )
        return IncrementalAlterConfigsResponse(responses=responses)

    async def _replace(
        self,
        resource: AlterConfigsResource,
        overrides: dict[str, str | None],
        context: RequestContext,
        *,
        validate_only: bool,
    ) -> _Refused | None:
        name = resource.resource_name
        if resource.resource_type == TOPIC:
            return _alter_refusal(
                await ask_store(self._catalog.replace_config(name, overrides, validate_only=validate_only))
            )
        validate = node_config.validate if resource.resource_type == BROKER else group_settings.validate
        change = replaced_by(overrides, validate)
        return await self._settle(resource.resource_type, name, change, context, validate_only=validate_only)

    async def _change(
        self,
        resource: IncrementalResource,
        changes: list[ConfigChange],
        context: RequestContext,
        *,
        validate_only: bool,
    ) -> _Refused | None:
        name = resource.resource_name
        if resource.resource_type == TOPIC:
            return _alter_refusal(
                await ask_store(self._catalog.change_config(name, changes, validate_only=validate_only))
            )
        module = node_config if resource.resource_type == BROKER else group_settings
        change = changed_by(changes, module.DEFINITIONS, module.validate)
        return await self._settle(resource.resource_type, name, change, context, validate_only=validate_only)

    async def _settle(
        self, resource_type: int, name: str, change: SettingsChange, context: RequestContext, *, validate_only: bool
    ) -> _Refused | None:
        if resource_type == BROKER:
            node_id = None if name == ALL_NODES else self._node_id
            settled = self._catalog.alter_node(node_id, change, validate_only=validate_only)
        else:
            change = group_settings.noting_author(change, context.caller.principal)
            settled = self._catalog.alter_group(name, change, validate_only=validate_only)
        return _alter_refusal(await ask_store(settled))

    def _refuse_dead_letters(
        self, resource: AlteredResource, named: Mapping[str, str | None], context: RequestContext
    ) -> _Refused | None:
        """The broker will write there on behalf of whoever names the topic."""
        target = named.get(group_settings.DEAD_LETTERS) if resource.resource_type == GROUP else None
        known = self._catalog.group_config(resource.resource_name).get(group_settings.DEAD_LETTERS)
        if not target or target == known:
            return None
        if self._admission.may(context.caller, Operation.WRITE, access.topic(target)):
            return None
        reason = f"{context.caller} may not write to {target[:80]!r}, where dead letters would go"
        return _Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, reason)

    def _refuse_alter(self, resource_type: int, name: str, context: RequestContext) -> _Refused | None:
        kinds = {
            TOPIC: (access.topic(name), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            BROKER: (CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            GROUP: (access.group(name), ErrorCode.GROUP_AUTHORIZATION_FAILED),
        }
        if resource_type not in kinds:
            return _no_settings(resource_type)
        resource, code = kinds[resource_type]
        if not self._admission.may(context.caller, Operation.ALTER_CONFIGS, resource):
            return _Refused(code, f"{context.caller} may not alter {name!r}")
        if resource_type == BROKER and name not in {ALL_NODES, str(self._node_id)}:
            return self._another_node(name)
        if resource_type in {GROUP, TOPIC} and not name:
            return _Refused(ErrorCode.INVALID_REQUEST, "groups and topics have names, and this one is empty")
        if resource_type == TOPIC and (reason := topic_rules.check_name(name)) is not None:
            return _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
        return None

    # DescribeLogDirs

    def describe_log_dirs(
        self, request: DescribeLogDirsRequest, context: RequestContext
    ) -> Steps[DescribeLogDirsResponse]:
        if not self._admission.may(context.caller, Operation.DESCRIBE, CLUSTER):
            return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        wanted: dict[str, set[int] | None]
        if request.topics is None:
            wanted = {topic.name: None for topic in self._broker.topics()}
        else:
            wanted = {topic.topic: set(topic.partitions) or None for topic in request.topics}
        topics = []
        for name, indexes in wanted.items():
            yield
            topic = self._broker.topic(name)
            if topic is None:
                continue
            partitions = []
            for shell in topic.shells:
                if indexes is None or shell.index in indexes:
                    partitions.append(
                        DescribeLogDirsPartition(partition_index=shell.index, partition_size=shell.size_bytes)
                    )
                    yield
            if partitions:
                topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
        space = self._broker.space()
        result = DescribeLogDirsResult(
            log_dir=space.directory,
            topics=topics,
            total_bytes=space.total_bytes,
            usable_bytes=space.usable_bytes,
        )
        return DescribeLogDirsResponse(results=(result,))


def _not_described(resource: DescribeConfigsResource, refused: _Refused) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=refused.code,
        error_message=refused.reason,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


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


def _counts(resources: Sequence[AlteredResource]) -> Counter[tuple[int, str]]:
    return Counter((each.resource_type, each.resource_name) for each in resources)


def _named_twice(counts: Counter[tuple[int, str]], one: AlteredResource) -> _Refused | None:
    """Which of two changes would win is nobody's guess, so neither is made."""
    if counts[one.resource_type, one.resource_name] == 1:
        return None
    return _Refused(ErrorCode.INVALID_REQUEST, f"{one.resource_name!r} is named more than once")


def _without_value(overrides: Mapping[str, str | None]) -> _Refused | None:
    missing = [name for name, value in overrides.items() if value is None]
    return (
        _Refused(ErrorCode.INVALID_REQUEST, f"settings without a value: {', '.join(missing)[:200]}")
        if missing
        else None
    )


def _changes(
    configs: Sequence[incremental_alter_configs.AlterableConfig],
) -> list[ConfigChange] | _Refused:
    changes = []
    for config in configs:
        if config.config_operation not in {operation.value for operation in ConfigOperation}:
            reason = f"operation {config.config_operation} on {config.name!r} is not set, delete, append or subtract"
            return _Refused(ErrorCode.INVALID_REQUEST, reason)
        if config.config_operation != ConfigOperation.DELETE and config.value is None:
            return _Refused(ErrorCode.INVALID_REQUEST, f"setting {config.name!r} has no value")
        changes.append(ConfigChange(config.name, ConfigOperation(config.config_operation), config.value))
    for name, count in Counter(change.name for change in changes).items():
        if count > 1:
            return _Refused(ErrorCode.INVALID_REQUEST, f"setting {name!r} is named more than once")
    return changes


def _no_settings(resource_type: int) -> _Refused:
    reason = f"resource type {resource_type}: topics (2), nodes (4) and groups (32) have settings"
    return _Refused(ErrorCode.INVALID_REQUEST, reason)


def _alter_refusal(outcome: Altered | Settled | UnknownTopic | InvalidConfig | StoreFailed) -> _Refused | None:
    if isinstance(outcome, StoreFailed):
        return _Refused(STORE_FAILED_CODE, outcome.reason)
    if isinstance(outcome, UnknownTopic):
        return _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {outcome.name!r}")
    if isinstance(outcome, InvalidConfig):
        return _Refused(ErrorCode.INVALID_CONFIG, outcome.reason)
    return None
