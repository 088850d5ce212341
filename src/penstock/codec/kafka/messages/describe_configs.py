"""DescribeConfigs: the settings of topics and brokers, where each comes from, and its documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Bool, Int8, Int16, Int32, Message, Request, Response, String, Versions


class DescribeConfigsResource(Message, frozen=True):
    resource_type: Int8 = 0
    resource_name: String = ""
    configuration_keys: Sequence[String] | None = ()


class DescribeConfigsRequest(Request, frozen=True):
    api_key = 32
    valid_versions = "1-4"
    flexible_versions = "4+"

    resources: Sequence[DescribeConfigsResource] = ()
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Versions("3+")] = False


class DescribeConfigsSynonym(Message, frozen=True):
    name: String = ""
    value: String | None = None
    source: Int8 = 0


class DescribeConfigsResourceResult(Message, frozen=True):
    name: String = ""
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: Sequence[DescribeConfigsSynonym] = ()
    config_type: Annotated[Int8, Versions("3+")] = 0
    documentation: Annotated[String | None, Versions("3+")] = None


class DescribeConfigsResult(Message, frozen=True):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8 = 0
    resource_name: String = ""
    configs: Sequence[DescribeConfigsResourceResult] = ()


class DescribeConfigsResponse(Response, frozen=True):
    api_key = 32
    valid_versions = "1-4"
    flexible_versions = "4+"

    throttle_time_ms: Int32 = 0
    results: Sequence[DescribeConfigsResult] = ()
