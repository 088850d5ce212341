"""IncrementalAlterConfigs: sets (0), deletes (1), appends to (2) or subtracts from (3) single settings."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Bool, Int8, Int16, Int32, Message, Request, Response, String


class AlterableConfig(Message, frozen=True):
    name: String = ""
    config_operation: Int8 = 0
    value: String | None = None


class AlterConfigsResource(Message, frozen=True):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: Sequence[AlterableConfig] = ()


class IncrementalAlterConfigsRequest(Request, frozen=True):
    api_key = 44
    valid_versions = "0-1"
    flexible_versions = "1+"

    resources: Sequence[AlterConfigsResource] = ()
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""


class IncrementalAlterConfigsResponse(Response, frozen=True):
    api_key = 44
    valid_versions = "0-1"
    flexible_versions = "1+"

    throttle_time_ms: Int32 = 0
    responses: Sequence[AlterConfigsResourceResponse] = ()
