"""ListConfigResources: what has settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from penstock.cluster.catalog.topics import TopicCatalog
from penstock.codec.kafka import ErrorCode
from penstock.codec.kafka.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from penstock.domain.security.access import CLUSTER, Operation
from penstock.gateways.admission import Admission
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers.configs import BROKER, GROUP, TOPIC

BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
KINDS_FROM: Final = 1
# In the order in which Kafka lists them. Loggers and client metrics have no settings here, so there is none to list.
LISTED: Final = (GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC)


class ConfigResourcesHandler:
    def __init__(self, catalog: TopicCatalog, admission: Admission, *, node_ids: Callable[[], Sequence[int]]) -> None:
        self._catalog = catalog
        self._admission = admission
        self._node_ids = node_ids

    def list_config_resources(
        self, request: ListConfigResourcesRequest, context: RequestContext
    ) -> ListConfigResourcesResponse:
        if not self._admission.may(context.caller, Operation.DESCRIBE_CONFIGS, CLUSTER):
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
            return [str(node_id) for node_id in self._node_ids()]
        return self._catalog.configured_groups() if kind == GROUP else ()
