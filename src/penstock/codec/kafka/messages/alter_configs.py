"""AlterConfigs: replaces all settings of a resource. Older than IncrementalAlterConfigs, still in use."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.kafka.schema import Bool, Int8, Int16, Int32, Message, Request, Response, String


class AlterableConfig(Message, frozen=True):
    name: String = ""
    value: String | None = None


class AlterConfigsResource(Message, frozen=True):
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: Sequence[AlterableConfig] = ()


class AlterConfigsRequest(Request, frozen=True):
    api_key = 33
    valid_versions = "0-2"
    flexible_versions = "2+"

    resources: Sequence[AlterConfigsResource] = ()
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""


class AlterConfigsResponse(Response, frozen=True):
    api_key = 33
    valid_versions = "0-2"
    flexible_versions = "2+"

    throttle_time_ms: Int32 = 0
    responses: Sequence[AlterConfigsResourceResponse] = ()
