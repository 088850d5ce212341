"""ApiVersions: which requests a broker understands, in which versions.

The first request on a connection. A version too new for the broker is answered in version 0 with error 35,
and the response's header is always that of version 0: the client cannot know yet what the broker speaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from penstock.codec.kafka.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Request,
    Response,
    String,
    Tagged,
    Versions,
)


class ApiVersionsRequest(Request, frozen=True):
    api_key = 18
    valid_versions = "0-4"
    flexible_versions = "3+"

    client_software_name: Annotated[String, Versions("3+")] = ""
    client_software_version: Annotated[String, Versions("3+")] = ""


class ApiVersion(Message, frozen=True):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Message, frozen=True):
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Message, frozen=True):
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Response, frozen=True):
    api_key = 18
    valid_versions = "0-4"
    flexible_versions = "3+"

    error_code: Int16 = 0
    api_keys: Sequence[ApiVersion] = ()
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    supported_features: Annotated[Sequence[SupportedFeatureKey], Tagged(0, "3+")] = ()
    finalized_features_epoch: Annotated[Int64, Tagged(1, "3+")] = -1
    finalized_features: Annotated[Sequence[FinalizedFeatureKey], Tagged(2, "3+")] = ()
    zk_migration_ready: Annotated[Bool, Tagged(3, "3+")] = False
