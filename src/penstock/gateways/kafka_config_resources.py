"""ListConfigResources and DescribeClientQuotas: what has settings, and which clients have limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.cluster.topic_catalog import TopicCatalog
from penstock.codec.wire import ErrorCode
from penstock.codec.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from penstock.codec.wire.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.domain.access import CLUSTER, Authorizer, Operation
from penstock.gateways.kafka_configs import BROKER, GROUP, TOPIC
from penstock.gateways.kafka_context import RequestContext

BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
KINDS_FROM: Final = 1
# In the order in which Kafka lists them. Loggers and client metrics have no settings here, so there is none to list.
LISTED: Final = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)

# What limits can be set for, and how a filter may choose among them.
QUOTA_KINDS: Final = ("user", "client-id", "ip")
EXACT, BY_DEFAULT, ANY = 0, 1, 2


class ConfigResourcesHandler:
    def __init__(self, catalog: TopicCatalog, authorizer: Authorizer, *, node_id: int) -> None:
        self._catalog = catalog
        self._authorizer = authorizer
        self._node_id = node_id

    def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        if not self._authorizer.authorize(context.principal, Operation.DESCRIBE_CONFIGS, CLUSTER):
            return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        # Before there were kinds it was about client metrics alone; later none means all.
        kinds = request.resource_types or LISTED if context.api_version >= KINDS_FROM else (CLIENT_METRICS,)
        if any(kind not in LISTED for kind in kinds):
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        found = [ConfigResource(name, kind) for kind in LISTED if kind in kinds for name in self._names(kind)]
        return ListConfigResourcesResponse(config_resources=found)

    def _names(self, kind: int) -> Sequence[str]:
        if kind == TOPIC:
            return self._catalog.names()
        if kind == BROKER:
            return (str(self._node_id),)
        return self._catalog.configured_groups() if kind == GROUP else ()

    def describe_client_quotas(
        self, request: DescribeClientQuotasRequest, context: RequestContext
    ) -> DescribeClientQuotasResponse:
        if not self._authorizer.authorize(context.principal, Operation.DESCRIBE_CONFIGS, CLUSTER):
            reason = f"{context.principal} may not see limits"
            return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, reason)
        kinds: set[str] = set()
        # Each kind once, and there are three: more than that is refused before it is looked at.
        for component in request.components[: len(QUOTA_KINDS) + 1]:
            refused = _component_problem(component, kinds)
            if refused is not None:
                return refused
            kinds.add(component.entity_type)
        if "ip" in kinds and len(kinds) > 1:
            return _refused(ErrorCode.INVALID_REQUEST, "limits of an ip are not combined with those of others")
        # Nobody has limits yet.
        return DescribeClientQuotasResponse(entries=())


def _component_problem(component: ComponentData, seen: set[str]) -> DescribeClientQuotasResponse | None:
    kind = component.entity_type
    if not kind:
        return _refused(ErrorCode.INVALID_REQUEST, "a filter without a kind of entity")
    if kind in seen:
        return _refused(ErrorCode.INVALID_REQUEST, f"{kind[:80]!r} is named more than once")
    if kind not in QUOTA_KINDS:
        reason = f"{kind[:80]!r}: there are limits of {', '.join(QUOTA_KINDS)}"
        return _refused(ErrorCode.UNSUPPORTED_VERSION, reason)
    if component.match_type not in (EXACT, BY_DEFAULT, ANY):
        reason = f"match type {component.match_type}: there are exact (0), default (1) and any (2)"
        return _refused(ErrorCode.INVALID_REQUEST, reason)
    if (component.match_type == EXACT) == (component.match is None):
        return _refused(ErrorCode.INVALID_REQUEST, "a name belongs to an exact match, and to no other")
    return None


def _refused(code: ErrorCode, reason: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=reason, entries=None)
