"""ListConfigResources: what has settings. Version 0 lists client metrics only (KIP-1142)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import Int8, Int16, Int32, Message, Request, Response, String, Versions


class ListConfigResourcesRequest(Request, frozen=True):
    api_key = 74
    valid_versions = "0-1"
    flexible_versions = "0+"

    resource_types: Annotated[Sequence[Int8], Versions("1+")] = ()


class ConfigResource(Message, frozen=True):
    resource_name: String = ""
    resource_type: Annotated[Int8, Versions("1+")] = 16


class ListConfigResourcesResponse(Response, frozen=True):
    api_key = 74
    valid_versions = "0-1"
    flexible_versions = "0+"

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: Sequence[ConfigResource] = ()
